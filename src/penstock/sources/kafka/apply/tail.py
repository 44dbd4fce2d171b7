"""A topic's table at a position: its base table at or before that position, overlaid with the messages in between.

The counterpart of `penstock.tables.live_table` for a log of messages instead of changes; Spark reads the messages from
Kafka. A rejected message is left out if the source quarantines messages. Otherwise it is an error for readers at a
position after it: immediately for few messages, during execution for many. The same applies to ENVELOPE DEBEZIUM
changes that contradict the existing rows (`penstock.sources.kafka.apply.changes`).
"""

from __future__ import annotations

from contextlib import closing

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.apply.changes import Changes, changes_of
from penstock.sources.kafka.apply.debezium_checks import first_contradiction, missing_changes_hint
from penstock.sources.kafka.apply.messages import messages_of, raw_messages
from penstock.sources.kafka.apply.quarantine import Quarantine, first_faults, quarantined_rows
from penstock.sources.kafka.faults import fault_error, quarantine_hint, quarantine_limit_hint
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.with_options import OnError
from penstock.spark.images import spark_schema
from penstock.tables.base_state import State
from penstock.tables.contents import Contents
from penstock.tables.fold import fold
from penstock.tables.interface import BaseTable
from penstock.tables.log_tail import Tail, fold_small
from penstock.tables.overlay import overlay

__all__ = ["check_quarantine_limit", "live_quarantine", "live_topic", "rows_in", "topic_tail"]


def live_topic(
    spark: SparkSession, log: TopicLog, rows: DataFrame, at: State, schema: TableSchema, upto: Lsn
) -> DataFrame:
    """Advance the `rows` of a table from the position of `at` to `upto`."""
    table = log.table(schema.table)
    assert table is not None, "every table of a topic log comes from a topic"
    messages = messages_of(spark, log, table, at.position, upto)
    if messages is None:
        return rows
    changes = changes_of(messages, table, at.memory, rows)
    lenient = log.how.on_error is OnError.QUARANTINE
    if not lenient and changes.few is not None and (faults := first_faults(changes)):
        raise fault_error(table, log.bounds(table, at.position, upto), faults, quarantine_hint(log.source, log.what))
    if apart := first_contradiction(changes, rows, schema, table):
        raise fault_error(table, log.bounds(table, at.position, upto), [apart], missing_changes_hint(log))
    if not schema.key:
        return rows.union(rows_in(changes.found.images if lenient else changes.found.strict, schema))
    tail = topic_tail(spark, log, changes, schema, at.position, upto, lenient=lenient)
    return overlay(rows, tail.net, schema, tail.contents)


def live_quarantine(
    spark: SparkSession, log: TopicLog, stored: Quarantine, base: BaseTable, at: State, upto: Lsn
) -> DataFrame:
    """Return the quarantine at a position: the stored messages, and those that apply will quarantine up to there.

    For the latter, ``quarantined_at`` is null.
    """
    table = log.table(at.schema.table)
    assert table is not None, "every table of a topic log comes from a topic"
    rows, reached = stored.now(base.incarnation())
    after = max(at.position, reached)
    raw = raw_messages(spark, log, table, after, upto) if after < upto else None
    messages = None if raw is None else messages_of(spark, log, table, at.position, upto)
    if raw is None or messages is None or log.how.on_error is not OnError.QUARANTINE:
        return rows
    rejected = changes_of(messages, table, at.memory, base.at(at.version)).found.rejected
    return rows.unionByName(quarantined_rows(raw, rejected, F.lit(None).cast("timestamp")))


def check_quarantine_limit(
    spark: SparkSession, log: TopicLog, stored: Quarantine, base: BaseTable, at: State, upto: Lsn, local: str
) -> None:
    """Raise the error that will stop apply if more messages are rejected up to a position than the limit allows."""
    limit = log.how.quarantine_limit
    if log.how.on_error is not OnError.QUARANTINE or limit is None:
        return
    table = log.table(at.schema.table)
    assert table is not None, "every table of a topic log comes from a topic"
    messages = messages_of(spark, log, table, at.position, upto)
    faults = [] if messages is None else first_faults(changes_of(messages, table, at.memory, base.at(at.version)))
    if faults and live_quarantine(spark, log, stored, base, at, upto).count() > limit:
        raise fault_error(table, log.bounds(table, at.position, upto), faults, quarantine_limit_hint(log.source, local))


def topic_tail(
    spark: SparkSession, log: TopicLog, changes: Changes, schema: TableSchema, after: Lsn, upto: Lsn, *, lenient: bool
) -> Tail:
    """Return the net change of messages; unless `lenient`, reading many fails if one was rejected."""
    contents = _contents(log, schema, after, upto)
    if changes.few is None:
        return Tail(fold(changes.found.images if lenient else changes.found.strict, schema, contents), contents)
    net, known = fold_small(changes.few, schema, contents)
    return Tail(spark.createDataFrame(net, spark_schema(net.schema)), known)


def _contents(log: TopicLog, schema: TableSchema, after: Lsn, upto: Lsn) -> Contents:
    """Describe a range before it is read."""
    with closing(log.reader()) as reader:
        extent = reader.extent(schema.table, after, upto)
    return Contents(
        rows=2 * extent.rows,  # the old row and the new one
        inserts_only=extent.kinds == 1 << Image.INSERTED,
        unchanged=extent.unchanged,
        moved=extent.has(Image.BEFORE),
    )


def rows_in(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows of images that only add rows."""
    return images.select(*(F.col("row").getField(name).alias(name) for name in schema.columns.names))
