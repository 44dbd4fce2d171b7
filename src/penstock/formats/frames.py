"""Decoding a column of a Spark DataFrame.

The driver finds the schema ids of the frame in one pass and looks them up; executors get the schemas with the
function. So no executor talks to the registry, and a registry that does not answer fails before anything is decoded.
Executors decode whole Arrow batches (`penstock.formats.decoder`): there is no Python call or object per message.
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
from penstock.formats.decoding import decoder_for, registry_of
from penstock.formats.format import ResolvedFormat
from penstock.formats.logical_types import spark_type
from penstock.formats.registry import Registry
from penstock.formats.writers import Writers

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
    """Add a struct column of the reader schema and a column with each message's problem (null: none).

    A message that is null (a tombstone) gives null in both. Where messages name schema ids, the frame is read once
    for these before this returns; a stream is therefore decoded in ``foreachBatch``.
    """
    writers = _looked_up(frame, column, resolved, registry) if resolved.framed else {}
    returned = StructType([StructField("row", spark_type(resolved)), StructField("problem", StringType())])
    both = f"_decoded_{uuid.uuid4().hex}"
    # Its stubs ask for the kind of function, which it takes from the annotations.
    function = arrow_udf(_decoding(resolved, writers), returned)  # type: ignore[call-overload]
    decoded = frame.withColumn(both, function(_named(column)))
    decoded = decoded.withColumn(into, F.col(both).getField("row"))
    return decoded.withColumn(problem, F.col(both).getField("problem")).drop(both)


def _named(column: str) -> Column:
    return F.col(f"`{column.replace('`', '``')}`")


def _decoding(resolved: ResolvedFormat, writers: Writers) -> Callable[[pa.Array], pa.Array]:
    """Return the function that executors call with each batch."""
    pickled = resolved.model_dump_json(), dict(writers)

    def decoded(messages: pa.Array) -> pa.Array:
        described, known = pickled
        rows, problems = decoder_for(ResolvedFormat.model_validate_json(described), known).decode(messages)
        return pa.StructArray.from_arrays([rows, problems], names=["row", "problem"])

    return decoded


def _looked_up(frame: DataFrame, column: str, resolved: ResolvedFormat, registry: Registry | None) -> Writers:
    if frame.isStreaming:
        message = "messages that name schema ids cannot be decoded in a stream's own plan: ids are looked up before"
        raise UsageError(message, "Decode in foreachBatch.")
    value = _named(column)
    framed = frame.where((F.length(value) >= 5) & (F.substring(value, 1, 1) == F.lit(b"\0")))
    number = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")
    ids = [row[0] for row in framed.select(number.alias("id")).distinct().collect()]
    return registry_of(resolved, registry).schemas(sorted(ids))
