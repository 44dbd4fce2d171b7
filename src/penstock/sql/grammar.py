"""The grammar of our statements: what Spark SQL does not know. Anything else is a query, for Spark to read.

::

    text ─▶ its first words ─▶ ours?  ─ no ─▶ None: a query
                                 │ yes, or nearly
                                 ▼
                 cursor ─▶ one reader per verb ─▶ a statement, a value

Where the first words are nearly those of a statement of ours, and Spark has none like them, the error is ours, too.

``REPAIR source.table [WHERE KEY IN (key, …) | WHERE condition]``.

Keys are values, or lists of values in parentheses where the key has several columns. A number stays the text that it
is, so that nothing is rounded. A condition is for Postgres to read: it is taken as it is written.

``CREATE SOURCES``: the grammar of each kind is that of its two models of options.

A secret in clear is refused unless the statement says that it is meant (``allow literal secrets``). Then it is kept
apart from the options, so that it is not shown, logged or stored with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.sources.name_syntax import dotted_text
from penstock.sources.option_reading import Given, Option, read_clauses, read_settings, unknown_clause, validated
from penstock.sources.option_syntax import Written, options_of
from penstock.sources.syntax import Flag, Secret
from penstock.sql.cursor import StatementCursor, after_blanks, leading_words
from penstock.sql.errors import Beginning
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    AlterSet,
    CreateSource,
    DropSources,
    DropTable,
    Explain,
    Repairing,
    RetryTable,
    ShowCreate,
    ShowErrors,
    ShowRepairs,
    ShowSinks,
    ShowSources,
    ShowTables,
    Statement,
    Verify,
)

__all__ = ["is_ours", "parse", "read_alter_set", "read_create", "read_repair", "read_statement"]

_ALTER = (
    "ALTER SOURCES source ADD TABLE schema.table [AS name]; or DROP TABLE schema.table; or RETRY TABLE schema.table;"
    " or ACCEPT INTERFERENCE; or SET (option = value, …);"
)
_SHOW = ("SOURCES", "TABLES", "SINKS", "CREATE SOURCES", "ERRORS", "REPAIRS")
_SOURCES = ("SOURCE", "SOURCES")
_SINKS = ("SINK", "SINKS")
_VERBS = ("CREATE", "ALTER", "DROP", "SHOW", "EXPLAIN")
_OF_ONE_WORD = ("VERIFY", "REPAIR")
_SPARKS = frozenset(
    {
        "ADD", "ANALYZE", "CACHE", "CALL", "CLEAR", "COMMENT", "DECLARE", "DELETE", "DESC", "DESCRIBE", "FROM",
        "INSERT", "LIST", "LOAD", "MERGE", "MSCK", "OPTIMIZE", "REFRESH", "REPLACE", "RESET", "SELECT", "SET", "TABLE",
        "TRUNCATE", "UNCACHE", "UPDATE", "USE", "VACUUM", "VALUES", "WITH",
    }
)  # fmt: skip
"""What statements of Spark's begin with."""
_SPARKS_REPAIR = re.compile(r"REPAIR\s+TABLE\b(?!\s*\.)", re.IGNORECASE)
_SPARKS_NOUNS = frozenset({"SCHEMA", "SCHEMAS", "DATABASE", "TABLE", "VIEW", "VIEWS", "FUNCTION", "NAMESPACE"})


def parse(text: str, kinds: Mapping[str, Written], begins: Beginning | None = None) -> Statement | None:
    """Return the statement; None for a query. `begins` is where it begins in its file, for errors."""
    if not is_ours(text):
        return None
    cursor = StatementCursor(text, begins)
    statement = read_statement(cursor, kinds)
    cursor.ends()
    return statement


def is_ours(text: str) -> bool:
    """Say whether a text is, or was clearly meant to be, a statement of ours."""
    words = leading_words(text)
    first, second, third = (*words, "", "", "")[:3]
    if first in _OF_ONE_WORD:
        return _SPARKS_REPAIR.match(text, after_blanks(text, 0)) is None
    if first == "SHOW" and second in _SHOW:
        return True
    nouns = third if (first, second) in (("SHOW", "CREATE"), ("EXPLAIN", "CREATE")) else second
    if nouns in (*_SOURCES, *_SINKS):
        return first in _VERBS or _is_near(first, _VERBS)
    if first in _VERBS:
        return nouns not in _SPARKS_NOUNS and (
            _is_near(nouns, _SOURCES) or (first == "SHOW" and _is_near(nouns, _SHOW))
        )
    return bool(second) and first not in _SPARKS and _is_near(first, _OF_ONE_WORD)


