"""The initial snapshot of a table: Spark tasks copy its ranges at one snapshot straight into Delta files.

::

    snapshot at S ─▶ tasks, a range each ─▶ `TableCopy.read` ─▶ Arrow ─▶ a Parquet file
                                                      all files ─▶ Delta, one commit at S

Workers write the files themselves, outside the table, and only the add actions pass through the JVM. (A table that
requires column mapping is written by Spark, as rows.) Each worker records in a folder how much a finished range
contained; see `penstock.engine.snapshot`.

The position of the base table is then S: it contains all changes whose commit ends at or before S, and apply continues
after S, without gap or overlap. If the copy fails, nothing is committed, and a new snapshot is taken.
"""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from penstock.sources.database import TableCopy, Tally
from penstock.spark.images import spark_schema
from penstock.spark.worker_errors import pack_errors, silence_broken_pipes
from penstock.tables.parquet_files import indexed_columns, write_file

__all__ = ["CopySource", "files_of_ranges", "finished_ranges", "note_range", "rows_of_ranges"]


silence_broken_pipes()


def rows_of_ranges(spark: SparkSession, copy: TableCopy, notes: Path | None = None) -> DataFrame:
    """Return the rows of a table."""
    return _frame(spark, _Request(copy, notes), spark_schema(copy.schema.columns))


def files_of_ranges(spark: SparkSession, copy: TableCopy, folder: Path, notes: Path | None = None) -> list[str]:
    """Write each range of a table into a file under `folder`; return Delta's add actions."""
    request = _Request(copy, notes, folder)
    structure = StructType([StructField("action", StringType())])
    return [str(row.action) for row in _frame(spark, request, structure).collect()]


def note_range(notes: Path, number: int, tally: Tally) -> None:
    """Record how much a finished range contained."""
    partial = notes / f"{number}.{uuid.uuid4().hex}.part"
    partial.write_text(json.dumps([tally.rows, tally.bytes]))
    partial.rename(notes / f"{number}.json")


def finished_ranges(notes: Path) -> dict[int, Tally]:
    """Return how much each finished range contained, by its number."""
    return {int(path.stem): Tally(*json.loads(path.read_text())) for path in notes.glob("*.json")}


@dataclass(frozen=True)
class _Request:
    """What to copy, as it is sent to Spark's workers; always created in this process."""

    copy: TableCopy
    notes: Path | None = None
    folder: Path | None = None
    """The folder to write files into; None to return rows."""

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Copy one range, and record how much it contained."""
        tally = Tally()
        batches = self.copy.read(number, tally)
        if self.folder is None:
            yield from batches
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            schema = self.copy.schema
            columns = schema.columns.remove_metadata()
            action = write_file(self.folder, columns, batches, indexed_columns(columns, schema.key)).add
            yield pa.RecordBatch.from_pydict({"action": pa.array([action] if action else [], pa.string())})
        if self.notes is not None:
            note_range(self.notes, number, tally)


def _frame(spark: SparkSession, request: _Request, structure: StructType) -> DataFrame:
    spark.dataSource.register(CopySource)
    packed = base64.b64encode(pickle.dumps(request)).decode("ascii")
    return spark.read.format(CopySource.name()).schema(structure).option("request", packed).load()


class CopySource(DataSource):
    """An internal data source that reads one upstream table at a snapshot."""

    @classmethod
    def name(cls) -> str:
        """Return the name under which the source is registered."""
        return "penstock-copy"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the requested ranges."""
        return _CopyReader(pickle.loads(base64.b64decode(self.options["request"])))  # noqa: S301 - created by `_frame`


class _CopyReader(DataSourceReader):
    def __init__(self, request: _Request) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the ranges among tasks: as many as may read at the same time; one that may wait reads several."""
        ranges, tasks = self._request.copy.ranges, max(1, self._request.copy.sessions())
        return [InputPartition(range(first, ranges, tasks)) for first in range(min(tasks, ranges))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pack_errors():
            for number in partition.value:
                yield from self._request.read(number)
