"""The messages of a topic range as a DataFrame: read by Spark's Kafka source, decoded in Arrow batches.

::

    (after, upto] ─▶ ranges of offsets ─▶ format("kafka"), exactly these ─▶ raw
                                                                             │ few: fetched and decoded here,
              tick of each offset ─▶ messages ◀── decode key, value ◀────────┤      a local relation
                                                                             └ many: by Spark tasks

Columns are those that envelopes require (`penstock.envelopes.messages`), and ``headers`` on request. Reading a range
always returns the same messages as long as Kafka retains them: messages that retention has removed are an error, never
fewer rows. If a topic has one partition, or a range one tick, offsets alone determine the order, and ticks are not
looked up.

Few messages, the usual case in a live view, are fetched once, when the DataFrame is created, without Python workers;
using the DataFrame again reads nothing again. Many messages are read each time the DataFrame is used. The size of
messages is unknown before they are read: the fetch leaves out messages that could exceed the memory limit, and if there
are any, the range is handled like many messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.envelopes.include_columns import HEADERS
from penstock.errors import HistoryExpiredError, TableError, TransientError
from penstock.formats import decode
from penstock.formats.logical_types import spark_type
from penstock.positions import Lsn
from penstock.sources.kafka.client_settings import spark_options
from penstock.sources.kafka.ticks import OffsetRange, assignment_options, single_partition_ticks, tick_of
from penstock.sources.kafka.topic_admin import TopicAdmin
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_identity import recreated
from penstock.sources.kafka.topic_images import decoded_messages, has_headers, registry_of
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_start import Start, restart_hint
from penstock.sources.kafka.topic_table import TopicTable
from penstock.spark.worker_errors import brief

__all__ = ["messages_of", "raw_messages", "require_captured_topic"]

_TASK_MESSAGES = 500_000
_FEW_MESSAGES = 50_000
_FEW_BYTES = 64 << 20
_KEY, _VALUE = "its key cannot be decoded: ", "its value cannot be decoded: "


def raw_messages(spark: SparkSession, log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn) -> DataFrame | None:
    """Return the undecoded messages of (after, upto], or None if there are none."""
    ranges = log.ranges(table, after, upto)
    return _raw(spark, log, table, ranges) if ranges else None


def messages_of(spark: SparkSession, log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn) -> DataFrame | None:
    """Return the messages of (after, upto] with keys and values as rows; undecodable messages have a ``problem``.

    Return None if there are none; raise `HistoryExpiredError` if Kafka no longer has them. Schema ids are looked up in
    the registry before this returns. A DataFrame that `isLocal` is already materialized; any other is read later, so
    call `require_captured_topic` after reading it, before storing what was read.
    """
    ranges = log.ranges(table, after, upto)
    if not ranges:
        return None
    raw, ticks = _raw(spark, log, table, ranges), _ticks(log, table, after, upto)
    with _read_errors_explained(log, ranges):
        few = _fetched(raw, _count(ranges)) if _count(ranges) <= _FEW_MESSAGES else None
    if few is None:
        _check_not_expired(log, ranges)
    require_captured_topic(log, table, after)
    if few is not None:
        return _decoded_here(spark, few, table, log.schemas, ticks, upto)
    tick = F.lit(int(upto)).cast("bigint") if ticks.bounds is None else _tick_column(ticks.bounds)
    found = raw.withColumn("_tick", tick)
    if ticks.single is not None:
        found = found.withColumn("only_partition", F.col("_tick") <= int(ticks.single))
    return _decoded(found, table, log.schemas)


def require_captured_topic(log: TopicLog, table: TopicTable, after: Lsn) -> None:
    """Raise the error of a table whose topic was recreated: what was read after a position was not captured."""
    with TopicAdmin(log.what, log.how, log.source) as admin:
        message = recreated(admin, table.topic)
    if message is not None:
        raise TableError(str(table.name), Lsn(after + 1), message, restart_hint(log.source, log.what))


def _raw(spark: SparkSession, log: TopicLog, table: TopicTable, ranges: list[OffsetRange]) -> DataFrame:
    options = assignment_options(spark_options(log.what, log.how, log.source, log.state / "spark"), ranges)
    options["minPartitions"] = str(max(len(ranges), _count(ranges) // _TASK_MESSAGES))
    options["includeHeaders"] = str(has_headers(table)).lower()
    return spark.read.format("kafka").options(**options).load()


# -- few: here ---------------------------------------------------------------------------------------------------------


def _fetched(raw: DataFrame, count: int) -> pa.Table | None:
    """Return `count` messages, or None if one of them exceeds its share of the memory limit."""
    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    fits = size <= _FEW_BYTES // count
    fitting = {name: F.when(fits, F.col(name)).alias(name) for name in ("key", "value")}
    found = raw.select(*(fitting.get(name, name) for name in raw.columns), fits.alias("fits")).toArrow()
    return found if pc.all(found.column("fits"), min_count=0).as_py() else None


def _decoded_here(
    spark: SparkSession, found: pa.Table, table: TopicTable, cache: Path, which: _Ticks, upto: Lsn
) -> DataFrame:
    ticks = pa.repeat(pa.scalar(int(upto), pa.int64()), len(found))
    if which.bounds is not None:
        ticks = tick_of(which.bounds, found.column("partition").to_numpy(), found.column("offset").to_numpy())
    alone = pc.less_equal(ticks, -1 if which.single is None else int(which.single))
    messages = decoded_messages(found, table, cache, ticks, alone)
    columns = {
        "key": messages.key,
        "value": messages.value,
        "tombstone": messages.tombstone,
        "_tick": messages.tick,
        "partition": messages.partition,
        "offset": messages.offset,
        "timestamp": messages.timestamp,
        "headers": messages.headers,
        "problem": messages.problem,
        "only_partition": None if which.single is None else messages.only_partition,
    }
    there = {name: column for name, column in columns.items() if column is not None}
    return spark.createDataFrame(pa.table(there), StructType([f for f in _schema(table) if f.name in there]))


def _schema(table: TopicTable) -> list[StructField]:
    return [
        StructField("key", StructType() if table.key_format is None else spark_type(table.key_format)),
        StructField("value", spark_type(table.value_format)),
        StructField("tombstone", BooleanType()),
        StructField("_tick", LongType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("headers", HEADERS),
        StructField("problem", StringType()),
        StructField("only_partition", BooleanType()),
    ]


@contextmanager
def _read_errors_explained(log: TopicLog, ranges: list[OffsetRange]) -> Iterator[None]:
    """Report why messages cannot be read: they expired, the brokers are unreachable, or another Spark error."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        _check_not_expired(log, ranges)
        message = f"could not read messages of topic {ranges[0].topic}: {brief(error)}"
        raise TransientError(message) from error


