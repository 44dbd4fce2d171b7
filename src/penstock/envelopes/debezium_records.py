"""Debezium's records: what was before, what is after, where it comes from, and what was done (``op``).

A record is a struct ``{before, after, source, op, …}``. Connect's JSON may wrap it, and the key, with its schema
(``{schema, payload}``); then the payload is taken. `opened` puts the parts beside the message:

- ``before``, ``after``, ``source``: structs; null where the record has none
- ``op``: c (made), u (changed), d (deleted), r (read by a snapshot), t (table emptied)
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.envelopes.messages import message_type
from penstock.envelopes.shape import Shape, keyed_shape
from penstock.errors import UsageError

__all__ = [
    "RecordType",
    "debezium_shape",
    "debezium_shape_of",
    "missing_row",
    "opened",
    "record_type",
    "record_type_of",
    "unknown_op",
]

_OPS = ("c", "u", "d", "r", "t")


@dataclass(frozen=True)
class RecordType:
    """The types in a topic that Debezium writes."""

    key: StructType
    after: StructType
    before: StructType | None
    source: StructType | None


def record_type(messages: DataFrame) -> RecordType:
    """Return the types of records; `UsageError` where values are not Debezium's."""
    return record_type_of(message_type(messages, "key"), message_type(messages, "value"))


def record_type_of(key: StructType, value: StructType) -> RecordType:
    """Return the types of records by those of keys and values; `UsageError` where values are not Debezium's."""
    record = _payload(value)
    after = _struct(record, "after")
    if after is None or "op" not in record.names:
        message = "values of the topic are no records of Debezium: these have the fields 'after' and 'op'"
        raise UsageError(
            message, "choose ENVELOPE UPSERT if values are rows (Debezium's ExtractNewRecordState does that)"
        )
    return RecordType(_payload(key), after, _struct(record, "before"), _struct(record, "source"))


def debezium_shape(messages: DataFrame) -> Shape:
    """Return the table of records: the columns of ``after``, found by the key of the message."""
    return debezium_shape_of(message_type(messages, "key"), message_type(messages, "value"))


def debezium_shape_of(key: StructType, value: StructType) -> Shape:
    """Return the same by the types of keys and values."""
    types = record_type_of(key, value)
    return keyed_shape(types.key, types.after)


def opened(messages: DataFrame) -> DataFrame:
    """Return messages with the parts of their records beside them, and without wrapping."""
    types = record_type(messages)
    record = _unwrapped(F.col("value"), message_type(messages, "value"))
    rest = {
        "after": record.getField("after"),
        "before": F.lit(None).cast(types.after) if types.before is None else record.getField("before"),
        "source": F.lit(None).cast("struct<connector:string>") if types.source is None else record.getField("source"),
        "op": record.getField("op").cast("string"),
    }
    return messages.withColumns({**rest, "key": _unwrapped(F.col("key"), message_type(messages, "key"))})


def unknown_op() -> Column:
    """Say of a message that has a value what is wrong with its ``op``."""
    text = F.lit(
        "its op is none of c, u, d, r, t: it is no record of Debezium, or of a newer version than is known here"
    )
    return F.when(~F.col("tombstone") & ~F.coalesce(F.col("op").isin(*_OPS), F.lit(False)), text)


def missing_row() -> Column:
    """Say of a record that the row it brings is not in it."""
    brings = F.col("op").isin("c", "u", "r") & F.col("after").isNull()
    return F.when(brings, F.lit("it has no 'after', and its op says that a row is there"))


def _payload(kind: StructType) -> StructType:
    return _struct(kind, "payload") or kind if set(kind.names) <= {"schema", "payload"} else kind


def _unwrapped(column: Column, kind: StructType) -> Column:
    return column if _payload(kind) is kind else column.getField("payload")


def _struct(kind: StructType, name: str) -> StructType | None:
    found = kind[name].dataType if name in kind.names else None
    return found if isinstance(found, StructType) else None
