"""Rows of a table before it gained columns, with these columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.model import missing_value
from penstock.spark.ranges import spark_schema

__all__ = ["widened"]


def widened(spark: SparkSession, rows: DataFrame, added: Sequence[pa.Field]) -> DataFrame:
    """Return `rows` with columns that were added later, each with the one value that such rows hold in it.

    The values go in as a row of their own: that is exact for every type, and Spark makes a literal of it.
    """
    if not added:
        return rows
    schema = pa.schema([field.remove_metadata() for field in added])
    values = pa.Table.from_arrays([missing_value(field) for field in added], schema=schema)
    return rows.crossJoin(F.broadcast(spark.createDataFrame(values, spark_schema(schema))))
