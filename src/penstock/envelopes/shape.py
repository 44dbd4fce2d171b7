"""The shape of the table that messages form: its columns, its key, and how a row is built from a key and a value.

The table has the columns of the value, preceded by key columns that the value lacks. A field in both is one column, and
both values must be equal: a message whose value contradicts its key is rejected. Columns have the decoded types:
logical types of Connect and Debezium are already converted (`penstock.formats.logical_types`).

**Placeholders** are written by Debezium for a large value that did not change and that Postgres therefore did not send.

Without REPLICA IDENTITY FULL, an update omits unchanged values that are stored out of line (TOAST). Debezium writes a
placeholder instead, depending on the column type: a text, its bytes, its bytes as numbers, or a UUID derived from it. A
record with a placeholder is rejected and the problem names the column; a placeholder is never used as a value.

The current value in the table is not used instead. It is correct only if the row exists and is the previous version:
not if the key changed (the row has the old key), not if the topic was compacted, and not in a replay, which may go back
to before a row was deleted.

For numerics, and for arrays of types other than those below, Debezium writes null. This is indistinguishable from a
null that was sent: such columns always need REPLICA IDENTITY FULL.
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

__all__ = [
    "KEY_MISMATCH",
    "KEY_MISSING",
    "PLACEHOLDER_BYTES",
    "PLACEHOLDER_ITEMS",
    "PLACEHOLDER_TEXTS",
    "Shape",
    "holds_map",
    "key_field_text",
    "key_mismatch_problem",
    "key_problem",
    "keyed_shape",
    "placeholder_problem",
    "placeholder_text",
    "quoted",
    "value_shape",
]


@dataclass(frozen=True)
class Shape:
    """The columns of a table, as Spark types, and the names of its key columns."""

    columns: StructType
    key: tuple[str, ...]

    def schema(self, table: TableName) -> TableSchema:
        """Return the shape as a `TableSchema`."""
        return TableSchema(table, pa.schema(list(to_arrow_type(self.columns, timezone="UTC"))), self.key)

    def row(self, key: Column, value: Column) -> Column:
        """Return a row, with key columns from the key and the others from the value."""
        return F.struct(*((key if f.name in self.key else value).getField(f.name).alias(f.name) for f in self.columns))

    def value_row(self, value: Column) -> Column:
        """Return a row with all columns from the value."""
        return F.struct(*(value.getField(field.name).alias(field.name) for field in self.columns))

    def key_only_row(self, key: Column) -> Column:
        """Return a row in which all columns except the key are null."""
        return F.struct(
            *((key.getField(f.name) if f.name in self.key else _null(f)).alias(f.name) for f in self.columns)
        )


def value_shape(value: StructType) -> Shape:
    """Return the shape of a keyless table with the columns of the value."""
    return Shape(_columns(value), ())


def keyed_shape(key: StructType, value: StructType) -> Shape:
    """Return the shape of a table whose rows are identified by the message key."""
    if not key.fields:
        message = "message keys have no fields, but rows are identified by their key"
        raise UsageError(message, "Add KEY FORMAT, or use ENVELOPE NONE.")
    for field in key:
        _reject_mismatch(field, value)
        if holds_map(field.dataType):
            message = f"key field {field.name!r} contains a map, which cannot be compared"
            raise UsageError(message, "Use ENVELOPE NONE, or write the topic with another key.")
    missing = [field for field in key if field.name not in value.names]
    return Shape(_columns(StructType([*missing, *value])), tuple(key.names))


KEY_MISSING = "the message key is null, but rows are identified by it: write the topic with keys"
KEY_MISMATCH = "a field has different values in key and value: write the same value to both in the producer"


def key_field_text(name: str) -> str:
    """Return the problem of a message with null in a field of its key."""
    return f"key field {name!r} is null: remove it from the key, or set it in the producer"


def key_problem(key: Column, shape: Shape) -> Column:
    """Return the problem of a message whose key is null or has a null field."""
    missing = F.when(key.isNull(), F.lit(KEY_MISSING))
    for name in shape.key:
        missing = missing.when(key.getField(name).isNull(), F.lit(key_field_text(name)))
    return missing


def key_mismatch_problem(key: Column, value: Column, shape: Shape, names: list[str]) -> Column:
    """Return the problem of a message whose value, with fields `names`, differs from its key in a common field."""
    differs = [~key.getField(name).eqNullSafe(value.getField(name)) for name in shape.key if name in names]
    return F.when(value.isNotNull() & reduce(lambda a, b: a | b, differs, F.lit(False)), F.lit(KEY_MISMATCH))


def holds_map(kind: DataType) -> bool:
    """Return whether a type contains a map, so that its values cannot be compared."""
    if isinstance(kind, ArrayType):
        return holds_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(holds_map(field.dataType) for field in kind)
    return isinstance(kind, MapType | VariantType)


def _columns(kind: StructType) -> StructType:
    """Return the columns as nullable; reject names that differ only in case, which Spark does not distinguish."""
    names: dict[str, str] = {}
    for name in kind.names:
        if names.setdefault(name.lower(), name) != name or kind.names.count(name) > 1:
            message = f"message fields {names[name.lower()]!r} and {name!r} have the same name in Spark"
            raise UsageError(message, "Rename one of them in the producer.")
    return StructType([StructField(field.name, field.dataType) for field in kind])


def _reject_mismatch(field: StructField, value: StructType) -> None:
    if field.name in value.names and value[field.name].dataType != field.dataType:
        message = f"field {field.name!r} has different types in keys and values"
        raise UsageError(message, "Write it with one type, or under two names.")


def _null(field: StructField) -> Column:
    return F.lit(None).cast(field.dataType)


def quoted(name: str) -> str:
    """Return a column name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


