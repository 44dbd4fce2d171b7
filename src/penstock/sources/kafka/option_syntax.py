"""The SQL syntax of Kafka options that their types alone do not determine: words, columns, and special clauses.

Columns are written as ``(id bigint, tags array<string>, place struct<x: double, y: double>)``, with types of Spark SQL.
They are kept as text in one spelling, so that equal columns are equal options; `ddl` joins them in the form that
`penstock.formats` reads.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

from penstock.sources import syntax
from penstock.sources.cursor import Cursor
from penstock.sources.name_syntax import written_name
from penstock.sources.syntax import Listed, Number, Syntax

__all__ = [
    "Columns",
    "ColumnsOrCount",
    "EnvelopeText",
    "GivenColumn",
    "Offsets",
    "SecretText",
    "Word",
    "column_of",
    "ddl",
]

_BEGINNINGS = syntax.Choice(("earliest", "latest"))
_LIST = syntax.Listed(syntax.Number(whole=True))
_ENVELOPES = ("DEBEZIUM UPSERT", "DEBEZIUM", "UPSERT", "NONE")


@dataclass(frozen=True)
class SecretText(syntax.Secret):
    """``'env:NAME'``: a reference, which the option holds as a `Secret`."""

    def write(self, value: Any) -> str:
        """Write where it is; one that nobody has kept is refused."""
        return syntax.written_text(value.reference)


@dataclass(frozen=True)
class Offsets(syntax.Syntax):
    """``'earliest'``, ``'latest'`` or ``(0, 17)``."""

    form = f"{_BEGINNINGS.form} or {_LIST.form}"

    def read(self, cursor: Cursor) -> Any:
        """Take the word or the list."""
        return (_BEGINNINGS if cursor.is_text() or cursor.words() else _LIST).read(cursor)

    def write(self, value: Any) -> str:
        """Write the word or the list."""
        return _LIST.write(value) if isinstance(value, tuple) else _BEGINNINGS.write(value)


@dataclass(frozen=True)
class EnvelopeText(syntax.Syntax):
    """``DEBEZIUM TRANSACTION METADATA (TOPIC 'name')``, or another envelope."""

    form = "NONE | UPSERT | DEBEZIUM UPSERT | DEBEZIUM [TRANSACTION METADATA (TOPIC 'text')]"

    def read(self, cursor: Cursor) -> dict[str, str | None]:
        """Take the envelope, as the fields of its model."""
        kind = next((words for words in _ENVELOPES if cursor.takes(*words.split())), None)
        if kind is None:
            raise cursor.expected(self.form)
        return {"kind": kind.lower(), "transaction_metadata_topic": _transactions(cursor)}

    def write(self, value: Any) -> str:
        """Write the envelope."""
        topic = value.transaction_metadata_topic
        transactions = f" TRANSACTION METADATA (TOPIC {syntax.written_text(topic)})" if topic else ""
        return f"{value.kind.value.upper()}{transactions}"


def _transactions(cursor: Cursor) -> str | None:
    if not cursor.takes("TRANSACTION", "METADATA"):
        return None
    cursor.expects("(")
    cursor.expects("TOPIC")
    topic = cursor.text()
    cursor.expects(")")
    return topic


class Word(enum.StrEnum):
    """An enum whose values may be written in upper or lower case: ``SASL_SSL`` and ``sasl_ssl`` are the same."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        wanted = value.casefold() if isinstance(value, str) else None
        return next((word for word in cls if word.value.casefold() == wanted), None)


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
        """Take the name and the type; whether there is such a type is for the option to say."""
        return GivenColumn(cursor.name("column"), _type(cursor))

    def write(self, value: GivenColumn) -> str:
        """Quote the name where it needs that."""
        return f"{written_name(value.name)} {value.type}"


@dataclass(frozen=True)
class Columns(Listed):
    """``(id bigint, name string)``."""

    item: Syntax = _Column()


@dataclass(frozen=True)
class ColumnsOrCount(Syntax):
    """``(id bigint, name string)``, or how many there are."""

    form = f"{Columns().form} or {Number(whole=True).form}"

    def read(self, cursor: Cursor) -> Any:
        """Take the list where one begins, else the number."""
        if not cursor.takes("("):
            return Number(whole=True).read(cursor)
        return tuple(_several(cursor, _Column().read, ")"))

    def write(self, value: Any) -> str:
        """Write the list, or the number."""
        return Columns().write(value) if isinstance(value, tuple) else Number(whole=True).write(value)


def column_of(text: str) -> GivenColumn:
    """Read ``name type``, as Python programs give it; the name ends at the first blank."""
    name, _, kind = text.strip().partition(" ")
    return GivenColumn(name, kind.strip())


def ddl(columns: Iterable[GivenColumn]) -> str:
    """Put columns together as SQL has them, every name in backticks."""
    return ", ".join(f"{_backticked(column.name)} {column.type}" for column in columns)


def _type(cursor: Cursor, depth: int = 0) -> str:
    word = _word(cursor, depth)
    if word == "struct" and cursor.takes("<"):
        return f"struct<{', '.join(_several(cursor, partial(_field, depth=depth), '>'))}>"
    if word in ("array", "map") and cursor.takes("<"):
        return f"{word}<{', '.join(_several(cursor, partial(_type, depth=depth + 1), '>'))}>"
    if not cursor.takes("("):
        return word
    digits = [cursor.number()]
    while cursor.takes(","):
        digits.append(cursor.number())
    cursor.expects(")")
    return f"{word}({', '.join(digits)})"


def _several(cursor: Cursor, read: Callable[[Cursor], _Read], end: str) -> list[_Read]:
    """Take what stands between commas, up to the bracket that ends it."""
    found = [read(cursor)]
    while cursor.takes(","):
        found.append(read(cursor))
    cursor.expects(end)
    return found


def _word(cursor: Cursor, depth: int) -> str:
    """Take the name of a type."""
    place = cursor.place()
    if depth > _DEEPEST:
        message = f"this type has more than {_DEEPEST} others around it"
        raise cursor.wrong(message, "Take what is in there as text: string.", place)
    word = cursor.name("type").lower()
    if not _WORD.fullmatch(word):
        message = "this is not the name of a type"
        raise cursor.wrong(message, "Write one of Spark SQL's, like bigint, string or array<string>.", place)
    return word


def _field(cursor: Cursor, depth: int) -> str:
    name = cursor.part()
    cursor.takes(":")
    return f"{_backticked(name)}: {_type(cursor, depth + 1)}"


def _backticked(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
