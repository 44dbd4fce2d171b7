"""Placeholders: what Debezium writes for a large value that did not change, and that Postgres therefore did not send.

Without REPLICA IDENTITY FULL, an update leaves out values that are stored apart (TOAST) and stay as they are. Debezium
puts a mark in their place, by the type of the column: a text, its bytes, its bytes as numbers, a uuid made from it. A
record with one is refused, and names the column; a mark is never taken for a value.

The value that the table has already is not taken instead. It is the right one only if that row is there and came
before: not where a key changed (the row stands at the old one), not where the topic was compacted, and not in a replay,
which goes back to before a row was deleted.

For numerics, and for arrays of other types than those below, Debezium writes null. That cannot be told from a null that
was sent: such columns need REPLICA IDENTITY FULL in any case.
"""

from __future__ import annotations

import base64
import hashlib
import uuid

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

__all__ = ["unavailable"]

_MARK = "__debezium_unavailable_value"
_BYTES = _MARK.encode()
_IN_JSON = base64.b64encode(_BYTES).decode()
_UUID = str(uuid.UUID(bytes=hashlib.md5(_BYTES, usedforsecurity=False).digest(), version=3))
_TEXTS = (_MARK, _IN_JSON, f'{{"{_MARK}":"{_MARK}"}}')


def unavailable(row: Column, kind: StructType) -> Column:
    """Say of a row that Debezium did not know the value of a column; null where it knew all."""
    found = F.lit(None).cast("string")
    for field in reversed(kind.fields):
        mark = _is_mark(row.getField(field.name), field.dataType)
        if mark is not None:
            text = (
                f"the column {field.name!r} was not sent, because it is large and did not change: "
                "ALTER TABLE … REPLICA IDENTITY FULL upstream, and write the topic anew"
            )
            found = F.when(mark, F.lit(text)).otherwise(found)
    return found


def _is_mark(value: Column, kind: DataType) -> Column | None:
    """Whether a value is the mark for its type; None for types that have no mark."""
    if isinstance(kind, StringType):
        return value.isin(*_TEXTS)
    if isinstance(kind, BinaryType):
        return value == F.lit(_BYTES)
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return F.map_contains_key(value, _MARK)
    return _is_array_mark(value, kind.elementType) if isinstance(kind, ArrayType) else None


def _is_array_mark(value: Column, item: DataType) -> Column | None:
    if isinstance(item, StringType):
        return F.arrays_overlap(value, F.array(*map(F.lit, (_MARK, _IN_JSON, _UUID))))
    if isinstance(item, BinaryType):
        return F.array_contains(value, F.lit(_BYTES))
    numbers = [F.lit(byte) for byte in _BYTES]
    if isinstance(item, DateType):
        return value == F.array(*map(F.date_from_unix_date, numbers))
    if isinstance(item, IntegerType | LongType):
        return value == F.array(*(number.cast(item) for number in numbers))
    return None