def read_statement(cursor: StatementCursor, kinds: Mapping[str, Written]) -> Statement:
    """Read a statement whose first words are ours, or nearly."""
    readers: dict[tuple[str, ...], Callable[[], Statement]] = {
        ("CREATE", "SOURCES"): lambda: read_create(cursor, kinds),
        ("EXPLAIN", "CREATE", "SOURCES"): lambda: Explain(read_create(cursor, kinds)),
        ("EXPLAIN", "SOURCES"): lambda: Explain(read_create(cursor, kinds)),
        ("ALTER", "SOURCES"): lambda: _alter(cursor, kinds),
        ("DROP", "SOURCES"): lambda: _drop(cursor),
        ("SHOW", "SOURCES"): lambda: _show_sources(cursor),
        ("SHOW", "TABLES"): lambda: _show_tables(cursor),
        ("SHOW", "SINKS"): lambda: _shown(cursor, "SHOW SINKS;", ShowSinks()),
        ("SHOW", "CREATE", "SOURCES"): lambda: _show_create(cursor),
        ("SHOW", "ERRORS"): lambda: _shown(cursor, "SHOW ERRORS;", ShowErrors()),
        ("SHOW", "REPAIRS"): lambda: _shown(cursor, "SHOW REPAIRS;", ShowRepairs()),
        ("VERIFY",): lambda: _verify(cursor),
        ("REPAIR",): lambda: read_repair(cursor),
    }
    place = cursor.place()
    for phrase, read in readers.items():
        if cursor.takes(*phrase):
            return read()
    raise _no_statement(cursor, [" ".join(phrase) for phrase in readers], place)


def _no_statement(cursor: StatementCursor, known: list[str], place: int) -> UsageError:
    words = cursor.words()
    if len(words) > 1 and words[1] in _SINKS:
        return cursor.wrong("this version has no sinks", "Read changes with Spark: readStream.format('penstock').")
    near = nearest(" ".join(words[:2]), known) or nearest(" ".join(words[:3]), known)
    near = near or nearest(" ".join(words[:1]), known)
    return cursor.wrong("there is no such statement", near or f"There are {', '.join(known)}.", place)


def _is_near(word: str, known: tuple[str, ...]) -> bool:
    return bool(word) and bool(get_close_matches(word, known, 1, 0.75))


def _shown(cursor: StatementCursor, usage: str, statement: Statement) -> Statement:
    cursor.usage(usage)
    return statement


def _show_sources(cursor: StatementCursor) -> ShowSources:
    cursor.usage("SHOW SOURCES;")
    if cursor.words()[:1] == ("TABLES",):
        message = "SHOW SOURCES lists sources, not tables"
        raise cursor.wrong(message, "Write: SHOW TABLES; or SHOW TABLES FROM source;")
    return ShowSources()


def _show_tables(cursor: StatementCursor) -> ShowTables:
    cursor.usage("SHOW TABLES [FROM source];")
    if cursor.takes("FROM") or cursor.takes("IN"):
        return ShowTables(cursor.name("source"))
    return ShowTables()


def _show_create(cursor: StatementCursor) -> ShowCreate:
    cursor.usage("SHOW CREATE SOURCES source;")
    return ShowCreate(cursor.name("source"))


