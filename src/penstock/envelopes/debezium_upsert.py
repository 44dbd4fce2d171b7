"""ENVELOPE DEBEZIUM UPSERT: of Debezium's records, what is after counts, for the key of the message.

The same as UPSERT (`penstock.envelopes.upsert`), and as little state: none. Duplicates and replays do no harm, because
a replay ends where the topic goes on: every key then has again what it had. Any connector will do.

A record that says that the whole table was emptied (op t) has no key, so it comes in one partition, and says nothing
of when the others would have had it. It is refused, here and by DEBEZIUM.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.envelopes.debezium_records import missing_row, opened, record_type, unknown_op
from penstock.envelopes.messages import Enveloped, enveloped, image, judged
from penstock.envelopes.placeholders import unavailable
from penstock.envelopes.shape import Shape, contradiction, key_problem
from penstock.model import Image

__all__ = ["debezium_upsert", "truncate_refused"]


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
