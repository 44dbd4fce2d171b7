"""The grammar of our statements: what Spark SQL does not know. Anything else is a query, for Spark to read.

::

    text ─▶ its first words ─▶ ours?  ─ no ─▶ None: a query
                                 │ yes, or nearly
                                 ▼
                 cursor ─▶ one reader per verb ─▶ a statement, a value

Where the first words are nearly those of a statement of ours, and Spark has none like them, the error is ours, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches

from penstock.errors import UsageError
from penstock.nearest import nearest
from penstock.sources.name_syntax import dotted_text
from penstock.sources.option_syntax import Written
from penstock.sql.create import read_alter_set, read_create
from penstock.sql.cursor import StatementCursor
from penstock.sql.excerpt import Beginning
from penstock.sql.repair import read_repair
from penstock.sql.statements import (
    AcceptInterference,
    AddTable,
    DropSources,
    DropTable,
    Explain,
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
from penstock.sql.tokens import after_blanks, leading_words

__all__ = ["is_ours", "parse", "read_statement"]

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
