"""Decode a column of a Spark DataFrame.

The driver collects the schema ids of the DataFrame in one pass and looks them up; executors receive the schemas with
the function. So no executor connects to the registry, and if the registry does not respond, decoding fails before it
starts. Executors decode whole Arrow batches (`penstock.formats.decoder`): there is no Python call or object per
message.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import UsageError
from penstock.formats.batch import decoder_for, registry_client
from penstock.formats.format import ResolvedFormat
from penstock.formats.logical_types import spark_type
from penstock.formats.schema_registry import Registry, WriterSchemas

__all__ = ["decode"]


def decode(
    frame: DataFrame,
    column: str,
    resolved: ResolvedFormat,
    registry: Registry | None = None,
    *,
    into: str = "row",
    problem: str = "problem",
) -> DataFrame:
    """Add a struct column of the reader schema, and a column with the problem of each message (null: none).

    A null message (a tombstone) has null in both columns. If messages are framed with schema ids, this function reads
    the DataFrame once to collect them; decode a stream in ``foreachBatch`` for that reason.
    """
    writers = _writer_schemas(frame, column, resolved, registry) if resolved.is_framed else {}
    returned = StructType([StructField("row", spark_type(resolved)), StructField("problem", StringType())])
    decoded_column = f"_decoded_{uuid.uuid4().hex}"
    # The stubs require the function type, which arrow_udf infers from the annotations.
    function = arrow_udf(_decode_function(resolved, writers), returned)  # type: ignore[call-overload]
    decoded = frame.withColumn(decoded_column, function(_column_ref(column)))
    decoded = decoded.withColumn(into, F.col(decoded_column).getField("row"))
    return decoded.withColumn(problem, F.col(decoded_column).getField("problem")).drop(decoded_column)


def _column_ref(column: str) -> Column:
    return F.col(f"`{column.replace('`', '``')}`")


def _decode_function(resolved: ResolvedFormat, writers: WriterSchemas) -> Callable[[pa.Array], pa.Array]:
    """Return the function that executors call for each batch."""
    pickled = resolved.model_dump_json(), dict(writers)

    def decoded(messages: pa.Array) -> pa.Array:
        spec, known = pickled
        rows, problems = decoder_for(ResolvedFormat.model_validate_json(spec), known).decode(messages)
        return pa.StructArray.from_arrays([rows, problems], names=["row", "problem"])

    return decoded


def _writer_schemas(
    frame: DataFrame, column: str, resolved: ResolvedFormat, registry: Registry | None
) -> WriterSchemas:
    if frame.isStreaming:
        message = (
            "cannot decode messages framed with schema ids in a streaming query: ids are looked up before decoding"
        )
        raise UsageError(message, "Decode in foreachBatch.")
    value = _column_ref(column)
    framed = frame.where((F.length(value) >= 5) & (F.substring(value, 1, 1) == F.lit(b"\0")))
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")
    ids = [row[0] for row in framed.select(number.alias("id")).distinct().collect()]
    return registry_client(resolved, registry).schemas(sorted(ids))
