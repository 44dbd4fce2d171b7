"""What goes into an envelope and what comes out: decoded messages, images and refusals.

::

    messages ──▶ judged: a problem, or none ──┬──▶ images   (those without: what they change)
                                              └──▶ refused  (those with: where they stand, and why)

A frame of messages has one row per message:

- ``key``, ``value``: structs, or null
- ``tombstone``: whether the message came without a value
- ``_tick``: the position of the source at which the message became visible; it orders messages across partitions
- ``partition``, ``offset``, ``timestamp``: Kafka's
- ``problem``: why the message could not be decoded, or null

Images have the columns of `penstock.model.image_schema`. ``_lsn`` is the tick. ``_ordinal`` holds partition and offset
in one number, so that messages of a tick are in that order without being counted, and an image names its message.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.model import Image

__all__ = ["Enveloped", "enveloped", "image", "judged", "message_type", "ordinal", "place_of"]

_OFFSET_BITS = 44
_OFFSETS = 1 << _OFFSET_BITS
_PARTITIONS = 1 << (63 - _OFFSET_BITS)
_IMAGE = ("_lsn", "_ordinal", "_image", "_xid", "_committed_at", "_unchanged", "row")


@dataclass(frozen=True)
class Enveloped:
    """What messages say: each is in `images` (with as many as it makes, or none) or in `refused`, never in both.

    All are lazy, and read the messages each for itself: whoever computes several should keep the messages at hand, or
    compute `told` and put it in its place.
    """

    told: DataFrame
    """Both in one: images with ``partition`` and ``offset``, and ``problem``, where there is no image."""

    @property
    def images(self) -> DataFrame:
        """Changes, as `penstock.model.image_schema` has them."""
        return self.told.filter(F.col("problem").isNull()).select(*_IMAGE)

    @property
    def refused(self) -> DataFrame:
        """``partition``, ``offset``, ``problem``: undecodable messages, and those that break a rule of the envelope."""
        return self.told.filter(F.col("problem").isNotNull()).select("partition", "offset", "problem")

    @property
    def strict(self) -> DataFrame:
        """The images, for those who may not go on without a message: reading them fails where one is refused.

        The condition is one that Spark may not combine with others, nor let others pass: what a query asks for, or
        what a fold knows of its images, would else drop a refused message before it is looked at.
        """
        unmovable = F.spark_partition_id() >= 0
        fine = F.col("problem").isNull() | (F.raise_error(_refusal()).cast("boolean") & unmovable)
        return self.told.filter(fine).select(*_IMAGE)


def message_type(messages: DataFrame, name: str) -> StructType:
    """Return the fields of ``key`` or ``value``."""
    kind = messages.schema[name].dataType
    if not isinstance(kind, StructType):
        message = f"the column {name!r} of decoded messages is no struct"
        raise UsageError(message, "decode messages first: a format gives a struct also for a single column")
    return kind


def judged(messages: DataFrame, *problems: Column) -> DataFrame:
    """Return messages with the first problem that holds for each in ``problem``."""
    beyond = (F.col("partition") >= _PARTITIONS) | (F.col("offset") >= _OFFSETS)
    placed = F.when(beyond, F.lit("its partition or offset is beyond what a change log can number"))
    return messages.withColumn("problem", F.coalesce(F.col("problem"), placed, *problems))


def ordinal() -> Column:
    """Return partition and offset as one number, in their order."""
    return F.shiftleft(F.col("partition").cast("bigint"), _OFFSET_BITS).bitwiseOR(F.col("offset"))


def place_of(number: Column) -> tuple[Column, Column]:
    """Return partition and offset of what `ordinal` made."""
    return F.shiftright(number, _OFFSET_BITS).cast("int"), number.bitwiseAND(_OFFSETS - 1)


def image(kind: Image, row: Column) -> Column:
    """Return one image of a change."""
    return F.struct(F.lit(int(kind)).cast("tinyint").alias("_image"), row.alias("row"))


def enveloped(messages: DataFrame, changes: Column) -> Enveloped:
    """Return what judged messages say; `changes` is the array of images of a message without a problem."""
    fine = F.col("problem").isNull()
    each = F.explode_outer(F.when(fine, changes)).alias("change")
    place = ("partition", "offset", "problem")
    exploded = messages.select("_tick", ordinal().alias("_ordinal"), "timestamp", *place, each)
    told = exploded.filter(~fine | F.col("change").isNotNull()).select(
        F.col("_tick").cast("bigint").alias("_lsn"),
        "_ordinal",
        F.col("change").getField("_image").alias("_image"),
        F.lit(0).cast("bigint").alias("_xid"),
        F.col("timestamp").alias("_committed_at"),
        F.lit(None).cast("array<int>").alias("_unchanged"),
        F.col("change").getField("row").alias("row"),
        *place,
    )
    return Enveloped(told)


def _refusal() -> Column:
    place = F.concat(F.lit("the message at offset "), "offset", F.lit(" of partition "), "partition")
    return F.concat(place, F.lit(" cannot be taken in: "), "problem")
