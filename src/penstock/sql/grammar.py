"""The grammar of Penstock's statements. Any other text is a query, which Spark parses.

::

    text ─▶ first words ─▶ Penstock's? ─ no ─▶ None: a query
                                │ yes, or a misspelling
                                ▼
                 cursor ─▶ one reader per verb ─▶ a `Statement`

If the first words resemble those of a Penstock statement, and no Spark statement begins like that, the parser reports
the error itself instead of passing the text to Spark.

``CREATE SOURCES``: the grammar of each kind of source is derived from its two models of options. Both are validated
here, alone and together, so that each error has a position in the statement. A literal secret is rejected unless the
statement allows it (``allow literal secrets``). It is then kept apart from the options, so that it is not shown, logged
or stored with them.

``CREATE SINK`` is read in the same way, from the two models of a kind of sink.

``REPAIR source.table [WHERE { KEY IN (key, …) | condition }]``: a key is a value, or a list of values in parentheses
if it has several columns. Numbers are kept as text, so that nothing is rounded. Postgres parses the condition; the
grammar passes it on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.name_suggestions import nearest
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sources.interface import is_name
from penstock.sql.cursor import StatementCursor, after_blanks, leading_words
from penstock.sql.errors import Position, StartPosition
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    AlterSet,
    AlterSink,
    CreateSink,
    CreateSource,
    DropSink,
    DropSources,
    DropTable,
    Explain,
    ExplainSink,
    RepairRows,
    RetrySink,
    RetryTable,
    ShowCreate,
    ShowCreateSink,
    ShowErrors,
    ShowReaders,
    ShowRepairs,
    ShowSinks,
    ShowSources,
    ShowTables,
    Statement,
    Subscribe,
    Verify,
)
from penstock.sql.syntax.names import dotted_text, written_name
from penstock.sql.syntax.option_parser import (
    Given,
    Option,
    Settings,
    located,
    longer,
    read_clauses,
    read_settings,
    unknown_clause,
    validated,
)
from penstock.sql.syntax.options import Written, options_of
from penstock.sql.syntax.values import Flag, Secret, alternatives

__all__ = [
    "is_penstock_statement",
    "parse",
    "read_alter_set",
    "read_alter_sink",
    "read_create",
    "read_create_sink",
    "read_repair",
    "read_statement",
]

_ALTER = (
    "ALTER SOURCES source { ADD TABLE schema.table [AS name] | DROP TABLE table | RETRY TABLE table"
    " | ACCEPT INTERFERENCE | SET (option = value, …) };"
)
_ALTER_SINK = "ALTER SINK sink { SET (option = value, …) | RETRY };"
_ALTERATIONS = ("ADD TABLE", "DROP TABLE", "RETRY TABLE", "ACCEPT INTERFERENCE", "SET")
_SHOW = ("SOURCES", "TABLES", "SINKS", "CREATE SOURCES", "CREATE SINK", "ERRORS", "READERS", "REPAIRS")
_SOURCES = ("SOURCE", "SOURCES")
_SINKS = ("SINK", "SINKS")
_SINK_KINDS: Mapping[str, Written] = {KafkaSink.NAME: KafkaSink}
_VERBS = ("CREATE", "ALTER", "DROP", "SHOW", "EXPLAIN")
_SINGLE_WORDS = ("VERIFY", "REPAIR", "SUBSCRIBE")
_SPARK_VERBS = frozenset(
    {
        "ADD", "ANALYZE", "CACHE", "CALL", "CLEAR", "COMMENT", "DECLARE", "DELETE", "DESC", "DESCRIBE", "FROM",
        "INSERT", "LIST", "LOAD", "MERGE", "MSCK", "OPTIMIZE", "REFRESH", "REPLACE", "RESET", "SELECT", "SET", "TABLE",
        "TRUNCATE", "UNCACHE", "UPDATE", "USE", "VACUUM", "VALUES", "WITH",
    }
)  # fmt: skip
"""The words with which Spark's statements begin."""
_SPARK_REPAIR = re.compile(r"REPAIR\s+TABLE\b(?!\s*\.)", re.IGNORECASE)
_SPARK_NOUNS = frozenset({"SCHEMA", "SCHEMAS", "DATABASE", "TABLE", "VIEW", "VIEWS", "FUNCTION", "NAMESPACE"})