def _alter(cursor: StatementCursor, kinds: Mapping[str, Written]) -> Statement:
    cursor.usage(_ALTER)
    source = cursor.name("source")
    if cursor.takes("ACCEPT", "INTERFERENCE"):
        return AcceptInterference(source)
    if cursor.takes("SET"):
        return read_alter_set(cursor, source, kinds)
    if cursor.takes("ADD", "TABLE"):
        parts = _name(cursor, "schema.table", 2, 2)
        return AddTable(source, dotted_text(parts, cursor.name("name") if cursor.takes("AS") else None))
    if cursor.takes("DROP", "TABLE"):
        return DropTable(source, ".".join(_name(cursor, "table", 1, 2)))
    if cursor.takes("RETRY", "TABLE"):
        return RetryTable(source, ".".join(_name(cursor, "table", 1, 2)))
    verbs = ("ADD TABLE", "DROP TABLE", "RETRY TABLE", "ACCEPT INTERFERENCE", "SET")
    near = nearest(" ".join(cursor.words()[:2]), verbs)
    message = "this is nothing that ALTER SOURCES can do"
    raise cursor.wrong(message, near or f"Write: {_ALTER}")


def _drop(cursor: StatementCursor) -> DropSources:
    cursor.usage("DROP SOURCES [IF EXISTS] source [KEEP TABLES] [FORCE];")
    if_exists = cursor.takes("IF", "EXISTS")
    name = cursor.name("source")
    keep_tables = cursor.takes("KEEP", "TABLES")
    force = cursor.takes("FORCE")
    return DropSources(name, if_exists, keep_tables or cursor.takes("KEEP", "TABLES"), force)


def _verify(cursor: StatementCursor) -> Verify:
    cursor.usage("VERIFY source; or VERIFY source.table;")
    source, *table = _name(cursor, "source", 1, 3)
    return Verify(source, ".".join(table) or None)


def _name(cursor: StatementCursor, of: str, least: int, most: int) -> list[str]:
    """Take a dotted name of so many parts."""
    parts = [cursor.name(of)]
    while len(parts) < most and cursor.takes("."):
        parts.append(cursor.part())
    if len(parts) < least:
        cursor.expects(".")
    return parts


_REPAIR_USAGE = "REPAIR source.table WHERE KEY IN (1, 2); or … WHERE condition; or REPAIR source.table; for all rows."


def read_repair(cursor: StatementCursor) -> Repairing:
    """Read what follows ``REPAIR``."""
    cursor.usage(_REPAIR_USAGE)
    source = cursor.name("source")
    cursor.expects(".")
    table = [cursor.part()]
    if cursor.takes("."):
        table.append(cursor.part())
    if not cursor.takes("WHERE"):
        return Repairing(source, ".".join(table))
    if cursor.takes("KEY", "IN"):
        return Repairing(source, ".".join(table), keys=_keys(cursor))
    if cursor.is_at_end():
        message = "there is no condition behind WHERE"
        raise cursor.wrong(message, f"Write: {_REPAIR_USAGE}")
    return Repairing(source, ".".join(table), where=cursor.rest())


def _keys(cursor: StatementCursor) -> list[Any]:
    """Read ``(1, 'x')`` or ``((1, 'x'), (2, 'y'))``."""
    cursor.expects("(")
    keys = [_key(cursor)]
    while cursor.takes(","):
        keys.append(_key(cursor))
    cursor.expects(")")
    return keys


def _key(cursor: StatementCursor) -> Any:
    if not cursor.takes("("):
        return _value(cursor)
    values = [_value(cursor)]
    while cursor.takes(","):
        values.append(_value(cursor))
    cursor.expects(")")
    return values


def _value(cursor: StatementCursor) -> Any:
    if cursor.is_text():
        return cursor.text()
    for word, value in (("TRUE", True), ("FALSE", False)):
        if cursor.takes(word):
            return value
    if cursor.words():
        what = "a value of the key"
        raise cursor.expected(what)
    return cursor.number()


_CREATE_USAGE = "CREATE SOURCES [IF NOT EXISTS] source FROM kind … [WITH (option = value, …)];"
_ALLOW = Option("allow_literal_secrets", ("ALLOW", "LITERAL", "SECRETS"), Flag(), FieldInfo(annotation=bool))
_CLEAR = "Name where it is: 'env:NAME' or 'file:PATH'; or allow it by the option allow literal secrets = true."


