"""What Spark calls a type."""

from __future__ import annotations

import pyarrow as pa
from docs.generate.markdown import code

from penstock.spark.ranges import spark_schema

__all__ = ["spark_type"]


def spark_type(kind: pa.DataType) -> str:
    return code(spark_schema(pa.schema([("c", kind)])).fields[0].dataType.simpleString())
