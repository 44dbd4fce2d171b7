"""The images of a range of the change log, as a DataFrame.

A small range, the usual case in a live view, is read here and passed to Spark as a local relation, without a Python
worker or a job. Spark tasks read a larger one, a group of chunks each. Both return the same rows.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.changelog.interface import ChangeLog, Extent
from penstock.model import TableSchema, image_schema
from penstock.spark.worker_errors import silence_broken_pipes

__all__ = ["TASK_BYTES", "ImagesSource", "images", "spark_schema"]

silence_broken_pipes()

_LOCAL_BYTES = 4 << 20
TASK_BYTES = 32 << 20
"""The approximate number of log bytes that one task reads."""


def spark_schema(schema: pa.Schema) -> StructType:
    """Convert an Arrow schema; a timestamp without time zone remains one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def images(spark: SparkSession, log: ChangeLog, schema: TableSchema, extent: Extent) -> DataFrame:
    """Return the images of a table in an extent."""
    if extent.size <= _LOCAL_BYTES:
        return _local(spark, log, schema, extent)
    spark.dataSource.register(ImagesSource)
    request = base64.b64encode(pickle.dumps(_Request(log, schema, extent.divided(TASK_BYTES)))).decode("ascii")
    structure = spark_schema(image_schema(schema.columns))
    return spark.read.format(ImagesSource.name()).schema(structure).option("request", request).load()


def _local(spark: SparkSession, log: ChangeLog, schema: TableSchema, extent: Extent) -> DataFrame:
    arrow = image_schema(schema.columns)
    with closing(log.reader()) as reader:
        table = pa.Table.from_batches(reader.read(extent, schema.columns), schema=arrow)
    return spark.createDataFrame(table, spark_schema(arrow))


@dataclass(frozen=True)
class _Request:
    """What to read, as it is sent to Spark's workers; always created in this process."""

    log: ChangeLog
    schema: TableSchema
    parts: Sequence[Extent]


class ImagesSource(DataSource):
    """An internal data source that reads one range of one table's images."""

    @classmethod
    def name(cls) -> str:
        """Return the name under which the source is registered."""
        return "penstock-images"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the requested range."""
        return _ImagesReader(pickle.loads(base64.b64decode(self.options["request"])))  # noqa: S301 - created by `images`


class _ImagesReader(DataSourceReader):
    def __init__(self, request: _Request) -> None:
        self._log = request.log
        self._columns = request.schema.columns
        self._parts = request.parts

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(part) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with closing(self._log.reader()) as reader:
            yield from reader.read(partition.value, self._columns)
