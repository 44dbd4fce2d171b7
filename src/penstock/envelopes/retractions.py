"""Changes that contradict the table: a removed row that does not exist, or an added row that does.

With ENVELOPE DEBEZIUM each change contains the row before it. So the images of a key form a chain that starts at the
row in the table: a removed row must be the current row, and a row can be added only if there is none. Otherwise records
are missing or repeated. `contradictions` finds such images, and the source stops before the first one instead of
counting rows below zero or continuing with a table that differs from the upstream table.

::

    rows of the table ─┐
                       ├──▶ ordered, per key ──▶ each image and the one before it ──▶ contradictions
    images after them ─┘

Values that contain maps are not compared, because Spark cannot compare maps. Nor is null in a column that the table
gained later: an earlier row has null there if its value was in no record, such as a default of the upstream table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.envelopes.messages import partition_and_offset
from penstock.envelopes.shape import Shape, holds_map, quoted
from penstock.model import Image

__all__ = ["contradictions"]

_HINT = "read the topic from the beginning, or use ENVELOPE DEBEZIUM UPSERT"
_ABSENT = f"the change removes a row that does not exist: {_HINT}"
_OTHER = f"the change removes a row that differs from the current row: {_HINT}"
_THERE = f"the change adds a row whose key already exists: {_HINT}"


def contradictions(
    images: DataFrame,
    rows: DataFrame,
    shape: Shape,
    gained: Collection[str] = (),
    truncates: Sequence[tuple[int, int]] = (),
) -> DataFrame:
    """Return ``_lsn``, ``partition``, ``offset`` and ``problem`` of images that contradict the rows before them.

    `rows` are the rows of the table just before `images`; `gained` are the columns that the table gained. `truncates`
    are the places of the truncates among `images`: after each, every chain begins without a row.
    """
    key = (F.col("row").getField(name) for name in shape.key)
    chain = Window.partitionBy(_emptied(truncates), *key).orderBy("_lsn", "_ordinal", "_image")
    linked = _based(images.filter(F.col("_image") != int(Image.TRUNCATE)), rows, shape).withColumns(
        {"last": F.lag("_image").over(chain), "last_row": F.lag("row").over(chain)}
    )
    partition, offset = partition_and_offset(F.col("_ordinal"))
    found = linked.filter(F.col("_image") != int(Image.COPIED)).withColumn("problem", _breach(shape, gained))
    places = found.filter(F.col("problem").isNotNull())
    return places.select("_lsn", partition.alias("partition"), offset.alias("offset"), "problem")


def _emptied(truncates: Sequence[tuple[int, int]]) -> Column:
    """Return how often the table was emptied before an image."""
    lsn, ordinal = F.col("_lsn"), F.col("_ordinal")
    after = ((lsn > tick) | (lsn == tick) & (ordinal > place) for tick, place in truncates)
    return reduce(lambda count, is_after: count + is_after.cast("int"), after, F.lit(0))


def _breach(shape: Shape, gained: Collection[str]) -> Column:
    there = F.coalesce(F.col("last") >= int(Image.UPDATED), F.lit(False))
    takes = F.col("_image").isin(int(Image.BEFORE), int(Image.DELETED))
    adds = F.col("_image") == int(Image.INSERTED)
    same = [_same(field.name, field.name in gained) for field in shape.columns if not holds_map(field.dataType)]
    differs = ~reduce(lambda a, b: a & b, same, F.lit(True))
    return F.when(takes & ~there, F.lit(_ABSENT)).when(takes & differs, F.lit(_OTHER)).when(adds & there, F.lit(_THERE))


def _same(name: str, is_gained: bool) -> Column:
    now, last = F.col("row").getField(name), F.col("last_row").getField(name)
    same = now.eqNullSafe(last)
    return same | (last.isNull() & (F.col("last") == int(Image.COPIED))) if is_gained else same


def _based(images: DataFrame, rows: DataFrame, shape: Shape) -> DataFrame:
    """Return the images and, before them, the rows of the table as images."""
    columns = [F.col(quoted(field.name)).alias(field.name) for field in shape.columns]
    base = rows.select(
        F.lit(-1).cast("bigint").alias("_lsn"),
        F.lit(-1).cast("bigint").alias("_ordinal"),
        F.lit(int(Image.COPIED)).cast("tinyint").alias("_image"),
        F.struct(*columns).alias("row"),
    )
    return images.select("_lsn", "_ordinal", "_image", "row").union(base)
