"""Base tables in Delta, computed by Spark: the store of every home that is not a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.spark.jobs import SparkJobs
from penstock.spark.ranges import spark_schema
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.compaction import Upkeep
from penstock.tables.compare import Differences, differences
from penstock.tables.interface import UNFINISHED, BaseTable, CreateOptions, NetChange, TableStore, UpstreamTable
from penstock.tables.live import live_table
from penstock.tables.parquet_files import adopt_files
from penstock.tables.shards import union_of_shards
from penstock.tables.snapshot_files import files_of_ranges, rows_of_ranges
from penstock.tables.tail import read_tail

__all__ = ["SparkTables", "table_store"]


def table_store(spark: SparkSession | TableStore) -> TableStore:
    """Return the store that a caller has chosen: a session of Spark stands for its Delta tables."""
    return SparkTables(spark) if isinstance(spark, SparkSession) else spark


class SparkTables:
    """Delta tables in one session of Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    @property
    def parallelism(self) -> int:
        """One range for each task that Spark runs at a time."""
        return max(1, self._spark.sparkContext.defaultParallelism)

    def base(self, path: Path, schema: TableSchema) -> DeltaBaseTable:
        """Open a Delta table."""
        return DeltaBaseTable(self._spark, str(path), schema)

    def rows(self, table: pa.Table) -> DataFrame:
        """Return a DataFrame, with the types that the table has in Spark."""
        return self._spark.createDataFrame(table, spark_schema(table.schema))

    def net_change(self, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> NetChange | None:
        """Fold a range: a small one in Arrow, a large one in Spark."""
        tail = read_tail(self._spark, log, schema, after, upto)
        return None if tail is None else NetChange(tail.net, tail.contents)

    def live(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> DataFrame:
        """Return the table at a position, as a DataFrame."""
        return live_table(self._spark, log, path, at, schema, upto)

    def union_of_shards(self, name: str, shards: Mapping[str, DataFrame]) -> DataFrame:
        """Return the union; Spark drops halves that a filter on the shard excludes."""
        return union_of_shards(name, dict(shards))

    def snapshot(
        self,
        base: BaseTable,
        upstream: UpstreamTable,
        created: CreateOptions,
        notes: Path,
        is_whole: Callable[[], bool],
    ) -> bool:
        """Copy ranges in Spark's tasks: each writes a file, and one commit adds all files.

        A table whose columns are named otherwise in its files is written by Spark, and shows no position before
        `is_whole` has been asked.
        """
        assert isinstance(base, DeltaBaseTable)
        copying = (self._spark, upstream.conninfo, upstream.snapshot, upstream.table, upstream.ranges)
        if base.takes_files():
            files = files_of_ranges(*copying, notes, notes)
            if not is_whole():
                return False
            adopt_files(files, notes, Path(base.path))
            base.create_of_files(files, **created.arguments())
            return True
        base.create(rows_of_ranges(*copying, notes), **created.arguments(), window=UNFINISHED)
        if not is_whole():
            return False
        base.append(self.rows(base.schema.columns.empty_table()), created.position)
        return True

    def upstream(self, upstream: UpstreamTable) -> DataFrame:
        """Read ranges in Spark's tasks."""
        return rows_of_ranges(self._spark, upstream.conninfo, upstream.snapshot, upstream.table, upstream.ranges)

    def differences(
        self, upstream: DataFrame, live: DataFrame, key: Sequence[str], limit: int, *, exact: bool
    ) -> Differences:
        """Compare in Spark."""
        return differences(upstream, live, key, limit, exact=exact)

    def jobs(self, name: str) -> SparkJobs:
        """Return the jobs of the session that have this tag."""
        return SparkJobs(self._spark, name)

    def compaction(self, base: BaseTable) -> Upkeep:
        """Rewrite and vacuum the files of a Delta table."""
        assert isinstance(base, DeltaBaseTable)
        return Upkeep(self._spark, base)
