"""The first copy of a table: Spark tasks read ranges of its pages at one exported snapshot, straight into Delta.

::

    exported snapshot at S ─▶ one task per range of pages ─▶ COPY … (FORMAT binary) ─▶ Arrow ─▶ Delta, one commit at S

The base table then stands at S: changes whose commit ends at or before S are in it, and apply goes on after S. No gap
and no overlap. If the copy dies, nothing is committed, and the table is copied again at a new snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.copy import PageRange, copy_range, copy_ranges
from penstock.sources.postgres.slot import ExportedSnapshot
from penstock.spark.boundary import carrying
from penstock.spark.planner_noise import hush
from penstock.spark.ranges import spark_schema

__all__ = ["CopySource", "rows_of_ranges", "upstream_rows"]


hush()


def upstream_rows(
    spark: SparkSession, conninfo: str, snapshot: ExportedSnapshot, table: CapturedTable, tasks: int
) -> DataFrame:
    """Return the rows of an upstream table as a snapshot shows them. The snapshot must be held while they are read."""
    with connect(conninfo) as connection:
        ranges = copy_ranges(connection, table.name, tasks)
    return rows_of_ranges(spark, conninfo, snapshot, table, ranges)


def rows_of_ranges(
    spark: SparkSession,
    conninfo: str,
    snapshot: ExportedSnapshot,
    table: CapturedTable,
    ranges: Sequence[PageRange],
) -> DataFrame:
    """Return the rows in some ranges of pages, a task each."""
    request = {
        "connection": conninfo,
        "snapshot": snapshot.name,
        "lsn": int(snapshot.lsn),
        "table": table.model_dump_json(),
        "ranges": [(pages.first, pages.last) for pages in ranges],
    }
    spark.dataSource.register(CopySource)
    reader = spark.read.format(CopySource.name()).schema(spark_schema(table.table_schema().columns))
    return reader.option("request", json.dumps(request)).load()


class CopySource(DataSource):
    """Reads one upstream table at a snapshot: ours alone, not a format for users."""

    @classmethod
    def name(cls) -> str:
        """Return the name under which it is registered."""
        return "penstock-copy"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the requested ranges."""
        return _CopyReader(json.loads(self.options["request"]))


class _CopyReader(DataSourceReader):
    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(pages) for pages in self._request["ranges"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        request = self._request
        table = CapturedTable.model_validate_json(request["table"])
        with carrying():
            yield from copy_range(
                request["connection"],
                request["snapshot"],
                table,
                PageRange(*partition.value),
                Lsn(request["lsn"]),
            )
