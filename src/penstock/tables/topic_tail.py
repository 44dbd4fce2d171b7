"""A topic's table at a position: its base at or before it, and the messages in between.

The same as `penstock.tables.live` does of a log that holds the changes; here they are messages, and Spark reads them
where they are. A message that cannot be taken in is left out where it is put into quarantine, and else an error of
whoever reads the table at a position behind it: of few messages at once, of many when Spark comes to it.
"""

from __future__ import annotations

from contextlib import closing

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.with_options import OnError
from penstock.spark.ranges import spark_schema
from penstock.spark.topics.changes import Changes, changes_of
from penstock.spark.topics.messages import messages_of
from penstock.tables.base_state import State
from penstock.tables.contents import Contents
from penstock.tables.fold import fold
from penstock.tables.overlay import overlay
from penstock.tables.refused import ended_by, first_faults, how_to_go_on
from penstock.tables.small_fold import fold_small
from penstock.tables.tail import Tail

__all__ = ["live_topic", "rows_in", "topic_tail"]


def live_topic(
    spark: SparkSession, log: TopicLog, rows: DataFrame, at: State, schema: TableSchema, upto: Lsn
) -> DataFrame:
    """Return what the `rows` of a table at one position are at a later one."""
    table = log.table(schema.table)
    assert table is not None, "every table of such a log is made by a topic"
    messages = messages_of(spark, log, table, at.position, upto)
    if messages is None:
        return rows
    changes = changes_of(messages, table, at.memory, rows)
    lenient = log.how.on_error is OnError.QUARANTINE
    if not lenient and changes.few is not None and (faults := first_faults(changes)):
        raise ended_by(log, table, at.position, upto, faults, how_to_go_on(log, table))
    if not schema.key:
        return rows.union(rows_in(changes.found.images if lenient else changes.found.strict, schema))
    tail = topic_tail(spark, log, changes, schema, at.position, upto, lenient=lenient)
    return overlay(rows, tail.net, schema, tail.contents)


def topic_tail(
    spark: SparkSession, log: TopicLog, changes: Changes, schema: TableSchema, after: Lsn, upto: Lsn, *, lenient: bool
) -> Tail:
    """Return the net effect of changes; unless `lenient`, that of many cannot be read where a message was refused."""
    contents = _contents(log, schema, after, upto)
    if changes.few is None:
        return Tail(fold(changes.found.images if lenient else changes.found.strict, schema, contents), contents)
    net, known = fold_small(changes.few, schema, contents)
    return Tail(spark.createDataFrame(net, spark_schema(net.schema)), known)


def _contents(log: TopicLog, schema: TableSchema, after: Lsn, upto: Lsn) -> Contents:
    """Say what is known of a range before it is read."""
    with closing(log.reader()) as reader:
        extent = reader.extent(schema.table, after, upto)
    return Contents(
        rows=2 * extent.rows,  # the old row and the new one
        inserts_only=extent.kinds == 1 << Image.INSERTED,
        unchanged=extent.unchanged,
        moved=extent.has(Image.BEFORE),
    )


def rows_in(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows of images that add rows and do nothing else."""
    return images.select(*(F.col("row").getField(name).alias(name) for name in schema.columns.names))
