"""Names of types in Spark."""

from __future__ import annotations

import pyarrow as pa
from docs.generate.markdown import code

from penstock.spark.images import spark_schema

__all__ = ["spark_type"]


def spark_type(kind: pa.DataType) -> str:
    return code(spark_schema(pa.schema([("c", kind)])).fields[0].dataType.simpleString())
