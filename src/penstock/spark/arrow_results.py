"""The rows of a query as Arrow batches, in their order, while they are computed.

::

    partition 0 ──▶ partitions 1 … n ──▶ partitions n + 1 … 2n ──▶ …    n: as many as Spark computes at a time

If there are more than n partitions, the first one is computed alone, so that the first rows arrive early, and a caller
that stops reading has computed little more than it has read. At most one group of partitions is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StructType,
    VariantType,
    YearMonthIntervalType,
)
from pyspark.util import _load_from_socket

__all__ = ["arrow_batches", "arrow_schema", "portable"]

_AS_TEXT = (CalendarIntervalType, DayTimeIntervalType, YearMonthIntervalType, VariantType)
_TIME_ZONE = "UTC"


def portable(rows: DataFrame) -> DataFrame:
    """Return the rows with text in the columns whose types other programs do not have: intervals and variants."""
    kinds = [field.dataType for field in rows.schema]
    if not any(map(_has_no_equivalent, kinds)):
        return rows
    numbered = rows.toDF(*(f"_{place}" for place in range(len(kinds))))  # names may occur twice
    columns = [
        F.col(f"_{place}").cast("string") if _has_no_equivalent(kind) else F.col(f"_{place}")
        for place, kind in enumerate(kinds)
    ]
    return numbered.select(*columns).toDF(*rows.columns)


def arrow_schema(rows: DataFrame) -> pa.Schema:
    """Return the Arrow schema of the batches."""
    return to_arrow_schema(rows.schema, timezone=_TIME_ZONE)


def arrow_batches(rows: DataFrame) -> Iterator[pa.RecordBatch]:
    """Compute `portable` rows and yield them in batches."""
    schema, context = arrow_schema(rows), rows.sparkSession.sparkContext
    jvm: Any = context._jvm
    computed = rows._jdf.toArrowBatchRdd().toJavaRDD()
    partitions, parallel = computed.getNumPartitions(), max(1, context.defaultParallelism)
    first, size = 0, 1 if partitions > parallel else parallel
    while first < partitions:
        group = jvm.java.util.ArrayList()
        for partition in range(first, min(first + size, partitions)):
            group.add(partition)
        socket = jvm.PythonRDD.runJob(context._jsc.sc(), computed, group)
        with _load_from_socket(socket, NoOpSerializer()) as found:
            for data in found:
                yield pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        first, size = first + size, parallel


def _has_no_equivalent(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_no_equivalent(field.dataType) for field in kind)
        case ArrayType():
            return _has_no_equivalent(kind.elementType)
        case MapType():
            return _has_no_equivalent(kind.keyType) or _has_no_equivalent(kind.valueType)
        case _:
            return isinstance(kind, _AS_TEXT)
