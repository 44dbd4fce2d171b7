"""What could come next, where somebody types a statement: words, options, names of sources and tables.

There is no second grammar here. The text before the word that is being typed is given to the grammar, which notes at
its end what it would have taken. A query is Spark's: there, names of sources and tables are known, and little else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from penstock.errors import UsageError
from penstock.sources.name_syntax import written_name
from penstock.sources.option_syntax import Kind
from penstock.sql.cursor import StatementCursor
from penstock.sql.grammar import is_ours, read_statement
from penstock.sql.script import divided
from penstock.sql.tokens import leading_words

__all__ = ["Known", "candidates"]

_TYPED = re.compile(r"""[^\s(),;='"`.]*\Z""")
_SELECTING = ("SELECT", "FROM", "JOIN", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "AS OF TIMESTAMP", "AS OF LSN")
_NAME = re.compile(r"(\w+)\.\Z")
_TABLES_FOLLOW = re.compile(r"(?:\bFROM|\bJOIN|,)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True)
class Known:
    """The names that can be typed: sources, and the tables of each."""

    tables: Mapping[str, Collection[str]] = field(default_factory=dict)


def candidates(text: str, kinds: Mapping[str, Kind], known: Known) -> list[str]:
    """Return what could stand in the place of the word at the end of `text`, sorted; nothing within a text."""
    typed = _TYPED.search(text)
    assert typed is not None, "it also matches nothing"
    before, word = text[: typed.start()], typed[0]
    pieces = list(divided(before))
    statement = "" if not pieces or before.rstrip().endswith(";") else pieces[-1].text
    found = _possible(f"{statement} ", kinds, known, whole=f"{statement} {word}")
    return sorted({each for each in found if each.upper().startswith(word.upper()) and each != word})


def _possible(statement: str, kinds: Mapping[str, Kind], known: Known, whole: str) -> list[str]:
    if _NAME.search(statement.rstrip()) and (source := _NAME.search(statement.rstrip())):
        return [written_name(table) for table in known.tables.get(source[1], ())]
    words = leading_words(statement)
    ours = _expected(statement, kinds, known)
    if not words:
        return [*ours, "SELECT", "WITH"]
    if is_ours(statement) or (ours and not is_ours(whole) and words[0] not in ("SELECT", "WITH")):
        return ours
    names = [written_name(source) for source in known.tables] if _TABLES_FOLLOW.search(statement) else []
    return [*names, *_SELECTING]


def _expected(statement: str, kinds: Mapping[str, Kind], known: Known) -> list[str]:
    """Ask the grammar what it would take at the end."""
    try:
        cursor = StatementCursor(statement)
    except UsageError:
        return []  # within a text, or a comment
    try:
        read_statement(cursor, kinds)
    except UsageError:
        pass
    else:
        cursor.offers(";")
    names = {
        "source": known.tables,
        "table": {table for tables in known.tables.values() for table in tables},
        "schema.table": (),
    }
    listed = [written_name(name) for kind in cursor.named() for name in names.get(kind, ())]
    return [*listed, *cursor.offered()]
