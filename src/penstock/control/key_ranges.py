"""Ranges of a key, one after the other, into a base table: each a window, each one commit with how far it is."""

from __future__ import annotations

import time

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.sources.postgres.windows import Windows
from penstock.spark.ranges import spark_schema
from penstock.tables.base import BaseTable
from penstock.tables.commits import Copied

__all__ = ["KeyRanges", "frame"]

_FEWEST_ROWS, _MOST_ROWS = 1_000, 1_000_000
_GOAL_SECONDS = 5.0
_MOST_BYTES = 64 << 20


class KeyRanges:
    """Copies range after range; they become larger or smaller, so that each takes about as long as it should."""

    def __init__(self, spark: SparkSession, windows: Windows, base: BaseTable, rows: int) -> None:
        self._spark = spark
        self._windows = windows
        self._base = base
        self._rows = rows
        self._fewest = min(_FEWEST_ROWS, rows)

    def copy_next(self, last: Copied | None) -> Copied:
        """Copy the range that follows the last one: rows and progress are one commit."""
        began = time.monotonic()
        window = self._windows.range(last.upto if last else None, self._rows)
        number, rows, size = (last.number, last.rows, last.size) if last else (0, 0, 0)
        size += window.rows.nbytes
        chunk = Copied(number + 1, rows + len(window.rows), size, window.upto, window.high)
        self._base.add_chunk(frame(self._spark, window.rows), chunk)
        self._adapt(time.monotonic() - began, window.rows.nbytes)
        return chunk

    def _adapt(self, seconds: float, size: int) -> None:
        """Choose how many rows the next range shall have."""
        factor = min(_GOAL_SECONDS / max(seconds, 0.01), _MOST_BYTES / max(size, 1))
        self._rows = round(min(max(self._rows * min(max(factor, 0.25), 2.0), self._fewest), _MOST_ROWS))


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Give rows to Spark, with the types that their table has there."""
    return spark.createDataFrame(rows, spark_schema(rows.schema))