# -- many: in tasks ----------------------------------------------------------------------------------------------------


def _decoded(raw: DataFrame, table: TopicTable, cache: Path) -> DataFrame:
    frame = raw.withColumn("tombstone", F.col("value").isNull()).withColumn("key_problem", F.lit(None).cast("string"))
    if table.key_format is not None:
        client = registry_of(table.key_format, cache)
        frame = decode(frame, "key", table.key_format, client, into="key", problem="key_problem")
    client = registry_of(table.value_format, cache)
    frame = decode(frame, "value", table.value_format, client, into="value", problem="value_problem")
    problems = [F.concat(F.lit(_KEY), "key_problem"), F.concat(F.lit(_VALUE), "value_problem")]
    absent = {"key"} if table.key_format is None else set()
    absent |= set() if has_headers(table) else {"headers"}
    absent |= {"only_partition"} - set(raw.columns)
    names = [field.name for field in _schema(table) if field.name not in absent | {"problem"}]
    return frame.select(*names, F.coalesce(*problems).alias("problem"))


def _tick_column(bounds: pa.Table) -> Column:
    # The stubs require the function type, which PySpark infers from the annotations.
    look_up = arrow_udf(_tick_lookup(bounds), LongType())  # type: ignore[call-overload]
    found: Column = look_up("partition", "offset")
    return found


def _tick_lookup(bounds: pa.Table) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Return the function that executors call with each batch."""

    def ticks(partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        return tick_of(bounds, partitions.to_numpy(zero_copy_only=False), offsets.to_numpy(zero_copy_only=False))

    return ticks


# -- both --------------------------------------------------------------------------------------------------------------


def _count(ranges: list[OffsetRange]) -> int:
    return sum(part.last - part.first for part in ranges)


class _Ticks(NamedTuple):
    """What has to be known about the ticks of a range."""

    bounds: pa.Table | None
    """The offset range of each tick; None if neither the order of messages nor `single` depends on it."""
    single: Lsn | None
    """The last position at which the topic had one partition; None if it had several throughout."""


def _ticks(log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn) -> _Ticks:
    found = log.bounds(table, after, upto)
    several = all(len(np.unique(found.column(name).to_numpy())) > 1 for name in ("partition", "tick"))
    single = single_partition_ticks(found) if table.records else None
    if single is not None and single == found.column("tick")[-1].as_py():
        return _Ticks(found if several else None, upto)
    return _Ticks(found if several or single is not None else None, single)


# -- expired messages --------------------------------------------------------------------------------------------------

_HINT = "Query a later time. To query further back in the future, increase the retention of the topic."


def _check_not_expired(log: TopicLog, read: Sequence[OffsetRange]) -> None:
    """Raise `HistoryExpiredError` if messages of these ranges, all of one topic, were removed by retention."""
    topic = read[0].topic
    with TopicConsumer(log.what, log.how, log.source, topic) as client:
        starts = client.resolve_offsets(Start())
    for part in read:
        if part.first < starts[part.partition]:
            message = (
                f"partition {part.partition} of topic {topic} now starts at offset {starts[part.partition]}: the "
                f"messages from offset {part.first} on, which source {log.source} needs for this time, have expired"
            )
            raise HistoryExpiredError(message, _HINT)
