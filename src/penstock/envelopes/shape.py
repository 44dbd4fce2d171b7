"""The table that messages make: its columns, its key, and its rows from a key and a value.

A table has the columns of the value, and before them those of the key that the value does not have. A field that is in
both is one column, and the two must be equal: a message whose value contradicts its key is refused. Columns have the
types that decoding gave them: logical types of Connect and Debezium are converted by then
(`penstock.formats.logical_types`).

Placeholders: what Debezium writes for a large value that did not change, and that Postgres therefore did not send.

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
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock.errors import UsageError
from penstock.model import TableName, TableSchema

__all__ = ["Shape", "contradiction", "holds_map", "key_problem", "keyed_shape", "quoted", "unavailable", "value_shape"]


@dataclass(frozen=True)
class Shape:
    """The columns of a table, as Spark types, and which of them form its key."""

    columns: StructType
    key: tuple[str, ...]

    def schema(self, table: TableName) -> TableSchema:
        """Return the same as the rest of Penstock knows it."""
        return TableSchema(table, pa.schema(list(to_arrow_type(self.columns, timezone="UTC"))), self.key)

    def row(self, key: Column, value: Column) -> Column:
        """Return a whole row."""
        return F.struct(*((key if f.name in self.key else value).getField(f.name).alias(f.name) for f in self.columns))

    def whole(self, value: Column) -> Column:
        """Return a row of which all columns are in the value."""
        return F.struct(*(value.getField(field.name).alias(field.name) for field in self.columns))

    def key_alone(self, key: Column) -> Column:
        """Return a row that is null but for its key."""
        return F.struct(
            *((key.getField(f.name) if f.name in self.key else _null(f)).alias(f.name) for f in self.columns)
        )


def value_shape(value: StructType) -> Shape:
    """Return the table of values alone, which has no key."""
    return Shape(_columns(value), ())


def keyed_shape(key: StructType, value: StructType) -> Shape:
    """Return the table of rows that are found by the key of their message."""
    if not key.fields:
        message = "keys of messages have no fields, and rows are found by them"
        raise UsageError(message, "say how keys are written (KEY FORMAT), or choose ENVELOPE NONE")
    for field in key:
        _refuse_contradicting(field, value)
        if holds_map(field.dataType):
            message = f"the key field {field.name!r} holds a map, and maps cannot be compared"
            raise UsageError(message, "choose ENVELOPE NONE, or write the topic with another key")
    missing = [field for field in key if field.name not in value.names]
    return Shape(_columns(StructType([*missing, *value])), tuple(key.names))


def key_problem(key: Column, shape: Shape) -> Column:
    """Say of a message what is wrong with its key: it is not there, or not all of it."""
    missing = F.when(key.isNull(), F.lit("its key is null, and its row is found by that: write the topic with keys"))
    for name in shape.key:
        text = (
            f"the field {name!r} of its key is null: leave it out of the key, or fill it in where the topic is written"
        )
        missing = missing.when(key.getField(name).isNull(), F.lit(text))
    return missing


def contradiction(key: Column, value: Column, shape: Shape, names: list[str]) -> Column:
    """Say of a message that its value, which has fields `names`, has other values than the key where both have one."""
    differs = [~key.getField(name).eqNullSafe(value.getField(name)) for name in shape.key if name in names]
    text = F.lit("a field that is in its key and its value has two values: let both be the same where it is written")
    return F.when(value.isNotNull() & reduce(lambda a, b: a | b, differs, F.lit(False)), text)


def holds_map(kind: DataType) -> bool:
    """Whether values of a type cannot be compared, because a map is in them."""
    if isinstance(kind, ArrayType):
        return holds_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(holds_map(field.dataType) for field in kind)
    return isinstance(kind, MapType | VariantType)


def _columns(kind: StructType) -> StructType:
    """Return columns that may be null; names that differ in case alone would be one name to Spark."""
    names: dict[str, str] = {}
    for name in kind.names:
        if names.setdefault(name.lower(), name) != name or kind.names.count(name) > 1:
            message = f"messages have the fields {names[name.lower()]!r} and {name!r}, which Spark takes for one"
            raise UsageError(message, "rename one of them where the topic is written")
    return StructType([StructField(field.name, field.dataType) for field in kind])


def _refuse_contradicting(field: StructField, value: StructType) -> None:
    if field.name in value.names and value[field.name].dataType != field.dataType:
        message = f"the field {field.name!r} has one type in keys and another in values"
        raise UsageError(message, "write it with one type, or under two names")


def _null(field: StructField) -> Column:
    return F.lit(None).cast(field.dataType)


def quoted(name: str) -> str:
    """Return the name of a column as Spark takes it whole."""
    return "`" + name.replace("`", "``") + "`"


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
