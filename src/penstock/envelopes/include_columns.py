"""INCLUDE: message metadata (key, partition, offset, timestamp, headers) as columns of the row.

The columns are added to the value (with Debezium envelopes, to ``after``) before an envelope processes it, so envelopes
need no knowledge of them. `included_type` returns the type of the DataFrame that `with_included` returns. In a row that
a message removes (``before``) they are null, because the message that wrote that row is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.envelopes.messages import message_type
from penstock.errors import UsageError
from penstock.model import IncludedColumn

__all__ = ["HEADERS", "included_type", "with_included"]

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
_TYPES: Mapping[str, DataType] = {
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "headers": HEADERS,
}
_RECORD = ("before", "after")


def included_type(
    value: StructType, key: StructType | None, columns: Sequence[IncludedColumn], *, records: bool
) -> StructType:
    """Return the type of values with these columns; with `records`, values are Debezium records."""
    if not columns:
        return value
    if not records:
        return _widened(value, key, columns)
    if "payload" in value.names and isinstance(value["payload"].dataType, StructType):
        return _replaced(value, "payload", included_type(value["payload"].dataType, key, columns, records=True))
    for name in _RECORD:
        inner = value[name].dataType if name in value.names else None
        if isinstance(inner, StructType):
            value = _replaced(value, name, _widened(inner, key, columns))
    return value


def with_included(messages: DataFrame, columns: Sequence[IncludedColumn], *, records: bool) -> DataFrame:
    """Return messages with these columns in their values."""
    if not columns:
        return messages
    key = message_type(messages, "key") if "key" in messages.columns else None
    value = _column(F.col("value"), message_type(messages, "value"), key, columns, records=records)
    return messages.withColumn("value", value)


def _column(
    value: Column, kind: StructType, key: StructType | None, columns: Sequence[IncludedColumn], *, records: bool
) -> Column:
    if not records:
        return _filled(value, kind, [_value(column, key) for column in columns], columns)
    if "payload" in kind.names and isinstance(kind["payload"].dataType, StructType):
        inner = _column(value.getField("payload"), kind["payload"].dataType, key, columns, records=True)
        return _rebuilt(value, kind, {"payload": inner})
    changed = {}
    for name in _RECORD:
        inner_kind = kind[name].dataType if name in kind.names else None
        if isinstance(inner_kind, StructType):
            held = [_value(column, key) for column in columns]
            if name == "before":
                held = [F.lit(None).cast(_type(column, key)) for column in columns]
            changed[name] = _filled(value.getField(name), inner_kind, held, columns)
    return _rebuilt(value, kind, changed)


def _filled(row: Column, kind: StructType, held: Sequence[Column], columns: Sequence[IncludedColumn]) -> Column:
    """Return a row with more columns; null stays null."""
    own = [row.getField(name).alias(name) for name in kind.names]
    more = [value.alias(column.name) for value, column in zip(held, columns, strict=True)]
    return F.when(row.isNotNull(), F.struct(*own, *more))


def _rebuilt(record: Column, kind: StructType, changed: Mapping[str, Column]) -> Column:
    fields = [changed.get(name, record.getField(name)).alias(name) for name in kind.names]
    return F.when(record.isNotNull(), F.struct(*fields))


def _value(column: IncludedColumn, key: StructType | None) -> Column:
    if column.what != "key":
        return F.col(column.what)
    assert key is not None, "INCLUDE KEY needs the format of keys"
    return F.col("key").getField(key.names[0]) if len(key.names) == 1 else F.col("key")


def _type(column: IncludedColumn, key: StructType | None) -> DataType:
    """Return the type of a column; a key with one field has the type of that field."""
    if column.what != "key":
        return _TYPES[column.what]
    assert key is not None, "INCLUDE KEY needs the format of keys"
    return key.fields[0].dataType if len(key.names) == 1 else key


def _widened(row: StructType, key: StructType | None, columns: Sequence[IncludedColumn]) -> StructType:
    taken = {name.lower() for name in row.names}
    for column in columns:
        if column.name.lower() in taken:
            message = f"INCLUDE column {column.name} has the name of a message field"
            raise UsageError(message, f"Choose another name: INCLUDE {column.what.upper()} AS message_{column.what}.")
    return StructType([*row, *(StructField(column.name, _type(column, key)) for column in columns)])


def _replaced(kind: StructType, name: str, by: StructType) -> StructType:
    return StructType([StructField(f.name, by if f.name == name else f.dataType) for f in kind])
