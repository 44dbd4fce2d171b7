"""``format("penstock")``: the tables of a source and their changes, as a stream or as a batch.

::

    spark.readStream.format("penstock").option("home", …).option("source", …).option("table", "public.orders").load()

    options ─▶ TableSelection (log, tables, shape) ─▶ stream reader │ batch reader ─▶ pieces ─▶ tasks ─▶ Arrow batches
                                                 offsets         filters        ├ LogPiece: part of a range of the log
                                                                                └ of a snapshot: a file, or the tail

Planning runs in a Python process beside the driver, which can access the home. Tasks only get their piece, which
contains the address of the log. Spark shows errors as a traceback that ends in the message and the hint.

`penstock.spark.sharded_source` reads the shards of a sharded source as one.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.changelog.user_rows import OWN_COLUMNS
from penstock.model import SHARD
from penstock.spark.batch_reader import PenstockBatchReader
from penstock.spark.images import spark_schema
from penstock.spark.sharded_source import ShardedBatchReader, ShardedStreamReader, sharded_schema, shards_of
from penstock.spark.source_options import PenstockOptions, Rows, TableSelection
from penstock.spark.stream_reader import PenstockStreamReader
from penstock.spark.worker_errors import silence_broken_pipes

__all__ = ["PenstockDataSource"]

silence_broken_pipes()


class PenstockDataSource(DataSource):
    """The data source of captured tables and their changes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns of the requested rows."""
        options = self._parsed()
        shards = shards_of(options)
        return spark_schema(sharded_schema(shards) if shards else TableSelection(options).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = self._parsed()
        shards = shards_of(options)
        if shards:
            return ShardedBatchReader(shards, _column_names(schema, options.rows))
        return PenstockBatchReader(options, _column_names(schema, options.rows))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        options = self._parsed()
        shards = shards_of(options)
        if shards:
            return ShardedStreamReader(shards, _column_names(schema, options.rows))
        return PenstockStreamReader(options, _column_names(schema, options.rows))

    def _parsed(self) -> PenstockOptions:
        return PenstockOptions.parse(dict(self.options))


def _column_names(schema: StructType, rows: Rows) -> list[str]:
    """Return the table's own columns among those of a query."""
    if rows is Rows.CHANGES:
        row = schema["after"].dataType
        return row.names if isinstance(row, StructType) else []
    return [name for name in schema.names if name != SHARD and (rows is Rows.LIVE or name not in OWN_COLUMNS)]
