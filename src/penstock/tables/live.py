"""A table at a position: its base at or before it, and the log in between."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.tables.overlay import overlay
from penstock.tables.tail import read_tail

__all__ = ["live_table"]


def live_table(
    spark: SparkSession, log: Path, base: Path, version: int, position: Lsn, schema: TableSchema, upto: Lsn
) -> DataFrame:
    """Return the table at `upto`, from Delta version `version` of its base, which stands at `position`."""
    rows = spark.read.format("delta").option("versionAsOf", version).load(str(base))
    rows = rows.select(*(f"`{name.replace('`', '``')}`" for name in schema.columns.names))
    tail = read_tail(spark, log, schema, position, upto)
    return rows if tail is None else overlay(rows, tail.net, schema, tail.contents)
