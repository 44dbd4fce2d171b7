"""Input and output of an envelope: decoded messages, images and rejected messages.

::

    messages ──▶ with_problem: a problem, or none ──┬──▶ images    (without a problem: the changes)
                                                    └──▶ rejected  (with a problem: partition, offset, problem)

A DataFrame of messages has one row per message:

- ``key``, ``value``: structs, or null
- ``tombstone``: whether the message has no value
- ``_tick``: the position of the source at which the message became visible; it orders messages across partitions
- ``partition``, ``offset``, ``timestamp``: as in Kafka
- ``problem``: why the message could not be decoded, or null
- ``only_partition``: whether the topic had one partition at the tick, so that the message has a place among all others;
  without this column, it is unknown

Images have the columns of `penstock.model.image_schema`. ``_lsn`` is the tick. ``_ordinal`` encodes partition and
offset in one number, so that the messages of a tick are ordered without counting, and an image identifies its message.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.errors import UsageError
from penstock.model import Image

__all__ = [
    "MOST_PARTITIONS",
    "OFFSET_BITS",
    "OUT_OF_RANGE",
    "Enveloped",
    "enveloped",
    "image",
    "in_only_partition",
    "message_type",
    "ordinal",
    "partition_and_offset",
    "with_problem",
]

OFFSET_BITS = 44
"""The lower bits of an ordinal, which are the offset."""
_OFFSETS = 1 << OFFSET_BITS
MOST_PARTITIONS = 1 << (63 - OFFSET_BITS)
OUT_OF_RANGE = "partition or offset exceeds the range of the change log"
_IMAGE = ("_lsn", "_ordinal", "_image", "_xid", "_committed_at", "_unchanged", "row")


@dataclass(frozen=True)
class Enveloped:
    """The result for a set of messages: each message yields `images` (possibly none) or is in `rejected`, never both.

    All properties are lazy and read the messages separately: a caller that uses several should cache the messages, or
    compute `results` once and replace it.
    """

    results: DataFrame
    """Images and rejected messages: images with ``partition`` and ``offset``; ``problem`` if there is no image."""

    @property
    def images(self) -> DataFrame:
        """The changes, with the columns of `penstock.model.image_schema`."""
        return self.results.filter(F.col("problem").isNull()).select(*_IMAGE)

    @property
    def rejected(self) -> DataFrame:
        """``partition``, ``offset``, ``problem`` of undecodable messages and of those that violate an envelope rule."""
        return self.results.filter(F.col("problem").isNotNull()).select("partition", "offset", "problem")

    @property
    def strict(self) -> DataFrame:
        """The images, for callers that must not skip a message: reading them fails if a message is rejected.

        Spark must not combine the condition with other filters or push others below it: a predicate of the query, or
        one derived by a fold, could otherwise drop a rejected message before the check.
        """
        unmovable = F.spark_partition_id() >= 0
        fine = F.col("problem").isNull() | (F.raise_error(_rejection()).cast("boolean") & unmovable)
        return self.results.filter(fine).select(*_IMAGE)


def message_type(messages: DataFrame, name: str) -> StructType:
    """Return the struct type of ``key`` or ``value``."""
    kind = messages.schema[name].dataType
    if not isinstance(kind, StructType):
        message = f"column {name!r} of decoded messages is not a struct"
        raise UsageError(message, "Decode the messages first: a format returns a struct even for a single column.")
    return kind


def with_problem(messages: DataFrame, *problems: Column) -> DataFrame:
    """Return messages with ``problem`` set to the first problem of each."""
    beyond = (F.col("partition") >= MOST_PARTITIONS) | (F.col("offset") >= _OFFSETS)
    placed = F.when(beyond, F.lit(OUT_OF_RANGE))
    return messages.withColumn("problem", F.coalesce(F.col("problem"), placed, *problems))


def ordinal() -> Column:
    """Return partition and offset as one number with the same order."""
    return F.shiftleft(F.col("partition").cast("bigint"), OFFSET_BITS).bitwiseOR(F.col("offset"))


def partition_and_offset(number: Column) -> tuple[Column, Column]:
    """Return the partition and offset of an `ordinal`."""
    return F.shiftright(number, OFFSET_BITS).cast("int"), number.bitwiseAND(_OFFSETS - 1)


def image(kind: Image, row: Column) -> Column:
    """Return one image of a change."""
    return F.struct(F.lit(int(kind)).cast("tinyint").alias("_image"), row.alias("row"))


def in_only_partition(messages: DataFrame) -> Column:
    """Return whether a message is known to have a place in the order of all messages of its topic."""
    known = "only_partition" in messages.columns
    return F.coalesce(F.col("only_partition"), F.lit(False)) if known else F.lit(False)


def enveloped(messages: DataFrame, changes: Column) -> Enveloped:
    """Return the result for checked messages; `changes` is the array of images of a message without a problem."""
    fine = F.col("problem").isNull()
    each = F.explode_outer(F.when(fine, changes)).alias("change")
    place = ("partition", "offset", "problem")
    exploded = messages.select("_tick", ordinal().alias("_ordinal"), "timestamp", *place, each)
    results = exploded.filter(~fine | F.col("change").isNotNull()).select(
        F.col("_tick").cast("bigint").alias("_lsn"),
        "_ordinal",
        F.col("change").getField("_image").alias("_image"),
        F.lit(0).cast("bigint").alias("_xid"),
        F.col("timestamp").alias("_committed_at"),
        F.lit(None).cast("array<int>").alias("_unchanged"),
        F.col("change").getField("row").alias("row"),
        *place,
    )
    return Enveloped(results)


def _rejection() -> Column:
    place = F.concat(F.lit("the message at offset "), "offset", F.lit(" of partition "), "partition")
    return F.concat(place, F.lit(" is rejected: "), "problem")