def parse(text: str, kinds: Mapping[str, Written], begins: StartPosition | None = None) -> Statement | None:
    """Return the statement, or None for a query. `begins` is its position in its file, for error messages."""
    if not is_penstock_statement(text):
        return None
    cursor = StatementCursor(text, begins)
    statement = read_statement(cursor, kinds)
    cursor.ends()
    return statement


def is_penstock_statement(text: str) -> bool:
    """Return whether a text is, or is clearly meant to be, a Penstock statement."""
    words = leading_words(text)
    first, second, third = (*words, "", "", "")[:3]
    if first in _SINGLE_WORDS:
        return _SPARK_REPAIR.match(text, after_blanks(text, 0)) is None
    if first == "SHOW" and second in _SHOW:
        return True
    nouns = third if (first, second) in (("SHOW", "CREATE"), ("EXPLAIN", "CREATE")) else second
    if nouns in (*_SOURCES, *_SINKS):
        return first in _VERBS or _is_near(first, _VERBS)
    if first in _VERBS:
        near = _is_near(nouns, (*_SOURCES, *_SINKS)) or (first == "SHOW" and _is_near(nouns, _SHOW))
        return nouns not in _SPARK_NOUNS and near
    return bool(second) and first not in _SPARK_VERBS and _is_near(first, _SINGLE_WORDS)


def read_statement(cursor: StatementCursor, kinds: Mapping[str, Written]) -> Statement:
    """Read a statement for which `is_penstock_statement` holds."""
    readers: dict[tuple[str, ...], Callable[[], Statement]] = {
        ("CREATE", "SOURCES"): lambda: read_create(cursor, kinds),
        ("EXPLAIN", "CREATE", "SOURCES"): lambda: Explain(read_create(cursor, kinds)),
        ("EXPLAIN", "SOURCES"): lambda: Explain(read_create(cursor, kinds)),
        ("CREATE", "SINK"): lambda: read_create_sink(cursor),
        ("EXPLAIN", "CREATE", "SINK"): lambda: ExplainSink(read_create_sink(cursor)),
        ("EXPLAIN", "SINK"): lambda: ExplainSink(read_create_sink(cursor)),
        ("ALTER", "SOURCES"): lambda: _alter(cursor, kinds),
        ("ALTER", "SINK"): lambda: read_alter_sink(cursor),
        ("DROP", "SOURCES"): lambda: _drop(cursor),
        ("DROP", "SINK"): lambda: _drop_sink(cursor),
        ("SHOW", "SOURCES"): lambda: _show_sources(cursor),
        ("SHOW", "TABLES"): lambda: _show_tables(cursor),
        ("SHOW", "SINKS"): lambda: ShowSinks(_pattern(cursor, "SHOW SINKS [LIKE 'pattern'];")),
        ("SHOW", "CREATE", "SOURCES"): lambda: _show_create(cursor),
        ("SHOW", "CREATE", "SINK"): lambda: _show_create_sink(cursor),
        ("SHOW", "ERRORS"): lambda: ShowErrors(_pattern(cursor, "SHOW ERRORS [LIKE 'pattern'];")),
        ("SHOW", "READERS"): lambda: _show_readers(cursor),
        ("SHOW", "REPAIRS"): lambda: _without_arguments(cursor, "SHOW REPAIRS;", ShowRepairs()),
        ("SUBSCRIBE",): lambda: _subscribe(cursor),
        ("VERIFY",): lambda: _verify(cursor),
        ("REPAIR",): lambda: read_repair(cursor),
    }
    for phrase, read in readers.items():
        if cursor.accept(*phrase):
            return read()
    raise _unrecognized_statement(cursor, [" ".join(phrase) for phrase in readers])


def _unrecognized_statement(cursor: StatementCursor, known: list[str]) -> UsageError:
    words = cursor.words()
    counts = (3, 2, 1) if words[1:2] == ("CREATE",) else (2, 3, 1)
    near = next((found for count in counts if (found := nearest(" ".join(words[:count]), known))), "")
    return cursor.unmatched(known, near or f"Valid statements are: {', '.join(known)}.")


