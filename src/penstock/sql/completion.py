"""Tab completion of statements: keywords, options, names of sources, tables and sinks.

Completion has no grammar of its own. It parses the text before the word being typed; at the end of that text, the
cursor has recorded everything that the grammar would have accepted. Queries belong to Spark: for them, completion
offers names of sources and tables, and a few keywords.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.errors import UsageError
from penstock.sql.cursor import StatementCursor
from penstock.sql.grammar import is_penstock_statement, read_statement
from penstock.sql.script import split_statements
from penstock.sql.syntax.names import written_name
from penstock.sql.syntax.options import Written

__all__ = ["KnownNames", "candidates"]

_TYPED_BACKWARDS = re.compile(r"""[^\s(),;='"`.]*""")
_LONGEST_NAME = 300
_SOURCE_PREFIX = re.compile(r"""(?:^|[\s,(])(?:"([^"]+)"|`([^`]+)`|(\w+))\s*\.\s*\Z""")
_TABLES_FOLLOW = re.compile(r"(?:\bFROM|\bJOIN|,)\s*\Z", re.IGNORECASE)
_QUERY_KEYWORDS = ("SELECT", "FROM", "JOIN", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "AS OF TIMESTAMP", "AS OF LSN")


@dataclass(frozen=True)
class KnownNames:
    """The names that can be completed: sources, the tables of each, and sinks."""

    tables: Mapping[str, Collection[str]] = field(default_factory=dict)
    sinks: Collection[str] = ()
    status: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The tables of the status, which only queries can name."""


def candidates(text: str, kinds: Mapping[str, Written], known: KnownNames) -> list[str]:
    """Return the completions of the word at the end of `text`, sorted; none inside a string or a comment."""
    typed = _TYPED_BACKWARDS.match(text[::-1])
    assert typed is not None, "the pattern matches the empty string"
    before, word = text[: len(text) - typed.end()], typed[0][::-1]
    pieces = list(split_statements(before))
    statement = "" if not pieces or before.rstrip().endswith(";") else pieces[-1].text
    found = _completions(statement, kinds, known)
    return sorted({each for each in found if each.upper().startswith(word.upper()) and each != word})


def _completions(statement: str, kinds: Mapping[str, Written], known: KnownNames) -> list[str]:
    try:
        cursor = StatementCursor(statement)
    except UsageError:
        return []  # inside a string or a comment
    if source := _SOURCE_PREFIX.search(statement[-_LONGEST_NAME:]):
        name = source[1] or source[2] or source[3]
        return [written_name(table) for table in {**known.status, **known.tables}.get(name, ())]
    ours = _expected(cursor, statement, kinds, known)
    if is_penstock_statement(statement):
        return ours
    if not statement:
        return [*ours, "SELECT", "WITH"]
    if _TABLES_FOLLOW.search(statement[-_LONGEST_NAME:]):
        return [written_name(source) for source in (*known.tables, *known.status)]
    return ours or list(_QUERY_KEYWORDS)


def _expected(cursor: StatementCursor, statement: str, kinds: Mapping[str, Written], known: KnownNames) -> list[str]:
    """Return what the grammar accepts at the end of the statement."""
    with contextlib.suppress(UsageError):
        read_statement(cursor, kinds)
        cursor.offer(";")
    words = set(re.findall(r"\w+", statement))
    mentioned = [source for source in known.tables if source in words]
    tables = {table for source in mentioned for table in known.tables[source]}
    names = {"source": list(known.tables), "table": list(tables), "sink": list(known.sinks)}
    listed = [written_name(name) for kind in cursor.named() for name in names.get(kind, ())]
    return [*listed, *cursor.offered()]
