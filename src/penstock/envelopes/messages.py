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


@dataclass(frozen=True)
class Enveloped:
    """What messages say: each is in `images` (with as many as it makes, or none) or in `refused`, never in both.

    Both are lazy, and read the messages each for itself: whoever computes both should keep the messages at hand.
    """

    images: DataFrame
    """Changes, as `penstock.model.image_schema` has them."""
    refused: DataFrame
    """``partition``, ``offset``, ``problem``: undecodable messages, and those that break a rule of the envelope."""
    strict: DataFrame
    """The images once more, for those who may not go on without a message: reading them fails where one is refused."""


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
    refused = messages.filter(~fine).select("partition", "offset", "problem")
    strict = F.when(fine, F.lit(True)).otherwise(F.raise_error(_told()).cast("boolean"))
    return Enveloped(_images(messages.filter(fine), changes), refused, _images(messages.filter(strict), changes))


def _told() -> Column:
    place = F.concat(F.lit("the message at offset "), "offset", F.lit(" of partition "), "partition")
    return F.concat(place, F.lit(" cannot be taken in: "), "problem")


def _images(messages: DataFrame, changes: Column) -> DataFrame:
    exploded = messages.select("_tick", ordinal().alias("_ordinal"), "timestamp", F.explode(changes).alias("change"))
    return exploded.select(
        F.col("_tick").cast("bigint").alias("_lsn"),
        "_ordinal",
        F.col("change").getField("_image").alias("_image"),
        F.lit(0).cast("bigint").alias("_xid"),
        F.col("timestamp").alias("_committed_at"),
        F.lit(None).cast("array<int>").alias("_unchanged"),
        F.col("change").getField("row").alias("row"),
    )
