"""``format("penstock")``: the tables of a source and what happens to them, as a stream and as a batch.

::

    spark.readStream.format("penstock").option("home", …).option("source", …).option("table", "public.orders").load()

    options ─▶ Chosen (log, tables, shape) ─▶ stream reader │ batch reader ─▶ pieces ─▶ tasks ─▶ Arrow batches
                                                 offsets         filters        ├ LogPiece: part of a range of the log
                                                                                └ of a snapshot: a file, and its tail

Planning happens in a Python process beside the driver, which knows the home. Tasks know only their piece, and the log's
address in it. An error reaches the user as Spark shows it: a traceback that ends in what happened and what to do.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from penstock.changelog.user_rows import OWN_COLUMNS
from penstock.spark.batch_reader import PenstockBatchReader
from penstock.spark.planner_noise import hush
from penstock.spark.ranges import spark_schema
from penstock.spark.shards import ShardedReader, refuse_shards, sharded_schema, shards_of
from penstock.spark.source_options import Chosen, PenstockOptions, Rows
from penstock.spark.stream_reader import PenstockStreamReader

__all__ = ["PenstockDataSource"]

hush()


class PenstockDataSource(DataSource):
    """Captured tables, and what happens to them."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns of the rows that were asked for."""
        options = self._parsed()
        shards = shards_of(options)
        refuse_shards(options, shards)
        return spark_schema(sharded_schema(shards) if shards else Chosen(options).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read once."""
        options = self._parsed()
        shards = shards_of(options)
        if shards:
            return ShardedReader(shards, schema.names)
        return PenstockBatchReader(options, _column_names(schema, options.rows))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow."""
        options = self._parsed()
        return PenstockStreamReader(options, _column_names(schema, options.rows))

    def _parsed(self) -> PenstockOptions:
        return PenstockOptions.parse(dict(self.options))


def _column_names(schema: StructType, rows: Rows) -> list[str]:
    """Return the table's own columns among those of a query."""
    if rows is Rows.CHANGES:
        row = schema["after"].dataType
        return row.names if isinstance(row, StructType) else []
    return [name for name in schema.names if rows is Rows.LIVE or name not in OWN_COLUMNS]
