"""The store of base tables in Delta, computed by Spark: used by every home outside of tests.

The live tables of several shards are one table, with the shard of each row::

    live table of s1 ── penstock_shard = 's1' ─┐
    live table of s2 ── penstock_shard = 's2' ─┴─ union ──▶ the table, with the columns that any shard has

The union is a plain projection of constants and columns: Spark pushes filters and column pruning down into each half,
and a filter on `penstock_shard` excludes shards before any of their data is read. A column that a shard does not have
yet is null in its rows. Columns with the same name and different types would require a cast, which may change values:
they are an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from penstock.changelog.interface import ChangeLog
from penstock.errors import DefiniteError
from penstock.model import SHARD, TableSchema
from penstock.positions import Lsn
from penstock.sources.database import TableCopy
from penstock.spark.images import spark_schema
from penstock.spark.jobs import SparkJobs
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.columns import column, without_columns
from penstock.tables.compaction import DeltaCompaction
from penstock.tables.compare import Differences, differences
from penstock.tables.interface import UNFINISHED, BaseTable, CreateOptions, NetChange, TableStore
from penstock.tables.live_table import live_table
from penstock.tables.log_tail import read_tail
from penstock.tables.parquet_files import adopt_files
from penstock.tables.small_tables import SmallTables
from penstock.tables.snapshot_files import files_of_ranges, rows_of_ranges

__all__ = ["SparkTables", "table_store"]


def table_store(spark: SparkSession | TableStore) -> TableStore:
    """Return the given store, or the store of Delta tables for a Spark session."""
    return SparkTables(spark) if isinstance(spark, SparkSession) else spark


class SparkTables:
    """Delta tables in one Spark session; with `small`, small live tables are read in this process."""

    def __init__(self, spark: SparkSession, small: SmallTables | None = None) -> None:
        self._spark = spark
        self._small = small

    @property
    def spark(self) -> SparkSession:
        """The session."""
        return self._spark

    @property
    def parallelism(self) -> int:
        """One range for each task that Spark runs at a time."""
        return max(1, self._spark.sparkContext.defaultParallelism)

    def base(self, path: Path, schema: TableSchema) -> DeltaBaseTable:
        """Return the Delta base table at a path."""
        return DeltaBaseTable(self._spark, str(path), schema)

    def rows(self, table: pa.Table) -> DataFrame:
        """Convert an Arrow table to a DataFrame with the corresponding Spark types."""
        return self._spark.createDataFrame(table, spark_schema(table.schema))

    def net_change(self, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> NetChange | None:
        """Fold a range: a small one in Arrow, a large one in Spark."""
        tail = read_tail(self._spark, log, schema, after, upto)
        return None if tail is None else NetChange(tail.net, tail.contents)

    def live(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> DataFrame:
        """Return the table at a position, as a DataFrame."""
        rows = None if self._small is None else self._small.rows(log, path, at, schema, upto)
        if rows is not None:
            return self.rows(rows).coalesce(1)  # one partition needs no shuffle
        return live_table(self._spark, log, path, at, schema, upto)

    def union_of_shards(self, name: str, shards: Mapping[str, DataFrame]) -> DataFrame:
        """Return the union; Spark drops shards that a filter excludes."""
        return _union_of_shards(name, dict(shards))

    def snapshot(
        self,
        base: BaseTable,
        copy: TableCopy,
        created: CreateOptions,
        notes: Path,
        is_whole: Callable[[], bool],
    ) -> bool:
        """Copy ranges in Spark tasks: each writes a file, and one commit adds all files.

        A table that requires column mapping is written by Spark, and exposes no position before `is_whole` has been
        called.
        """
        assert isinstance(base, DeltaBaseTable)
        if base.accepts_files():
            files = files_of_ranges(self._spark, copy, notes, notes)
            if not is_whole():
                return False
            adopt_files(files, notes, Path(base.path))
            base.create_from_files(files, **created.arguments())
            return True
        base.create(rows_of_ranges(self._spark, copy, notes), **created.arguments(), window=UNFINISHED)
        if not is_whole():
            return False
        base.append(self.rows(base.schema.columns.empty_table()), created.position)
        return True

    def copied_rows(self, copy: TableCopy) -> DataFrame:
        """Read ranges in Spark tasks."""
        return rows_of_ranges(self._spark, copy)

    def without_columns(self, rows: DataFrame, names: Collection[str]) -> DataFrame:
        """Select the other columns."""
        return without_columns(rows, names)

    def differences(
        self, upstream: DataFrame, live: DataFrame, key: Sequence[str], limit: int, *, exact: bool
    ) -> Differences:
        """Compare in Spark."""
        return differences(upstream, live, key, limit, exact=exact)

    def jobs(self, name: str) -> SparkJobs:
        """Return the jobs of the session that have this tag."""
        return SparkJobs(self._spark, name)

    def compaction(self, base: BaseTable) -> DeltaCompaction:
        """Return the compaction of a Delta table."""
        assert isinstance(base, DeltaBaseTable)
        return DeltaCompaction(self._spark, base)


# -- union of shards ---------------------------------------------------------------------------------------------------


def _union_of_shards(name: str, shards: Mapping[str, DataFrame]) -> DataFrame:
    """Return the union of the tables of shards, given by shard; `name` is for errors."""
    types = _types(name, shards)
    return reduce(DataFrame.union, (_shard_rows(shard, rows, types) for shard, rows in shards.items()))


def _shard_rows(shard: str, rows: DataFrame, types: Mapping[str, DataType]) -> DataFrame:
    known = set(rows.columns)
    columns = [column(name) if name in known else F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
    return rows.select(F.lit(shard).alias(SHARD), *columns)


def _types(name: str, shards: Mapping[str, DataFrame]) -> dict[str, DataType]:
    """Return the columns that any shard has, in order of first occurrence."""
    types: dict[str, DataType] = {}
    first: dict[str, str] = {SHARD: ""}
    for shard, rows in shards.items():
        for field in rows.schema:
            known = next((other for other in first if other.lower() == field.name.lower()), None)
            if known is None:
                types[field.name], first[field.name] = field.dataType, shard
            elif known != field.name or types[known] != field.dataType:
                raise _mismatch(name, field.name, first[known], shard)
    return types


def _mismatch(name: str, field: str, one: str, other: str) -> DefiniteError:
    hint = "Make the column the same on all shards and retry the table, or query each shard by source name."
    if not one:
        return DefiniteError(f"column {field} of {name} on shard {other} has a name reserved by Penstock", hint)
    return DefiniteError(f"column {field} of {name} differs between shards {one} and {other}", hint)
