"""Changes of a table as Spark DataFrames, with the columns of ``format("penstock")``, ``rows=changes``.

Changes of a window are passed to Spark as Arrow. A window is small, apart from very large transactions: those are
written into a temporary Parquet file of the home, batch by batch, which Spark reads. Rows of a snapshot are read by
``format("penstock")`` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.changelog.user_rows import changes, changes_schema
from penstock.model import SHARD, TableName, TableSchema
from penstock.positions import Lsn
from penstock.sinks.delivery import TableImages
from penstock.sinks.function.output import ChangeFrame, Frames
from penstock.spark.images import spark_schema

__all__ = ["SparkFrames"]

_LOCAL_BYTES = 64 << 20
"""Larger changes are written into a file."""


class SparkFrames(Frames):
    """DataFrames of one source in one Spark session."""

    def __init__(
        self,
        spark: SparkSession,
        home: Path,
        source: str,
        folder: Path,
        schema: Callable[[], TableSchema],
        shard: str | None = None,
    ) -> None:
        """Create frames; `folder` is for temporary files, `schema` returns the columns of the snapshot.

        The rows of a `shard` have its name in the column `penstock.model.SHARD`.
        """
        self._spark, self._home, self._source, self._schema, self._shard = spark, home, source, schema, shard
        self._file = folder / f"{source}.parquet"

    @contextmanager
    def snapshot(self, table: TableName, at: Lsn) -> Iterator[DataFrame]:
        """Let Spark read the table at a position."""
        columns = spark_schema(changes_schema(self._schema().columns))
        options = {"home": str(self._home.absolute()), "source": self._source, "table": str(table)}
        positions = {"startingPosition": "earliest", "endingPosition": str(at)}
        yield self._of_shard(self._spark.read.format("penstock").schema(columns).options(**options, **positions).load())

    @contextmanager
    def changes(self, tables: Iterable[TableImages]) -> Iterator[ChangeFrame]:
        """Pass changes to Spark: directly, or in a file that is removed afterwards."""
        found = _Changes(self._file)
        try:
            for each in tables:
                if len(each.images):
                    found.add(each.images)
            frame = found.frame(self._spark)
            yield ChangeFrame(None if frame is None else self._of_shard(frame), found.rows, found.committed_at)
        finally:
            found.close()

    def _of_shard(self, frame: DataFrame) -> DataFrame:
        """Return rows with the column of their shard first, if they belong to one."""
        return frame if self._shard is None else frame.select(F.lit(self._shard).alias(SHARD), "*")


class _Changes:
    """Collects changes, in memory or in a file."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self.rows = 0
        self.committed_at: int | None = None

    def add(self, images: pa.RecordBatch) -> None:
        """Add the changes of some images."""
        batch = changes(images)
        self.rows += len(batch)
        self._size += batch.nbytes
        self.committed_at = max(self.committed_at or 0, images.column("_committed_at")[-1].value or 0) or None
        self._batches.append(batch)
        if self._size > _LOCAL_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, self._batches[0].schema, compression="zstd")
        for batch in self._batches:
            self._writer.write_batch(batch)
        self._batches, self._size = [], 0

    def frame(self, spark: SparkSession) -> DataFrame | None:
        """Return all changes; None if there are none."""
        if self._writer is not None:
            self._flush()
            self._writer.close()
            schema = spark_schema(self._writer.schema)
            return spark.read.schema(schema).parquet(str(self._path.absolute()))
        if not self._batches:
            return None
        table = pa.Table.from_batches(self._batches)
        return spark.createDataFrame(table, spark_schema(table.schema))

    def close(self) -> None:
        """Remove the file."""
        if self._writer is not None:
            self._writer.close()
        self._path.unlink(missing_ok=True)
