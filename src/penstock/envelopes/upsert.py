"""ENVELOPE UPSERT: a message is the newest row of its key; without a value, that row is gone.

What a key has at a position is what was written last at or before it. So no state is kept here: every message becomes
one image, and folding takes the last one of a key. Duplicates and replays lead to the same row in the end.

Messages of one key are ordered by their offsets, which are in order as long as the key stays in its partition. When it
moves (partitions were added to the topic), the tick decides: what became visible later was written later. Within one
tick the partition with the higher number does.

ENVELOPE NONE: each message is a row of its own, and rows are added and nothing else. Keys do not count.

ENVELOPE DEBEZIUM UPSERT: of Debezium's records, what is after counts, for the key of the message.

The same as UPSERT (`penstock.envelopes.upsert`), and as little state: none. Duplicates and replays do no harm, because
a replay ends where the topic goes on: every key then has again what it had. Any connector will do.

A record that says that the whole table was emptied (op t) has no key, so it comes in one partition, and says nothing
of when the others would have had it. It is refused, here and by DEBEZIUM.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.envelopes.debezium_records import missing_row, opened, record_type, unknown_op
from penstock.envelopes.messages import Enveloped, enveloped, image, judged, message_type
from penstock.envelopes.shape import Shape, contradiction, key_problem, unavailable
from penstock.model import Image

__all__ = ["append", "debezium_upsert", "truncate_refused", "upsert"]


def upsert(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an image for each message; `shape` is that of `keyed_shape`."""
    key, value, tombstone = F.col("key"), F.col("value"), F.col("tombstone")
    checked = judged(
        messages,
        key_problem(key, shape),
        F.when(~tombstone & value.isNull(), F.lit("its value is there, but says nothing: a row needs one")),
        contradiction(key, value, shape, message_type(messages, "value").names),
    )
    gone = F.array(image(Image.DELETED_KEY, shape.key_alone(key)))
    return enveloped(checked, F.when(tombstone, gone).otherwise(F.array(image(Image.UPDATED, shape.row(key, value)))))


def append(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an INSERTED image for each message with a value; `shape` is that of `value_shape`."""
    value = F.col("value")
    text = F.lit("it has no value, and so no row: if that means that a row is gone, choose ENVELOPE UPSERT")
    checked = judged(messages, F.when(value.isNull(), text))
    return enveloped(checked, F.array(image(Image.INSERTED, shape.whole(value))))


def debezium_upsert(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an image for each message; `shape` is that of `debezium_shape`."""
    types = record_type(messages)
    key, after, op = F.col("key"), F.col("after"), F.col("op")
    keyless = F.coalesce(op == "t", F.lit(False)) & ~F.col("tombstone")
    problems = [
        unknown_op(),
        truncate_refused(),
        F.when(~keyless, key_problem(key, shape)),
        missing_row(),
        contradiction(key, after, shape, types.after.names),
        F.when(op != "d", unavailable(after, types.after)),
    ]
    gone = F.array(image(Image.DELETED_KEY, shape.key_alone(key)))
    there = F.array(image(Image.UPDATED, shape.row(key, after)))
    changes = F.when(F.col("tombstone") | (op == "d"), gone).otherwise(there)
    return enveloped(judged(opened(messages), *problems), changes)


def truncate_refused() -> Column:
    """Say of a record that empties the table that it cannot be taken."""
    text = "it empties the table, which is not followed: let Debezium leave such records out (skipped.operations = t)"
    return F.when(F.col("op") == "t", F.lit(text))
