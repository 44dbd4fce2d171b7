"""Messages of a range of a topic, as a frame: read by Spark's Kafka reader, decoded in Arrow batches.

::

    (after, upto] ─▶ ranges of offsets ─▶ format("kafka"), these and no others ─▶ decode key ─▶ decode value ─▶ messages
                          └─▶ which tick each offset is of ──────────────────────────────────────────▲

Columns are those that envelopes want (`penstock.envelopes.messages`), and ``headers`` where they are asked for. A range
is the same messages whenever it is read, for as long as Kafka has them: that they are gone is an error, never fewer
rows. Where a topic has one partition, or a range one tick, offsets alone tell the order, and ticks are not looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import LongType

from penstock.formats import Registry, ResolvedFormat, decode
from penstock.formats.registry import RegistryAddress
from penstock.positions import Lsn
from penstock.sources.kafka.spark_options import spark_options
from penstock.sources.kafka.ticks import OffsetRange, assigned, tick_bounds, tick_of, tick_table
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable

__all__ = ["decoded", "raw_messages"]

_TASK_MESSAGES = 500_000


def raw_messages(spark: SparkSession, log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn) -> DataFrame | None:
    """Return the messages of (after, upto] as they are, each with its ``_tick``; None where there are none."""
    ranges = log.ranges(table, after, upto)
    if not ranges:
        return None
    options = assigned(spark_options(log.what, log.how, log.source, log.state / "spark"), ranges)
    options["minPartitions"] = str(_tasks(ranges))
    options["includeHeaders"] = str(any(column.what == "headers" for column in table.include)).lower()
    frame = spark.read.format("kafka").options(**options).load()
    return frame.withColumn("_tick", _tick(log, table, after, upto, len(ranges)))


def decoded(raw: DataFrame, table: TopicTable, cache: Path) -> DataFrame:
    """Return messages with their keys and values as rows; what cannot be decoded has its ``problem``.

    Schemas of a registry are kept in the folder `cache`. Where messages name schemas, they are read once for these.
    """
    frame = raw.withColumn("tombstone", F.col("value").isNull()).withColumn("key_problem", F.lit(None).cast("string"))
    if table.key_format is not None:
        client = _registry(table.key_format, cache)
        frame = decode(frame, "key", table.key_format, client, into="key", problem="key_problem")
    client = _registry(table.value_format, cache)
    frame = decode(frame, "value", table.value_format, client, into="value", problem="value_problem")
    problem = F.coalesce(_of("key"), _of("value")).alias("problem")
    there = [] if table.key_format is None else ["key"]
    there += ["value", "tombstone", "_tick", "partition", "offset", "timestamp"]
    there += ["headers"] if "headers" in frame.columns else []
    return frame.select(*there, problem)


def _of(part: str) -> Column:
    return F.concat(F.lit(f"its {part} cannot be decoded: "), F.col(f"{part}_problem"))


def _tasks(ranges: list[OffsetRange]) -> int:
    return max(len(ranges), sum(part.last - part.first for part in ranges) // _TASK_MESSAGES)


def _registry(resolved: ResolvedFormat, cache: Path) -> Registry | None:
    address = getattr(resolved.format, "registry", None)
    return None if address is None else _client(address, cache)


@lru_cache(maxsize=64)
def _client(address: RegistryAddress, cache: Path) -> Registry:
    """Return one client for all batches: it remembers what it was told."""
    return Registry(address, cache)


def _tick(log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn, partitions: int) -> Column:
    """Return the tick of each message; that of the whole range where its order does not depend on it."""
    if partitions > 1:
        with closing(log.ticks.reader()) as reader:
            ticks = tick_table(table.topic.name).name
            bounds = tick_bounds(reader.read(reader.extent(ticks, after, upto)))
        if len(np.unique(bounds.column("tick").to_numpy())) > 1:
            # Its stubs ask for the kind of function, which it takes from the annotations.
            look_up = arrow_udf(_looking_up(bounds), LongType())  # type: ignore[call-overload]
            found: Column = look_up("partition", "offset")
            return found
    return F.lit(int(upto)).cast("bigint")


def _looking_up(bounds: pa.Table) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Return the function that executors call with each batch."""

    def ticks(partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        return tick_of(bounds, partitions.to_numpy(zero_copy_only=False), offsets.to_numpy(zero_copy_only=False))

    return ticks