def _is_near(word: str, known: tuple[str, ...]) -> bool:
    return bool(word) and bool(get_close_matches(word, known, 1, 0.75))


def _without_arguments(cursor: StatementCursor, usage: str, statement: Statement) -> Statement:
    cursor.usage(usage)
    return statement


def _show_sources(cursor: StatementCursor) -> ShowSources:
    usage = "SHOW SOURCES [LIKE 'pattern'];"
    cursor.usage(usage)
    if cursor.words()[:1] == ("TABLES",):
        what = "end of statement"
        raise cursor.expected(what, "To list tables, use: SHOW TABLES [FROM source];")
    return ShowSources(_pattern(cursor, usage))


def _show_tables(cursor: StatementCursor) -> ShowTables:
    usage = "SHOW TABLES [FROM source] [LIKE 'pattern'];"
    return ShowTables(_of_source(cursor, usage), _pattern(cursor, usage))


def _show_readers(cursor: StatementCursor) -> ShowReaders:
    usage = "SHOW READERS [FROM source] [LIKE 'pattern'];"
    return ShowReaders(_of_source(cursor, usage), _pattern(cursor, usage))


def _of_source(cursor: StatementCursor, usage: str) -> str | None:
    cursor.usage(usage)
    return cursor.name("source") if cursor.accept("FROM") or cursor.accept("IN") else None


def _pattern(cursor: StatementCursor, usage: str) -> str | None:
    cursor.usage(usage)
    return cursor.text() if cursor.accept("LIKE") else None


def _subscribe(cursor: StatementCursor) -> Subscribe:
    cursor.usage("SUBSCRIBE source[.table];")
    source, *table = _name(cursor, "source", 1, 3)
    return Subscribe(source, ".".join(table) or None)


def _show_create(cursor: StatementCursor) -> ShowCreate:
    cursor.usage("SHOW CREATE SOURCES source;")
    return ShowCreate(cursor.name("source"))


def _show_create_sink(cursor: StatementCursor) -> ShowCreateSink:
    cursor.usage("SHOW CREATE SINK sink;")
    return ShowCreateSink(cursor.name("sink"))


def _alter(cursor: StatementCursor, kinds: Mapping[str, Written]) -> Statement:
    cursor.usage(_ALTER)
    source = cursor.name("source")
    if cursor.accept("ACCEPT", "INTERFERENCE"):
        return AcceptInterference(source)
    if cursor.accept("SET"):
        return read_alter_set(cursor, source, kinds)
    if cursor.accept("ADD", "TABLE"):
        parts = _name(cursor, "schema.table", 2, 2)
        return AddTable(source, dotted_text(parts, cursor.name("name") if cursor.accept("AS") else None))
    if cursor.accept("DROP", "TABLE"):
        return DropTable(source, _table(cursor))
    if cursor.accept("RETRY", "TABLE"):
        return RetryTable(source, _table(cursor))
    raise cursor.unmatched(_ALTERATIONS, _alteration_hint(cursor.words(), source) or f"Syntax: {_ALTER}")


def _alteration_hint(words: tuple[str, ...], source: str) -> str:
    """Suggest an alteration whose first word is similar; that of its second word alone, TABLE, means nothing."""
    if words[:2] == ("RENAME", "TABLE"):
        shop = written_name(source)
        drop, add = f"ALTER SOURCES {shop} DROP TABLE table;", f"ALTER SOURCES {shop} ADD TABLE schema.table AS name;"
        return f"To give a table another name, drop it and add it again: {drop} {add}"
    similar = [each for each in _ALTERATIONS if _is_near(words[0] if words else "", (each.split()[0],))]
    return nearest(" ".join(words[:2]), similar)


def _drop(cursor: StatementCursor) -> DropSources:
    cursor.usage("DROP SOURCES [IF EXISTS] source [KEEP TABLES] [FORCE];")
    if_exists = cursor.accept("IF", "EXISTS")
    name = cursor.name("source")
    keep_tables = cursor.accept("KEEP", "TABLES")
    force = cursor.accept("FORCE")
    return DropSources(name, if_exists, keep_tables or cursor.accept("KEEP", "TABLES"), force)


def _drop_sink(cursor: StatementCursor) -> DropSink:
    cursor.usage("DROP SINK [IF EXISTS] sink;")
    if_exists = cursor.accept("IF", "EXISTS")
    return DropSink(cursor.name("sink"), if_exists)


