"""ENVELOPE NONE: each message is a row of its own, and rows are added and nothing else. Keys do not count."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.envelopes.messages import Enveloped, enveloped, image, judged
from penstock.envelopes.shape import Shape
from penstock.model import Image

__all__ = ["append"]


def append(messages: DataFrame, shape: Shape) -> Enveloped:
    """Return an INSERTED image for each message with a value; `shape` is that of `value_shape`."""
    value = F.col("value")
    text = F.lit("it has no value, and so no row: if that means that a row is gone, choose ENVELOPE UPSERT")
    checked = judged(messages, F.when(value.isNull(), text))
    return enveloped(checked, F.array(image(Image.INSERTED, shape.whole(value))))