_PLACEHOLDER = "__debezium_unavailable_value"
PLACEHOLDER_BYTES = _PLACEHOLDER.encode()
_IN_JSON = base64.b64encode(PLACEHOLDER_BYTES).decode()
_UUID = str(uuid.UUID(bytes=hashlib.md5(PLACEHOLDER_BYTES, usedforsecurity=False).digest(), version=3))
PLACEHOLDER_TEXTS = (_PLACEHOLDER, _IN_JSON, f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}')
PLACEHOLDER_ITEMS = (_PLACEHOLDER, _IN_JSON, _UUID)


def placeholder_text(column: str) -> str:
    """Return the problem of a row in which Debezium wrote a placeholder for a column."""
    return (
        f"column {column!r} was not sent, because its value is large and did not change: "
        "run ALTER TABLE … REPLICA IDENTITY FULL upstream, and have Debezium rewrite the topic"
    )


def placeholder_problem(row: Column, kind: StructType) -> Column:
    """Return the problem of a row in which Debezium wrote a placeholder for a column; null if there is none."""
    found = F.lit(None).cast("string")
    for field in reversed(kind.fields):
        mark = _is_placeholder(row.getField(field.name), field.dataType)
        if mark is not None:
            found = F.when(mark, F.lit(placeholder_text(field.name))).otherwise(found)
    return found


def _is_placeholder(value: Column, kind: DataType) -> Column | None:
    """Return whether a value is the placeholder for its type; None for types without one."""
    if isinstance(kind, StringType):
        return value.isin(*PLACEHOLDER_TEXTS)
    if isinstance(kind, BinaryType):
        return value == F.lit(PLACEHOLDER_BYTES)
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return F.map_contains_key(value, _PLACEHOLDER)
    return _is_array_placeholder(value, kind.elementType) if isinstance(kind, ArrayType) else None


def _is_array_placeholder(value: Column, item: DataType) -> Column | None:
    if isinstance(item, StringType):
        return F.arrays_overlap(value, F.array(*map(F.lit, PLACEHOLDER_ITEMS)))
    if isinstance(item, BinaryType):
        return F.array_contains(value, F.lit(PLACEHOLDER_BYTES))
    numbers = [F.lit(byte) for byte in PLACEHOLDER_BYTES]
    if isinstance(item, DateType):
        return value == F.array(*map(F.date_from_unix_date, numbers))
    if isinstance(item, IntegerType | LongType):
        return value == F.array(*(number.cast(item) for number in numbers))
    return None