def _verify(cursor: StatementCursor) -> Verify:
    cursor.usage("VERIFY source[.table];")
    source, *table = _name(cursor, "source", 1, 3)
    return Verify(source, ".".join(table) or None)


def _name(cursor: StatementCursor, of: str, least: int, most: int) -> list[str]:
    """Consume a dotted name of `least` to `most` parts."""
    parts = [cursor.name(of)]
    while len(parts) < most and cursor.accept("."):
        parts.append(cursor.part())
    if len(parts) < least:
        cursor.expect(".")
    return parts


def _table(cursor: StatementCursor) -> str:
    """Consume ``table`` or ``schema.table``; return it as the catalog prints it."""
    parts = _name(cursor, "table", 1, 2)
    return parts[0] if len(parts) == 1 else str(TableName(*parts))


_REPAIR_USAGE = "REPAIR source.table [WHERE { KEY IN (key, …) | condition }];"


def read_repair(cursor: StatementCursor) -> RepairRows:
    """Read the rest of a ``REPAIR`` statement."""
    cursor.usage(_REPAIR_USAGE)
    source = cursor.name("source")
    cursor.expect(".")
    table = [cursor.part()]
    if cursor.accept("."):
        table.append(cursor.part())
    if not cursor.accept("WHERE"):
        return RepairRows(source, ".".join(table))
    if cursor.accept("KEY", "IN"):
        return RepairRows(source, ".".join(table), keys=_keys(cursor))
    if cursor.is_at_end():
        what = "a condition"
        raise cursor.expected(what)
    return RepairRows(source, ".".join(table), where=cursor.rest())


def _keys(cursor: StatementCursor) -> list[Any]:
    """Read ``(1, 'x')`` or ``((1, 'x'), (2, 'y'))``."""
    cursor.expect("(")
    keys = [_key(cursor)]
    while cursor.accept(","):
        keys.append(_key(cursor))
    cursor.expect(")")
    return keys


def _key(cursor: StatementCursor) -> Any:
    if not cursor.accept("("):
        return _value(cursor)
    values = [_value(cursor)]
    while cursor.accept(","):
        values.append(_value(cursor))
    cursor.expect(")")
    return values


def _value(cursor: StatementCursor) -> Any:
    if cursor.is_text():
        return cursor.text()
    for word, value in (("TRUE", True), ("FALSE", False)):
        if cursor.accept(word):
            return value
    if cursor.words():
        what = "a key value"
        raise cursor.expected(what)
    return cursor.number()


_CREATE_USAGE = "CREATE SOURCES [IF NOT EXISTS] source FROM kind … [WITH (option = value, …)];"
_REQUIRED = "a required option is missing"
_Describe = Callable[[BaseModel, BaseModel], object]
"""Validates the options before and after WITH together."""
_ALLOW = Option("allow_literal_secrets", ("ALLOW", "LITERAL", "SECRETS"), Flag(), FieldInfo(annotation=bool))
_LITERAL_HINT = f'Use a reference, {Secret.form}, or set option "{_ALLOW.setting}" to true.'


def read_create(cursor: StatementCursor, kinds: Mapping[str, Written]) -> CreateSource:
    """Read the rest of a ``CREATE SOURCES`` statement."""
    cursor.usage(_CREATE_USAGE)
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("source")
    cursor.expect("FROM")
    place = cursor.place()
    kind = _kind(cursor, kinds, "source")
    cursor.usage(f"CREATE SOURCES {name} FROM {kind.NAME} … [WITH (option = value, …)];")
    describe = getattr(kind, "from_options", None)
    checked = partial(describe, name) if describe is not None and is_name(name) else None
    options = _read_options(cursor, kind, f"a {kind.NAME} source", place, checked)
    return CreateSource(name, kind.NAME, *options[:2], if_not_exists, options[2])


_CREATE_SINK_USAGE = "CREATE SINK [IF NOT EXISTS] sink FROM source[.table] INTO kind … [WITH (option = value, …)];"


