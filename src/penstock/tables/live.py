"""A table at a position: its base at or before it, and the log in between."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.tables.base_state import State
from penstock.tables.columns import column, widened
from penstock.tables.overlay import overlay
from penstock.tables.tail import read_tail
from penstock.tables.topic_tail import live_topic

__all__ = ["live_rows", "live_table"]


def live_table(
    spark: SparkSession,
    log: ChangeLog,
    base: Path,
    at: State,
    schema: TableSchema,
    upto: Lsn,
    *,
    damaged: bool = False,
) -> DataFrame:
    """Return the table at `upto` with the columns of `schema`, from a version of its base, which may be `damaged`."""
    rows = spark.read.format("delta").option("versionAsOf", at.version).load(str(base))
    rows = rows.select(*map(column, at.schema.columns.names))
    return live_rows(spark, log, rows, at, schema, upto, damaged=damaged)


def live_rows(
    spark: SparkSession,
    log: ChangeLog,
    rows: DataFrame,
    at: State,
    schema: TableSchema,
    upto: Lsn,
    *,
    damaged: bool = False,
) -> DataFrame:
    """Return what the `rows` of a table at one position are at a later one."""
    rows = widened(spark, rows, schema.added_to(at.schema))
    if isinstance(log, TopicLog):
        return live_topic(spark, log, rows, at, schema, upto)
    tail = read_tail(spark, log, schema, at.position, upto)
    return rows if tail is None else overlay(rows, tail.net, schema, tail.contents, damaged=damaged)
