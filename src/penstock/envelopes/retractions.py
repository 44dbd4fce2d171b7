"""Changes that do not fit the table: a row taken away that is not there, or added where one is.

With ENVELOPE DEBEZIUM each change says what was before it. So the images of a key form a chain, which begins at the
row that the table has: what is taken away is what is there, and where a row is added there is none. Where that does not
hold, records are missing or repeated that should not be. `broken` finds these, and the source stops before the first,
instead of counting rows below zero or going on with a table that is not the one upstream.

::

    rows of the table ─┐
                       ├──▶ in order, per key ──▶ each image and the one before it ──▶ broken
    images after them ─┘

Values that hold maps are not compared: maps have no order that would make them equal.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.envelopes.messages import place_of
from penstock.envelopes.shape import Shape, holds_map, quoted
from penstock.model import Image

__all__ = ["broken"]

_REMEDY = "read the topic from the beginning, or choose ENVELOPE DEBEZIUM UPSERT"
_ABSENT = f"it takes away a row that is not there: {_REMEDY}"
_OTHER = f"it takes away a row that is not as it says: {_REMEDY}"
_THERE = f"it adds a row whose key is there already: {_REMEDY}"


def broken(images: DataFrame, rows: DataFrame, shape: Shape) -> DataFrame:
    """Return ``_lsn``, ``partition``, ``offset`` and ``problem`` of images that do not follow from what is there.

    `rows` are the table's just before `images`.
    """
    chain = Window.partitionBy(*(F.col("row").getField(name) for name in shape.key)).orderBy(
        "_lsn", "_ordinal", "_image"
    )
    linked = _based(images, rows, shape).withColumns(
        {"last": F.lag("_image").over(chain), "last_row": F.lag("row").over(chain)}
    )
    partition, offset = place_of(F.col("_ordinal"))
    found = linked.filter(F.col("_image") != int(Image.COPIED)).withColumn("problem", _breach(shape))
    places = found.filter(F.col("problem").isNotNull())
    return places.select("_lsn", partition.alias("partition"), offset.alias("offset"), "problem")


def _breach(shape: Shape) -> Column:
    there = F.coalesce(F.col("last") >= int(Image.UPDATED), F.lit(False))
    takes = F.col("_image").isin(int(Image.BEFORE), int(Image.DELETED))
    adds = F.col("_image") == int(Image.INSERTED)
    same = [
        F.col("row").getField(field.name).eqNullSafe(F.col("last_row").getField(field.name))
        for field in shape.columns
        if not holds_map(field.dataType)
    ]
    differs = ~reduce(lambda a, b: a & b, same, F.lit(True))
    return F.when(takes & ~there, F.lit(_ABSENT)).when(takes & differs, F.lit(_OTHER)).when(adds & there, F.lit(_THERE))


def _based(images: DataFrame, rows: DataFrame, shape: Shape) -> DataFrame:
    """Return images and, before them, the rows of the table as images."""
    columns = [F.col(quoted(field.name)).alias(field.name) for field in shape.columns]
    base = rows.select(
        F.lit(-1).cast("bigint").alias("_lsn"),
        F.lit(-1).cast("bigint").alias("_ordinal"),
        F.lit(int(Image.COPIED)).cast("tinyint").alias("_image"),
        F.struct(*columns).alias("row"),
    )
    return images.select("_lsn", "_ordinal", "_image", "row").union(base)
