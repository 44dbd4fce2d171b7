"""A topic's table at a position: its base table at or before that position, overlaid with the messages in between.

The counterpart of `penstock.tables.live_table` for a log of messages instead of changes; Spark reads the messages from
Kafka. A rejected message is left out if the source quarantines messages. Otherwise it is an error for readers at a
position after it: immediately for few messages, during execution for many. The same applies to ENVELOPE DEBEZIUM
changes that contradict the existing rows (`penstock.sources.kafka.apply.changes`).

If the table gained columns in between, the messages before and after that tick are decoded and overlaid separately.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.model import Image, TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.apply.changes import Changes, changes_of, memory_after
from penstock.sources.kafka.apply.debezium_checks import first_contradiction, missing_changes_hint
from penstock.sources.kafka.apply.messages import messages_of, raw_messages
from penstock.sources.kafka.apply.quarantine import Quarantine, first_faults, quarantined_rows
from penstock.sources.kafka.faults import fault_error, quarantine_hint, quarantine_limit_hint
from penstock.sources.kafka.topic_log import RangePart, TopicLog
from penstock.sources.kafka.with_options import OnError
from penstock.spark.images import spark_schema
from penstock.tables.base_state import State
from penstock.tables.columns import quoted, widened
from penstock.tables.contents import Contents
from penstock.tables.fold import fold
from penstock.tables.interface import BaseTable
from penstock.tables.log_tail import Tail, fold_small
from penstock.tables.overlay import overlay

__all__ = ["check_quarantine_limit", "live_quarantine", "live_topic", "rows_in", "topic_tail"]


def live_topic(
    spark: SparkSession, log: TopicLog, rows: DataFrame, at: State, schema: TableSchema, upto: Lsn
) -> DataFrame:
    """Advance the `rows` of a table from the position of `at` to `upto`; they have the columns at `upto`."""
    lenient = log.how.on_error is OnError.QUARANTINE
    for stage in _stages(spark, log, rows, schema, at, upto, lenient=lenient):
        rows, changes = stage.rows, stage.changes
        if changes is None:
            continue
        table, after, until = stage.part
        if not lenient and changes.few is not None and (faults := first_faults(changes)):
            raise fault_error(table, log.bounds(table, after, until), faults, quarantine_hint(log.source, log.what))
        if apart := first_contradiction(changes, rows, table.table_schema(), table):
            raise fault_error(table, log.bounds(table, after, until), [apart], missing_changes_hint(log))
        rows = _advanced(spark, log, stage, changes, lenient=lenient)
    return rows


class _Stage(NamedTuple):
    """A part of a range, the rows of the table before it, and the changes of its messages if it has any."""

    part: RangePart
    rows: DataFrame
    changes: Changes | None


def _stages(
    spark: SparkSession, log: TopicLog, rows: DataFrame, schema: TableSchema, at: State, upto: Lsn, *, lenient: bool
) -> Iterator[_Stage]:
    """Yield the parts of a range in which the columns do not change; `rows` have the columns of `schema`."""
    table = log.table(schema.table)
    assert table is not None, "every table of a topic log comes from a topic"
    memory, columns, parts = at.memory, schema, log.parts(table, at.position, upto)
    for number, part in enumerate(parts):
        rows, columns = _with_columns_of(spark, rows, columns, part.table.table_schema()), part.table.table_schema()
        messages = messages_of(spark, log, part.table, part.after, part.upto)
        changes = None if messages is None else changes_of(messages, part.table, memory, rows)
        stage = _Stage(part, rows, changes)
        yield stage
        if changes is not None and number < len(parts) - 1:
            rows, memory = _advanced(spark, log, stage, changes, lenient=lenient), memory_after(changes)


def _with_columns_of(spark: SparkSession, rows: DataFrame, known: TableSchema, wanted: TableSchema) -> DataFrame:
    """Return rows with the columns of another version of their table."""
    if len(known.columns) > len(wanted.columns):
        return rows.select(*map(quoted, wanted.columns.names))
    return widened(spark, rows, wanted.added_to(known))


def _advanced(spark: SparkSession, log: TopicLog, stage: _Stage, changes: Changes, *, lenient: bool) -> DataFrame:
    """Return the rows after a part; unless `lenient`, reading them fails if a message was rejected."""
    schema = stage.part.table.table_schema()
    if not schema.key:
        return stage.rows.union(rows_in(changes.found.images if lenient else changes.found.strict, schema))
    tail = topic_tail(spark, log, changes, schema, stage.part.after, stage.part.upto, lenient=lenient)
    return overlay(stage.rows, tail.net, schema, tail.contents)


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
    if raw is None or log.how.on_error is not OnError.QUARANTINE:
        return rows
    for stage in _stages(spark, log, base.at(at.version), at.schema, at, upto, lenient=True):
        if stage.changes is not None:
            rejected = stage.changes.found.rejected
            rows = rows.unionByName(quarantined_rows(raw, rejected, F.lit(None).cast("timestamp")))
    return rows


def check_quarantine_limit(
    spark: SparkSession, log: TopicLog, stored: Quarantine, base: BaseTable, at: State, upto: Lsn, local: str
) -> None:
    """Raise the error that will stop apply if more messages are rejected up to a position than the limit allows."""
    limit = log.how.quarantine_limit
    if log.how.on_error is not OnError.QUARANTINE or limit is None:
        return
    table = log.table(at.schema.table)
    assert table is not None, "every table of a topic log comes from a topic"
    stages = _stages(spark, log, base.at(at.version), at.schema, at, upto, lenient=True)
    faults = [fault for stage in stages if stage.changes is not None for fault in first_faults(stage.changes)]
    if faults and live_quarantine(spark, log, stored, base, at, upto).count() > limit:
        raise fault_error(table, log.bounds(table, at.position, upto), faults, quarantine_limit_hint(log.source, local))


def topic_tail(
    spark: SparkSession, log: TopicLog, changes: Changes, schema: TableSchema, after: Lsn, upto: Lsn, *, lenient: bool
) -> Tail:
    """Return the net change of messages; unless `lenient`, reading many fails if one was rejected."""
    last = changes.truncates[-1] if changes.truncates else None
    contents = replace(_contents(log, schema, after, upto), truncated=last)
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
