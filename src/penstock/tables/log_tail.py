"""The tail of a table: the net change of the log after a position.

A large tail is folded by Spark (`fold`), which runs jobs for it each time the table occurs in a query. The tail of a
live table is usually short: a small one is folded in Arrow, so that a live view needs only milliseconds for it.
`penstock.tables.arrow.fold` folds any range without Spark; this module converts its result to the form that `fold`
returns. Spark gets it as a local relation, whose rows are known at planning time.

After the fold in Arrow, more is known: whether any value is still missing, and whether any row with a missing value
changed its key. Most tails with omitted values or changed keys turn out to have neither, and cost as little as plain
ones.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.interface import ChangeLog, ChangeLogReader, Extent
from penstock.model import COUNT, FROM, GONE, UNCHANGED, Image, TableSchema, image_schema
from penstock.positions import Lsn
from penstock.spark.images import images, spark_schema
from penstock.tables.arrow.fold import KeyedNet, KeylessNet, fold_net
from penstock.tables.contents import Contents
from penstock.tables.fold import check_reserved_names, fold

__all__ = ["Tail", "contents_of", "fold_small", "read_tail"]

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


# -- fold in Arrow -----------------------------------------------------------------------------------------------------

_UNCHANGED = pa.list_(pa.field("item", pa.int32(), nullable=False))


def fold_small(images: pa.Table, schema: TableSchema, contents: Contents) -> tuple[pa.Table, Contents]:
    """Return what `fold` returns for `images`, which are in log order, and a more precise description of its contents.

    If no value is missing, `UNCHANGED` and `FROM` are left out.
    """
    check_reserved_names(schema)
    net = fold_net(images, schema)
    if isinstance(net, KeylessNet):
        counted = _counted(net)
        return counted, replace(contents, rows=len(counted), unchanged=False)
    taking = net.sources >= 0
    known = replace(contents, rows=len(net.keys), unchanged=bool(taking.any()), moved=bool(net.moved.any()))
    return _keyed(net), known


def _counted(net: KeylessNet) -> pa.Table:
    return _plain(net.rows).add_column(0, COUNT, pa.array(net.counts)).filter(pa.array(net.counts != 0))


def _keyed(net: KeyedNet) -> pa.Table:
    """Return the rows that exist, then the keys whose row is deleted."""
    present = _plain(net.rows).add_column(0, GONE, pa.repeat(False, len(net.rows)))
    if (net.sources >= 0).any():
        present = present.append_column(UNCHANGED, _unchanged(net)).append_column(FROM, _from(net))
    absent = np.ones(len(net.keys), np.bool_)
    absent[net.present] = False
    gone = _plain(net.keys.filter(pa.array(absent)))
    gone = gone.append_column(GONE, pa.repeat(True, len(gone)))
    return pa.concat_tables([present, gone], promote_options="default")


def _plain(rows: pa.Table) -> pa.Table:
    """Make all columns nullable: they are null where a row is deleted or a value is missing."""
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


def _unchanged(net: KeyedNet) -> pa.Array:
    """Return for each row the indices of columns whose value comes from the base row; null for none."""
    names = net.schema.columns.names
    pairs = sorted((names.index(name), rows) for name, rows in net.left_out.items() if len(rows))
    rows = np.concatenate([rows for _, rows in pairs])
    indices = np.repeat([index for index, _ in pairs], [len(rows) for _, rows in pairs])
    lengths = np.bincount(rows, minlength=len(net.rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = pa.array(indices[np.argsort(rows, kind="stable")], pa.int32())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=_UNCHANGED, mask=pa.array(lengths == 0))


def _from(net: KeyedNet) -> pa.Array:
    """Return for each moved row with missing values the key of the base row that has them."""
    taken = _plain(net.keys).take(pa.array(net.sources, mask=~net.moved)).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in taken.columns]
    return pa.StructArray.from_arrays(columns, fields=list(taken.schema), mask=pa.array(~net.moved))
