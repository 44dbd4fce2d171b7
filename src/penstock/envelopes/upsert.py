"""ENVELOPE UPSERT: a message is the newest row of its key; without a value, that row is gone.

What a key has at a position is what was written last at or before it. So no state is kept here: every message becomes
one image, and folding takes the last one of a key. Duplicates and replays lead to the same row in the end.

Messages of one key are ordered by their offsets, which are in order as long as the key stays in its partition. When it
moves (partitions were added to the topic), the tick decides: what became visible later was written later. Within one
tick the partition with the higher number does.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.envelopes.messages import Enveloped, enveloped, image, judged, message_type
from penstock.envelopes.shape import Shape, contradiction, key_problem
from penstock.model import Image

__all__ = ["upsert"]


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
