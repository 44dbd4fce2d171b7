"""Debezium records: the row before and after a change, its source, and the operation (``op``).

A record is a struct ``{before, after, source, op, …}``. Connect's JSON converter may wrap the record, and the key, with
its schema (``{schema, payload}``); then the payload is used. `with_record_fields` adds the fields of the record to the
message:

- ``before``, ``after``, ``source``: structs; null if the record has none
- ``op``: c (create), u (update), d (delete), r (read by a snapshot), t (truncate), m (a logical message)
- ``skipped``: whether the record is about no row, and has no effect: a logical message, or a heartbeat, of which all
  fields but the time ``ts_ms`` are missing. Debezium has topics of their own for both, but transforms may route them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.envelopes.messages import message_type
from penstock.envelopes.shape import Shape, keyed_shape
from penstock.errors import UsageError

__all__ = [
    "AFTER_MISSING",
    "OPS",
    "OP_UNKNOWN",
    "RecordType",
    "debezium_shape",
    "debezium_shape_of",
    "missing_after_problem",
    "op_problem",
    "record_type",
    "record_type_of",
    "with_record_fields",
]

OPS = ("c", "u", "d", "r", "t", "m")
OP_UNKNOWN = "op is none of c, u, d, r, t, m: not a Debezium record, or one of an unsupported newer version"
AFTER_MISSING = "the record has no 'after' row, which its op requires"


@dataclass(frozen=True)
class RecordType:
    """The types in a topic written by Debezium."""

    key: StructType
    after: StructType
    before: StructType | None
    source: StructType | None
    has_time: bool
    """Whether records have ``ts_ms``: when Debezium processed them."""


def record_type(messages: DataFrame) -> RecordType:
    """Return the types of records; raise `UsageError` if values are not Debezium records."""
    return record_type_of(message_type(messages, "key"), message_type(messages, "value"))


def record_type_of(key: StructType, value: StructType) -> RecordType:
    """Return the types of records with these keys and values; raise `UsageError` if they are not Debezium's."""
    record = _payload(value)
    after = _struct(record, "after")
    if after is None or "op" not in record.names:
        message = "values of the topic are not Debezium records: fields 'after' and 'op' are missing"
        raise UsageError(
            message, "Use ENVELOPE UPSERT if values are rows (as written by Debezium's ExtractNewRecordState)."
        )
    has_time = "ts_ms" in record.names
    return RecordType(_payload(key), after, _struct(record, "before"), _struct(record, "source"), has_time)


def debezium_shape(messages: DataFrame) -> Shape:
    """Return the shape of the table: the columns of ``after``, identified by the message key."""
    return debezium_shape_of(message_type(messages, "key"), message_type(messages, "value"))


def debezium_shape_of(key: StructType, value: StructType) -> Shape:
    """Return the shape of the table for these key and value types."""
    types = record_type_of(key, value)
    return keyed_shape(types.key, types.after)


def with_record_fields(messages: DataFrame) -> DataFrame:
    """Return messages with the fields of their records as columns, unwrapped."""
    types = record_type(messages)
    record = _unwrapped(F.col("value"), message_type(messages, "value"))
    rest = {
        "after": record.getField("after"),
        "before": F.lit(None).cast(types.after) if types.before is None else record.getField("before"),
        "source": F.lit(None).cast("struct<connector:string>") if types.source is None else record.getField("source"),
        "op": record.getField("op").cast("string"),
        "time_only": record.getField("ts_ms").isNotNull() if types.has_time else F.lit(False),
    }
    unwrapped = messages.withColumns({**rest, "key": _unwrapped(F.col("key"), message_type(messages, "key"))})
    return unwrapped.withColumn("skipped", _skipped()).drop("time_only")


def _skipped() -> Column:
    nothing = [F.col(name).isNull() for name in ("op", "before", "after", "source")]
    return F.coalesce(F.col("op") == "m", F.lit(False)) | reduce(Column.__and__, nothing, F.col("time_only"))


def op_problem() -> Column:
    """Return the problem of a message with a value whose ``op`` is unknown."""
    is_known = F.coalesce(F.col("op").isin(*OPS), F.lit(False)) | F.col("skipped")
    return F.when(~F.col("tombstone") & ~is_known, F.lit(OP_UNKNOWN))


def missing_after_problem() -> Column:
    """Return the problem of a record that should have an ``after`` row and has none."""
    brings = F.col("op").isin("c", "u", "r") & F.col("after").isNull()
    return F.when(brings, F.lit(AFTER_MISSING))


def _payload(kind: StructType) -> StructType:
    return _struct(kind, "payload") or kind if set(kind.names) <= {"schema", "payload"} else kind


def _unwrapped(column: Column, kind: StructType) -> Column:
    return column if _payload(kind) is kind else column.getField("payload")


def _struct(kind: StructType, name: str) -> StructType | None:
    found = kind[name].dataType if name in kind.names else None
    return found if isinstance(found, StructType) else None