def read_create_sink(cursor: StatementCursor) -> CreateSink:
    """Read the rest of a ``CREATE SINK`` statement."""
    cursor.usage(_CREATE_SINK_USAGE)
    if_not_exists = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.name("sink")
    cursor.expect("FROM")
    source, *parts = _name(cursor, "source", 1, 3)
    table = ".".join(parts) or None
    cursor.expect("INTO")
    place = cursor.place()
    kind = _kind(cursor, _SINK_KINDS, "sink")
    cursor.usage(f"CREATE SINK {name} FROM {'.'.join([source, *parts])} INTO {kind.NAME} … [WITH (option = value, …)];")
    checked = partial(KafkaSink.from_options, name, source, table) if is_name(name) else None
    options = _read_options(cursor, kind, f"a {kind.NAME} sink", place, checked)
    return CreateSink(name, source, table, kind.NAME, *options[:2], if_not_exists, options[2])


def _read_options(
    cursor: StatementCursor, kind: Written, what: str, place: int, describe: _Describe | None
) -> tuple[BaseModel, BaseModel, dict[str, SecretStr]]:
    """Read the clauses and settings of a source or sink to the end; return both models, and literal secrets."""
    clauses = read_clauses(cursor, options_of(kind.SqlOptions))
    has_settings = cursor.accept("WITH")
    accepted = Settings(_settings_of(kind), what, options_of(kind.SqlOptions), _unsupported_by(kind))
    settings = read_settings(cursor, accepted) if has_settings else {}
    if not cursor.is_at_end():
        raise _misplaced(cursor, kind, has_settings=has_settings)
    secrets = _secrets(cursor, {**clauses, **settings}, settings)
    clauses, settings = _without(clauses, secrets), _without(settings, secrets)
    fields = kind.WithOptions.model_fields
    sql_options = validated(cursor, kind.SqlOptions, options_of(kind.SqlOptions), clauses, what, place, fields)
    with_options = validated(cursor, kind.WithOptions, options_of(kind.WithOptions), settings, what, place)
    if describe is not None:
        _check_together(cursor, kind, describe, clauses, settings, place)
    return sql_options, with_options, secrets


def _check_together(
    cursor: StatementCursor,
    kind: Written,
    describe: _Describe,
    clauses: Mapping[str, Given],
    settings: Mapping[str, Given],
    place: int,
) -> None:
    """Report incompatible options before and after WITH, at the value whose removal resolves this.

    Names are not validated here, but when the source or sink is created.
    """
    error = _conflict(kind, describe, clauses, settings)
    if error is None:
        return
    given = {**settings, **clauses}
    left = {field: _conflict(kind, describe, _except(clauses, field), _except(settings, field)) for field in given}
    resolved = [field for field, other in left.items() if other is None]
    same = (error.message, _REQUIRED)
    changed = [field for field, other in left.items() if other is not None and other.message not in same]
    fault = next(iter([*resolved, *changed]), None)
    fields = {*kind.SqlOptions.model_fields, *kind.WithOptions.model_fields}
    raise located(cursor, error, fields, place if fault is None else given[fault].place)


def _conflict(
    kind: Written, describe: _Describe, clauses: Mapping[str, Given], settings: Mapping[str, Given]
) -> UsageError | None:
    """Return the error of a source or sink with these options; None if it is valid."""
    sql, with_ = ({field: each.value for field, each in given.items()} for given in (clauses, settings))
    try:
        describe(kind.SqlOptions.model_validate(sql), kind.WithOptions.model_validate(with_))
    except UsageError as error:
        return error
    except ValidationError:
        return UsageError(_REQUIRED)  # it is the removed one
    return None


def _except(given: Mapping[str, Given], removed: str) -> dict[str, Given]:
    return {field: each for field, each in given.items() if field != removed}


def _unsupported_by(*kinds: Written) -> dict[str, tuple[str, str]]:
    """Return the options of other systems that these kinds reject with a reason."""
    return {name: why for kind in kinds for name, why in getattr(kind, "UNSUPPORTED", {}).items()}


def read_alter_set(cursor: StatementCursor, source: str, kinds: Mapping[str, Written]) -> AlterSet:
    """Read the options of ``ALTER SOURCES source SET``: those of any kind of source."""
    cursor.usage("ALTER SOURCES source SET (option = value, …);")
    return AlterSet(source, *_read_altered(cursor, kinds, "a source"))