def read_create(cursor: StatementCursor, kinds: Mapping[str, Written]) -> CreateSource:
    """Read what follows ``CREATE SOURCES``."""
    cursor.usage(_CREATE_USAGE)
    if_not_exists = cursor.takes("IF", "NOT", "EXISTS")
    name = cursor.name("source")
    cursor.expects("FROM")
    place = cursor.place()
    kind = _kind(cursor, kinds)
    what = f"a {kind.NAME} source"
    cursor.usage(f"CREATE SOURCES {name} FROM {kind.NAME} … [WITH (option = value, …)];")
    clauses = read_clauses(cursor, options_of(kind.SqlOptions))
    has_settings = cursor.takes("WITH")
    settings = read_settings(cursor, _settings_of(kind), what, options_of(kind.SqlOptions)) if has_settings else {}
    if not cursor.is_at_end():
        raise _misplaced(cursor, kind, what, has_settings=has_settings)
    secrets = _secrets(cursor, {**clauses, **settings}, settings)
    return CreateSource(
        name,
        kind.NAME,
        validated(cursor, kind.SqlOptions, options_of(kind.SqlOptions), _without(clauses, secrets), what, place),
        validated(cursor, kind.WithOptions, options_of(kind.WithOptions), _without(settings, secrets), what, place),
        if_not_exists,
        secrets,
    )


def read_alter_set(cursor: StatementCursor, source: str, kinds: Mapping[str, Written]) -> AlterSet:
    """Read what follows ``ALTER SOURCES source SET``: settings that some kind has."""
    cursor.usage("ALTER SOURCES source SET (option = value, …);")
    options = {option.field: option for kind in kinds.values() for option in reversed(_settings_of(kind))}
    settings = read_settings(cursor, tuple(options.values()), "a source")
    if not settings:
        message = "no option is set"
        raise cursor.wrong(message, "Write: ALTER SOURCES source SET (option = value, …);")
    cursor.ends()
    secrets = _secrets(cursor, settings, settings)
    given = _without(settings, secrets)
    return AlterSet(source, {field: each.value for field, each in given.items()}, secrets)


def _kind(cursor: StatementCursor, kinds: Mapping[str, Written]) -> Written:
    for kind in sorted(kinds.values(), key=lambda each: -len(each.NAME.split())):
        if cursor.takes(*kind.NAME.upper().split()):
            return kind
    words = " ".join(cursor.words()[:1])
    near = nearest(words, [kind.NAME for kind in kinds.values()])
    message = f"there is no kind of source {words}" if words else "the kind of source stands here"
    raise cursor.wrong(message, near or f"The kinds are {', '.join(kind.NAME for kind in kinds.values())}.")


def _misplaced(cursor: StatementCursor, kind: Written, what: str, *, has_settings: bool) -> UsageError:
    """Return the error for what stands where a clause or the end should be."""
    if has_settings:
        return cursor.wrong("nothing follows WITH (…)", "Put clauses before WITH, and all options into one WITH.")
    words = cursor.words()
    for option in _settings_of(kind):
        if words[: len(option.words)] == option.words:
            message = f"{option.setting} is an option, and stands in WITH"
            return cursor.wrong(message, f"Write: WITH ({option.setting} = {option.syntax.form})")
    return unknown_clause(cursor, f"this is no clause of {what}")


def _settings_of(kind: Written) -> Sequence[Option]:
    """Return the settings in WITH, and the one that allows secrets in clear where the kind has secrets."""
    settings = tuple(option for option in options_of(kind.WithOptions) if option.field != _ALLOW.field)
    clauses = options_of(kind.SqlOptions)
    has_secrets = any(isinstance(option.syntax, Secret) for option in (*settings, *clauses))
    return (*settings, _ALLOW) if has_secrets else settings


def _secrets(
    cursor: StatementCursor, given: Mapping[str, Given], settings: Mapping[str, Given]
) -> dict[str, SecretStr]:
    """Return the secrets in clear; refuse them where that was not allowed."""
    literal = {field: each for field, each in given.items() if isinstance(each.value, SecretStr)}
    allowed = _ALLOW.field in settings and settings[_ALLOW.field].value
    for each in literal.values():
        if not allowed:
            message = f"{each.option.setting} holds a secret in clear"
            raise cursor.wrong(message, _CLEAR, each.place)
    return {field: each.value for field, each in literal.items()}


def _without(given: Mapping[str, Given], secrets: Mapping[str, Any]) -> dict[str, Given]:
    return {field: each for field, each in given.items() if field not in secrets and field != _ALLOW.field}
