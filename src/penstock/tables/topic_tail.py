"""A topic's table at a position: its base at or before it, and the messages in between.

The same as `penstock.tables.live` does of a log that holds the changes; here they are messages, and Spark reads them
where they are. A message that cannot be taken in is left out where it is put into quarantine, and else an error of
whoever reads the table at a position behind it: of few messages at once, of many when Spark comes to it. The same holds
for changes of ENVELOPE DEBEZIUM that do not follow from the rows that are there (`penstock.tables.debezium_checks`).
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
from penstock.spark.topics.messages import messages_of, raw_messages
from penstock.tables.base_state import State
from penstock.tables.contents import Contents
from penstock.tables.debezium_checks import first_breach, missing_changes
from penstock.tables.fold import fold
from penstock.tables.interface import BaseTable
from penstock.tables.overlay import overlay
from penstock.tables.quarantine import (
    Quarantine,
    ended_by,
    first_faults,
    how_to_go_on,
    how_to_raise_the_limit,
    quarantined_rows,
)
from penstock.tables.small_fold import fold_small
from penstock.tables.tail import Tail

__all__ = ["check_quarantine_limit", "live_quarantine", "live_topic", "rows_in", "topic_tail"]


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
        raise ended_by(log, table, at.position, upto, faults, how_to_go_on(log))
    if apart := first_breach(changes, rows, schema, table):
        raise ended_by(log, table, at.position, upto, [apart], missing_changes(log))
    if not schema.key:
        return rows.union(rows_in(changes.found.images if lenient else changes.found.strict, schema))
    tail = topic_tail(spark, log, changes, schema, at.position, upto, lenient=lenient)
    return overlay(rows, tail.net, schema, tail.contents)


def live_quarantine(
    spark: SparkSession, log: TopicLog, stored: Quarantine, base: BaseTable, at: State, upto: Lsn
) -> DataFrame:
    """Return what is in quarantine at a position: what is stored, and what apply will put aside up to there.

    Of the latter, ``quarantined_at`` is null.
    """
    table = log.table(at.schema.table)
    assert table is not None, "every table of such a log is made by a topic"
    rows, reached = stored.now(base.incarnation())
    after = max(at.position, reached)
    raw = raw_messages(spark, log, table, after, upto) if after < upto else None
    messages = None if raw is None else messages_of(spark, log, table, at.position, upto)
    if raw is None or messages is None or log.how.on_error is not OnError.QUARANTINE:
        return rows
    refused = changes_of(messages, table, at.memory, base.at(at.version)).found.refused
    return rows.unionByName(quarantined_rows(raw, refused, F.lit(None).cast("timestamp")))


def check_quarantine_limit(
    spark: SparkSession, log: TopicLog, stored: Quarantine, base: BaseTable, at: State, upto: Lsn, local: str
) -> None:
    """Raise the error at which apply will end, if more messages are rejected up to a position than the limit allows."""
    limit = log.how.quarantine_limit
    if log.how.on_error is not OnError.QUARANTINE or limit is None:
        return
    table = log.table(at.schema.table)
    assert table is not None, "every table of such a log is made by a topic"
    messages = messages_of(spark, log, table, at.position, upto)
    faults = [] if messages is None else first_faults(changes_of(messages, table, at.memory, base.at(at.version)))
    if faults and live_quarantine(spark, log, stored, base, at, upto).count() > limit:
        raise ended_by(log, table, at.position, upto, faults, how_to_raise_the_limit(log, local))


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
