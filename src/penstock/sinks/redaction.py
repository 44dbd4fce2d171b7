"""Redaction of the columns of a sink: values are replaced before messages are built.

| redaction | value | type of the column |
|---|---|---|
| ``null`` | null | unchanged |
| ``fixed:TEXT`` | TEXT | text |
| ``hash`` | HMAC-SHA-256 of the value's text with the key of the sink, as 64 hex digits | text |
| ``last four`` | the value's text, with ``*`` for all characters but the last four | text |

Null stays null, in all of them. Equal values have equal hashes, so consumers can join and count; without the key, a
value cannot be found by hashing all candidates. A text of at most four characters becomes asterisks only. Characters
are Unicode code points.

The text of a value is that of `penstock.sinks.value_formats.value_texts`: what JSON has between the quotes, before
escaping.

**Cost.** A hash is computed once for each distinct value of a batch: its texts are dictionary-encoded, and only the
dictionary passes through Python. All else is Arrow.

The field of a redacted column keeps no metadata, because it may contain values (the default of a column that was
added) and describes a type that the text does not have; with ``null`` it keeps the type.
"""

from __future__ import annotations

import enum
import hmac
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.name_suggestions import nearest
from penstock.sinks.value_formats import value_texts

__all__ = ["Redaction", "RedactionKind"]

_FIXED = "fixed:"
_SHOWN = 4
_TEXT = pa.string()
_TYPE_NAME = b"postgres.type"


class RedactionKind(enum.StrEnum):
    """What replaces a value."""

    NULL = "null"
    FIXED = "fixed"
    HASH = "hash"
    LAST_FOUR = "last four"


@dataclass(frozen=True)
class Redaction:
    """How one column is redacted."""

    kind: RedactionKind
    text: str = ""
    """The replacement, if it is fixed."""

    @classmethod
    def parse(cls, text: str, column: str) -> Self:
        """Parse the option of a column."""
        if text.startswith(_FIXED):
            return cls(RedactionKind.FIXED, text.removeprefix(_FIXED))
        known = [kind.value for kind in RedactionKind if kind is not RedactionKind.FIXED]
        if text not in known:
            message = f'unknown redaction "{text}" of column {column}'
            raise UsageError(message, nearest(text, known) or f"Use one of: {', '.join(known)}, {_FIXED}TEXT.")
        return cls(RedactionKind(text))

    @property
    def keeps_distinct(self) -> bool:
        """Whether different values are different after redaction, as those of a key must be."""
        return self.kind is RedactionKind.HASH

    def field(self, field: pa.Field) -> pa.Field:
        """Return the field of the redacted column."""
        metadata = field.metadata or {}
        if self.kind is RedactionKind.NULL:
            kept = {_TYPE_NAME: metadata[_TYPE_NAME]} if _TYPE_NAME in metadata else None
            return pa.field(field.name, field.type, True, kept)
        if self.kind is RedactionKind.LAST_FOUR and field.type.num_fields:
            message = f'redaction "{self.kind}" cannot be used for column {field.name} of type {field.type}'
            raise UsageError(message, f"Use {RedactionKind.HASH}, {RedactionKind.NULL} or {_FIXED}TEXT.")
        return pa.field(field.name, _TEXT, field.nullable)

    def redact(self, values: pa.Array, column: str, key: bytes | None) -> pa.Array:
        """Return redacted values; `column` is the name for messages, `key` that of hashes."""
        match self.kind:
            case RedactionKind.NULL:
                return pa.nulls(len(values), values.type)
            case RedactionKind.FIXED:
                return pc.if_else(values.is_valid(), pa.scalar(self.text, _TEXT), pa.scalar(None, _TEXT))
            case RedactionKind.HASH:
                assert key, "checked when the sink was created"
                return _hashes(value_texts(values, column), key)
            case RedactionKind.LAST_FOUR:
                return _last_four(value_texts(values, column)).cast(_TEXT)


def _hashes(texts: pa.LargeStringArray, key: bytes) -> pa.StringArray:
    encoded = texts.dictionary_encode()
    keyed = hmac.new(key, digestmod="sha256")

    def digest(text: bytes) -> str:
        one = keyed.copy()
        one.update(text)
        return one.hexdigest()

    distinct = encoded.dictionary.cast(pa.large_binary()).to_pylist()
    return pa.array(map(digest, distinct), _TEXT, size=len(distinct)).take(encoded.indices)


def _last_four(texts: pa.LargeStringArray) -> pa.LargeStringArray:
    sizes = pc.utf8_length(texts)
    is_longer = pc.greater(sizes, _SHOWN)
    stars = pc.binary_repeat(
        pa.scalar("*", texts.type), pc.if_else(is_longer, pc.subtract(sizes, pa.scalar(_SHOWN, sizes.type)), sizes)
    )
    shown = pc.if_else(is_longer, pc.utf8_slice_codeunits(texts, -_SHOWN), pa.scalar("", texts.type))
    return pc.binary_join_element_wise(stars, shown, pa.scalar("", texts.type))
