"""ENVELOPE UPSERT: a message is the latest row of its key; a message without a value deletes that row.

The row of a key at a position is the one written last at or before it. So this module keeps no state: each message
becomes one image, and the fold keeps the last image of a key. Duplicates and replays lead to the same row.

Messages of one key are ordered by offset while the key stays in one partition. If it moves (because partitions were
added to the topic), the tick decides: a message that became visible later was written later. Within one tick, the
partition with the higher number wins.

ENVELOPE NONE: each message is a new row; rows are only added. Keys are ignored.

ENVELOPE DEBEZIUM UPSERT: the ``after`` row of a Debezium record is the latest row of the message key.

This works like UPSERT and needs no state either. Duplicates and replays are harmless, because a replay ends where the
topic continues: by then every key has its latest row again. Any connector is supported.

A truncate record (op t) has no key, so it is in one partition only. If the topic has one partition, the record has its
place among all others, and empties the table there. Otherwise its order relative to the other partitions is unknown,
and it is rejected, here and by DEBEZIUM. Logical messages and heartbeats are skipped.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.envelopes.debezium_records import missing_after_problem, op_problem, record_type, with_record_fields
from penstock.envelopes.messages import (
    Enveloped,
    enveloped,
    image,
    in_only_partition,
    message_type,
    with_problem,
)
from penstock.envelopes.shape import Shape, key_mismatch_problem, key_problem, placeholder_problem
from penstock.model import Image

__all__ = [
    "NULL_VALUE",
    "TRUNCATED",
    "VALUE_MISSING",
    "append",
    "debezium_upsert",
    "emptied",
    "truncate_problem",
    "upsert",
]

NULL_VALUE = "the value is present but decodes to null: a row requires a value"
VALUE_MISSING = "the message has no value: use ENVELOPE UPSERT if this marks a deleted row"
TRUNCATED = (
    "TRUNCATE in a topic with several partitions, so that its order relative to other records is unknown: configure "
    "Debezium to write a topic with one partition, or to skip such records (skipped.operations = t)"
)


def upsert(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an image for each message; `shape` comes from `keyed_shape`."""
    key, value, tombstone = F.col("key"), F.col("value"), F.col("tombstone")
    checked = with_problem(
        messages,
        key_problem(key, shape),
        F.when(~tombstone & value.isNull(), F.lit(NULL_VALUE)),
        key_mismatch_problem(key, value, shape, message_type(messages, "value").names),
    )
    gone = F.array(image(Image.DELETED_KEY, shape.key_only_row(key)))
    return enveloped(checked, F.when(tombstone, gone).otherwise(F.array(image(Image.UPDATED, shape.row(key, value)))))


def append(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an INSERTED image for each message with a value; `shape` comes from `value_shape`."""
    value = F.col("value")
    checked = with_problem(messages, F.when(value.isNull(), F.lit(VALUE_MISSING)))
    return enveloped(checked, F.array(image(Image.INSERTED, shape.value_row(value))))


def debezium_upsert(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an image for each message; `shape` comes from `debezium_shape`."""
    types = record_type(messages)
    key, after, op = F.col("key"), F.col("after"), F.col("op")
    keyless = (F.coalesce(op == "t", F.lit(False)) | F.col("skipped")) & ~F.col("tombstone")
    problems = [
        op_problem(),
        truncate_problem(messages),
        F.when(~keyless, key_problem(key, shape)),
        missing_after_problem(),
        key_mismatch_problem(key, after, shape, types.after.names),
        F.when(op != "d", placeholder_problem(after, types.after)),
    ]
    gone = F.array(image(Image.DELETED_KEY, shape.key_only_row(key)))
    there = F.array(image(Image.UPDATED, shape.row(key, after)))
    changes = F.when(F.col("tombstone") | (op == "d"), gone).when(op == "t", emptied(shape))
    changes = changes.when(~F.col("skipped"), there)
    return enveloped(with_problem(with_record_fields(messages), *problems), changes)


def truncate_problem(messages: DataFrame) -> Column:
    """Return the problem of a truncate record that has no place among all others."""
    return F.when((F.col("op") == "t") & ~in_only_partition(messages), F.lit(TRUNCATED))


def emptied(shape: Shape) -> Column:
    """Return the images of a truncate record."""
    return F.array(image(Image.TRUNCATE, F.lit(None).cast(shape.columns)))
