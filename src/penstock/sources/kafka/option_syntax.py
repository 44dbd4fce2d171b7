"""The SQL syntax of the options of a Kafka source that their types alone do not determine.

Columns and special clauses have a syntax of their own. Columns are written as
``(id bigint, tags array<string>, place struct<x: double, y: double>)``, with Spark SQL types. They are stored as
normalized text, so that equal columns are equal options; `ddl` joins them in the form that `penstock.formats` parses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from penstock.name_suggestions import nearest
from penstock.sql.syntax import values as syntax
from penstock.sql.syntax.names import written_name
from penstock.sql.syntax.values import Cursor, Listed, Number, Syntax

__all__ = [
    "UNSUPPORTED",
    "Columns",
    "ColumnsOrCount",
    "EnvelopeText",
    "GivenColumn",
    "Offsets",
    "column_of",
    "ddl",
]

_BEGINNINGS = syntax.Choice(("earliest", "latest"))
_LIST = syntax.Listed(syntax.Number(whole=True))
_ENVELOPES = ("DEBEZIUM UPSERT", "DEBEZIUM", "UPSERT", "NONE")


@dataclass(frozen=True)
class Offsets(syntax.Syntax):
    """``'earliest'``, ``'latest'`` or ``(0, 17)``."""

    form = syntax.alternatives((*map(syntax.written_text, _BEGINNINGS.values), _LIST.form))

    def read(self, cursor: Cursor) -> Any:
        """Parse the word or the list."""
        return (_BEGINNINGS if cursor.is_text() or cursor.words() else _LIST).read(cursor)

    def write(self, value: Any) -> str:
        """Write the word or the list."""
        return _LIST.write(value) if isinstance(value, tuple) else _BEGINNINGS.write(value)


@dataclass(frozen=True)
class EnvelopeText(syntax.Syntax):
    """``DEBEZIUM TRANSACTION METADATA (TOPIC 'name')``, or another envelope."""

    form = "{ NONE | UPSERT | DEBEZIUM UPSERT | DEBEZIUM [TRANSACTION METADATA (TOPIC 'string')] }"

    def read(self, cursor: Cursor) -> dict[str, str | None]:
        """Parse the envelope into the fields of its model."""
        kind = next((words for words in _ENVELOPES if cursor.accept(*words.split())), None)
        if kind is None:
            names = tuple(reversed(_ENVELOPES))
            near = nearest(" ".join(cursor.words()[:1]), names)
            raise cursor.expected(hint=near or f"Expected {syntax.alternatives(names)}.")
        return {"kind": kind.lower(), "transaction_metadata_topic": _transactions(cursor)}

    def write(self, value: Any) -> str:
        """Write the envelope."""
        topic = value.transaction_metadata_topic
        transactions = f" TRANSACTION METADATA (TOPIC {syntax.written_text(topic)})" if topic else ""
        return f"{value.kind.value.upper()}{transactions}"


def _transactions(cursor: Cursor) -> str | None:
    if not cursor.accept("TRANSACTION", "METADATA"):
        return None
    cursor.expect("(")
    cursor.expect("TOPIC")
    topic = cursor.text()
    cursor.expect(")")
    return topic


# -- columns -----------------------------------------------------------------------------------------------------------

_WORD = re.compile(r"[a-z_][a-z0-9_]*")
_DEEPEST = 20
_Read = TypeVar("_Read")


@dataclass(frozen=True)
class GivenColumn:
    """A column, and the text of its type."""

    name: str
    type: str


@dataclass(frozen=True)
class _Column(Syntax):
    """``name type``."""

    form = "name type"

    def read(self, cursor: Cursor) -> GivenColumn:
        """Parse the name and the type; the option validates the type."""
        return GivenColumn(cursor.name("column"), _type(cursor))

    def write(self, value: GivenColumn) -> str:
        """Write the column; quote the name if needed."""
        return f"{written_name(value.name)} {value.type}"


@dataclass(frozen=True)
class Columns(Listed):
    """``(id bigint, name string)``."""

    item: Syntax = _Column()


@dataclass(frozen=True)
class ColumnsOrCount(Syntax):
    """``(id bigint, name string)``, or the number of columns."""

    form = syntax.alternatives((Columns().form, Number(whole=True).form))

    def read(self, cursor: Cursor) -> Any:
        """Parse the list if there is a bracket, otherwise the number."""
        if not cursor.accept("("):
            return Number(whole=True).read(cursor)
        return tuple(_several(cursor, _Column().read, ")"))

    def write(self, value: Any) -> str:
        """Write the list, or the number."""
        return Columns().write(value) if isinstance(value, tuple) else Number(whole=True).write(value)


def column_of(text: str) -> GivenColumn:
    """Parse ``name type``, as Python programs pass it; the name ends at the first space."""
    name, _, kind = text.strip().partition(" ")
    return GivenColumn(name, kind.strip())


def ddl(columns: Iterable[GivenColumn]) -> str:
    """Return columns as SQL DDL, with every name in backticks."""
    return ", ".join(f"{_backticked(column.name)} {column.type}" for column in columns)


def _type(cursor: Cursor, depth: int = 0) -> str:
    word = _word(cursor, depth)
    if word == "struct" and cursor.accept("<"):
        return f"struct<{', '.join(_several(cursor, partial(_field, depth=depth), '>'))}>"
    if word in ("array", "map") and cursor.accept("<"):
        return f"{word}<{', '.join(_several(cursor, partial(_type, depth=depth + 1), '>'))}>"
    if not cursor.accept("("):
        return word
    digits = [cursor.number()]
    while cursor.accept(","):
        digits.append(cursor.number())
    cursor.expect(")")
    return f"{word}({', '.join(digits)})"


def _several(cursor: Cursor, read: Callable[[Cursor], _Read], end: str) -> list[_Read]:
    """Parse items between commas, up to the closing bracket."""
    found = [read(cursor)]
    while cursor.accept(","):
        found.append(read(cursor))
    cursor.expect(end)
    return found


def _word(cursor: Cursor, depth: int) -> str:
    """Parse the name of a type."""
    place = cursor.place()
    if depth > _DEEPEST:
        message = f"type is nested more than {_DEEPEST} levels deep"
        raise cursor.error(message, "Use string for the nested value.", place)
    word = cursor.name("type").lower()
    if not _WORD.fullmatch(word):
        what = "a type name"
        raise cursor.expected(what, "Use a Spark SQL type, such as bigint, string or array<string>.", place)
    return word


def _field(cursor: Cursor, depth: int) -> str:
    name = cursor.part()
    cursor.accept(":")
    return f"{_backticked(name)}: {_type(cursor, depth + 1)}"


def _backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# -- options of other systems ------------------------------------------------------------------------------------------

UNSUPPORTED: dict[str, tuple[str, str]] = {
    "cache": ("messages are always stored in the tables of the source", "Remove the option."),
    "enable_auto_commit": (
        "a source resumes from the position stored with its output, and Spark's Kafka reader commits no offsets",
        "Remove the option. Run penstock status to see the progress of a source.",
    ),
    "ignore_source_keys": (
        "whether a table has a key depends on ENVELOPE alone",
        "Remove the option. Use ENVELOPE NONE for a table without a key.",
    ),
}
"""Options of other systems that a Kafka source does not have: the reason and the hint."""
