"""The tail of a table: the net change of the log after a position."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.interface import ChangeLog, ChangeLogReader, Extent
from penstock.model import Image, TableSchema, image_schema
from penstock.positions import Lsn
from penstock.spark.images import images, spark_schema
from penstock.tables.contents import Contents
from penstock.tables.fold import fold
from penstock.tables.small_fold import fold_small

__all__ = ["Tail", "contents_of", "read_tail"]

_SMALL_BYTES = 4 << 20


@dataclass(frozen=True)
class Tail:
    """The net change of a range on a table, and a description of its contents."""

    net: DataFrame
    contents: Contents


def read_tail(spark: SparkSession, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> Tail | None:
    """Return the net change of (after, upto], or None if the range is empty."""
    with closing(log.reader()) as reader:
        extent = reader.extent(schema.table, after, upto)
        if not extent.chunks:
            return None
        contents = contents_of(reader, extent)
        if extent.size <= _SMALL_BYTES:
            return _small_tail(spark, reader, schema, extent, contents)
    found = images(spark, log, schema, extent)
    return Tail(fold(found, schema, contents), contents)


def _small_tail(
    spark: SparkSession, reader: ChangeLogReader, schema: TableSchema, extent: Extent, contents: Contents
) -> Tail:
    found = pa.Table.from_batches(reader.read(extent, schema.columns), schema=image_schema(schema.columns))
    net, known = fold_small(found, schema, contents)
    return Tail(spark.createDataFrame(net, spark_schema(net.schema)), known)


def contents_of(reader: ChangeLogReader, extent: Extent) -> Contents:
    """Describe a range by the counts in the log."""
    return Contents(
        rows=extent.rows,
        inserts_only=extent.kinds == 1 << Image.INSERTED,
        unchanged=extent.unchanged,
        moved=extent.has(Image.BEFORE) or extent.has(Image.BEFORE_KEY),
        truncated=_last_truncate(reader, extent) if extent.has(Image.TRUNCATE) else None,
    )


def _last_truncate(reader: ChangeLogReader, extent: Extent) -> tuple[int, int] | None:
    """Find the last TRUNCATE of a range by reading it; TRUNCATEs are rare."""
    last = None
    for batch in reader.read(extent):
        at = np.flatnonzero(batch.column("_image").to_numpy() == Image.TRUNCATE)
        if len(at):
            row = int(at[-1])
            last = (batch.column("_lsn")[row].as_py(), batch.column("_ordinal")[row].as_py())
    return last
