"""How a range of a change log becomes a DataFrame of images.

A small range, the usual case in a live view, is read here and handed to Spark as a local relation: no Python worker, no
job. A larger one is read by Spark tasks, a group of chunks each. Both give the same rows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.changelog.interface import Extent
from penstock.changelog.sqlite import SqliteLogReader
from penstock.model import TableSchema, image_schema
from penstock.positions import Lsn
from penstock.spark.planner_noise import hush

__all__ = ["ImagesSource", "grouped", "images", "spark_schema"]

hush()

_LOCAL_BYTES = 4 << 20
_TASK_BYTES = 32 << 20


def spark_schema(schema: pa.Schema) -> StructType:
    """Translate an Arrow schema; a timestamp without time zone stays one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def images(spark: SparkSession, log: Path, schema: TableSchema, after: Lsn, upto: Lsn, extent: Extent) -> DataFrame:
    """Return the images of a table in (after, upto]."""
    if extent.size <= _LOCAL_BYTES:
        return _local(spark, log, schema, after, upto)
    spark.dataSource.register(ImagesSource)
    request = {
        "log": str(log.absolute()),
        "schema": base64.b64encode(schema.to_bytes()).decode("ascii"),
        "after": int(after),
        "upto": int(upto),
        "groups": grouped(extent),
    }
    structure = spark_schema(image_schema(schema.columns))
    return spark.read.format(ImagesSource.name()).schema(structure).option("request", json.dumps(request)).load()


def grouped(extent: Extent) -> list[list[int]]:
    """Divide chunks into groups of about one task's size, in order."""
    each = max(1, round(len(extent.chunks) * _TASK_BYTES / max(1, extent.size)))
    return [list(extent.chunks[at : at + each]) for at in range(0, len(extent.chunks), each)]


def _local(spark: SparkSession, log: Path, schema: TableSchema, after: Lsn, upto: Lsn) -> DataFrame:
    arrow = image_schema(schema.columns)
    with closing(SqliteLogReader(log)) as reader:
        found = reader.read(schema.table, after, upto, columns=schema.columns)
        table = pa.Table.from_batches(found, schema=arrow)
    return spark.createDataFrame(table, spark_schema(arrow))


class ImagesSource(DataSource):
    """Reads one range of one table's images: ours alone, not a format for users."""

    @classmethod
    def name(cls) -> str:
        """Return the name under which it is registered."""
        return "penstock-images"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the requested range."""
        return _ImagesReader(json.loads(self.options["request"]))


class _ImagesReader(DataSourceReader):
    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(group) for group in self._request["groups"]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        request = self._request
        schema = TableSchema.from_bytes(base64.b64decode(request["schema"]))
        after, upto = Lsn(request["after"]), Lsn(request["upto"])
        with closing(SqliteLogReader(Path(request["log"]))) as reader:
            yield from reader.read(schema.table, after, upto, partition.value, schema.columns)
