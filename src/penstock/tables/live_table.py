"""A live table at a position: its base table at or before that position, overlaid with the log in between."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.tables.base_state import State
from penstock.tables.columns import quoted, widened
from penstock.tables.log_tail import read_tail
from penstock.tables.message_tables import message_tables
from penstock.tables.overlay import overlay

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
    """Return the table at `upto` with the columns of `schema`, from a base version that may be `damaged`."""
    rows = spark.read.format("delta").option("versionAsOf", at.version).load(str(base))
    rows = rows.select(*map(quoted, at.schema.columns.names))
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
    """Advance the `rows` of a table from the position of `at` to `upto`."""
    rows = widened(spark, rows, schema.added_to(at.schema))
    if (messages := message_tables(log)) is not None:
        return messages.live(spark, rows, at, schema, upto)
    tail = read_tail(spark, log, schema, at.position, upto)
    return rows if tail is None else overlay(rows, tail.net, schema, tail.contents, damaged=damaged)