def read_alter_sink(cursor: StatementCursor) -> AlterSink | RetrySink:
    """Read the rest of an ``ALTER SINK`` statement."""
    cursor.usage(_ALTER_SINK)
    sink = cursor.name("sink")
    if cursor.accept("RETRY"):
        return RetrySink(sink)
    if cursor.accept("SET"):
        return AlterSink(sink, *_read_altered(cursor, _SINK_KINDS, "a sink"))
    raise cursor.unmatched(("RETRY", "SET"), f"Syntax: {_ALTER_SINK}")


def _read_altered(
    cursor: StatementCursor, kinds: Mapping[str, Written], of: str
) -> tuple[dict[str, Any], dict[str, SecretStr], dict[str, Position]]:
    """Read options of any of these kinds to the end; return values, literal secrets, and the position of each value."""
    options = {option.field: option for kind in kinds.values() for option in reversed(_alterable_of(kind))}
    place = cursor.place()
    settings = read_settings(
        cursor, Settings(tuple(options.values()), of, unsupported=_unsupported_by(*kinds.values()))
    )
    if not settings:
        what = "an option name"
        raise cursor.expected(what, place=place + 1)
    cursor.ends()
    secrets = _secrets(cursor, settings, settings)
    positions = {field: cursor.position(each.place) for field, each in settings.items()}
    return {field: each.value for field, each in _without(settings, secrets).items()}, secrets, positions


def _kind(cursor: StatementCursor, kinds: Mapping[str, Written], of: str) -> Written:
    for kind in sorted(kinds.values(), key=lambda each: -len(each.NAME.split())):
        if cursor.accept(*kind.NAME.upper().split()):
            return kind
    names = [kind.NAME for kind in kinds.values()]
    words = " ".join(cursor.words()[:1])
    if not words:
        what = f"a {of} kind"
        raise cursor.expected(what, f"Use {alternatives(names)}.")
    message = f'unrecognized {of} kind "{words}"'
    raise cursor.error(message, longer(words, names) or nearest(words, names) or f"Use {alternatives(names)}.")


def _misplaced(cursor: StatementCursor, kind: Written, *, has_settings: bool) -> UsageError:
    """Return the error for text that is neither a clause nor the end of the statement."""
    if has_settings:
        return cursor.expected("end of statement", "Put clauses before WITH, and all options in one WITH.")
    words = cursor.words()
    for option in _settings_of(kind):
        if words[: len(option.words)] == option.words:
            setting = f"WITH ({option.setting} = {option.syntax.form})"
            return cursor.expected(hint=f'"{option.setting}" is an option, not a clause. Write: {setting}')
    return unknown_clause(cursor)


def _settings_of(kind: Written) -> Sequence[Option]:
    """Return the options in WITH, and ``allow literal secrets`` if the kind has secrets."""
    settings = tuple(option for option in options_of(kind.WithOptions) if option.field != _ALLOW.field)
    clauses = options_of(kind.SqlOptions)
    has_secrets = any(isinstance(option.syntax, Secret) for option in (*settings, *clauses))
    return (*settings, _ALLOW) if has_secrets else settings


def _alterable_of(kind: Written) -> Sequence[Option]:
    """Return the options in WITH, and the clauses that ALTER can change."""
    changeable: frozenset[str] = getattr(kind, "ALTERABLE", frozenset())
    return (*_settings_of(kind), *(clause for clause in options_of(kind.SqlOptions) if clause.field in changeable))


def _secrets(
    cursor: StatementCursor, given: Mapping[str, Given], settings: Mapping[str, Given]
) -> dict[str, SecretStr]:
    """Return the literal secrets; raise an error unless the statement allows them."""
    literal = {field: each for field, each in given.items() if isinstance(each.value, SecretStr)}
    allowed = _ALLOW.field in settings and settings[_ALLOW.field].value
    for each in literal.values():
        if not allowed:
            message = f"{each.label} contains a literal secret"
            raise cursor.error(message, _LITERAL_HINT, each.place)
    return {field: each.value for field, each in literal.items()}


def _without(given: Mapping[str, Given], secrets: Mapping[str, Any]) -> dict[str, Given]:
    return {field: each for field, each in given.items() if field not in secrets and field != _ALLOW.field}
