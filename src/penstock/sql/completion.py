"""What could come next, where somebody types a statement: words, options, names of sources and tables.

There is no second grammar here. The text before the word that is being typed is given to the grammar, which notes at
its end what it would have taken. A query is Spark's: there, names of sources and tables are known, and little else.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.errors import UsageError
from penstock.sources.name_syntax import written_name
from penstock.sources.option_syntax import Written
from penstock.sql.cursor import StatementCursor
from penstock.sql.grammar import is_ours, read_statement
from penstock.sql.script import divided

__all__ = ["Known", "candidates"]

_TYPED_BACKWARDS = re.compile(r"""[^\s(),;='"`.]*""")
_LONGEST_NAME = 300
_OF_A_SOURCE = re.compile(r"""(?:^|[\s,(])(?:"([^"]+)"|`([^`]+)`|(\w+))\s*\.\s*\Z""")
_TABLES_FOLLOW = re.compile(r"(?:\bFROM|\bJOIN|,)\s*\Z", re.IGNORECASE)
_QUERY = ("SELECT", "FROM", "JOIN", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "AS OF TIMESTAMP", "AS OF LSN")


@dataclass(frozen=True)
class Known:
    """The names that can be typed: sources, and the tables of each."""

    tables: Mapping[str, Collection[str]] = field(default_factory=dict)


def candidates(text: str, kinds: Mapping[str, Written], known: Known) -> list[str]:
    """Return what could stand in the place of the word at the end of `text`, sorted; nothing within a text."""
    typed = _TYPED_BACKWARDS.match(text[::-1])
    assert typed is not None, "it also matches nothing"
    before, word = text[: len(text) - typed.end()], typed[0][::-1]
    pieces = list(divided(before))
    statement = "" if not pieces or before.rstrip().endswith(";") else pieces[-1].text
    found = _possible(statement, kinds, known)
    return sorted({each for each in found if each.upper().startswith(word.upper()) and each != word})


def _possible(statement: str, kinds: Mapping[str, Written], known: Known) -> list[str]:
    try:
        cursor = StatementCursor(statement)
    except UsageError:
        return []  # within a text, or a comment
    if source := _OF_A_SOURCE.search(statement[-_LONGEST_NAME:]):
        name = source[1] or source[2] or source[3]
        return [written_name(table) for table in known.tables.get(name, ())]
    ours = _expected(cursor, statement, kinds, known)
    if is_ours(statement):
        return ours
    if not statement:
        return [*ours, "SELECT", "WITH"]
    if _TABLES_FOLLOW.search(statement[-_LONGEST_NAME:]):
        return [written_name(source) for source in known.tables]
    return ours or list(_QUERY)


def _expected(cursor: StatementCursor, statement: str, kinds: Mapping[str, Written], known: Known) -> list[str]:
    """Ask the grammar what it would take at the end."""
    with contextlib.suppress(UsageError):
        read_statement(cursor, kinds)
        cursor.offers(";")
    said = set(re.findall(r"\w+", statement))
    mentioned = [source for source in known.tables if source in said]
    tables = {table for source in mentioned for table in known.tables[source]}
    names = {"source": list(known.tables), "table": list(tables)}
    listed = [written_name(name) for kind in cursor.named() for name in names.get(kind, ())]
    return [*listed, *cursor.offered()]
