"""The net effect of a small range, folded in Arrow: what a live view needs within milliseconds.

The tail of a live table is short, and `fold` in Spark costs jobs for it, once for every time that the table stands in a
query. `penstock.spark.net` folds any range without Spark, and what it gives is put into the shape of `fold` here:
Spark gets it as a local relation, whose rows it knows when it plans.

After the fold more is known than before: whether any value is still missing, and whether any row that misses one has
another key now. Most tails with left-out values or changed keys turn out to have neither, and cost what plain ones do.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.model import TableSchema
from penstock.spark.net import BagNet, KeyedNet, fold_net
from penstock.tables.contents import Contents
from penstock.tables.fold import refuse_reserved

__all__ = ["fold_small"]

_UNCHANGED = pa.list_(pa.field("item", pa.int32(), nullable=False))


def fold_small(images: pa.Table, schema: TableSchema, contents: Contents) -> tuple[pa.Table, Contents]:
    """Return what `fold` returns for `images`, which are in the order of the log, and what is known of that.

    Where no value is missing, ``_unchanged`` and ``_from`` are left out.
    """
    refuse_reserved(schema)
    net = fold_net(images, schema)
    if isinstance(net, BagNet):
        counted = _counted(net)
        return counted, replace(contents, rows=len(counted), unchanged=False)
    taking = net.sources >= 0
    known = replace(contents, rows=len(net.keys), unchanged=bool(taking.any()), moved=bool(net.moved.any()))
    return _keyed(net), known


def _counted(net: BagNet) -> pa.Table:
    return _plain(net.rows).add_column(0, "_count", pa.array(net.counts)).filter(pa.array(net.counts != 0))


def _keyed(net: KeyedNet) -> pa.Table:
    """Return the rows that are there, then the keys whose row is gone."""
    present = _plain(net.rows).add_column(0, "_gone", pa.repeat(False, len(net.rows)))
    if (net.sources >= 0).any():
        present = present.append_column("_unchanged", _unchanged(net)).append_column("_from", _from(net))
    absent = np.ones(len(net.keys), np.bool_)
    absent[net.present] = False
    gone = _plain(net.keys.filter(pa.array(absent)))
    gone = gone.append_column("_gone", pa.repeat(True, len(gone)))
    return pa.concat_tables([present, gone], promote_options="default")


def _plain(rows: pa.Table) -> pa.Table:
    """Let columns be null, which is what they are where a row is gone or a value is missing."""
    return rows.cast(pa.schema([pa.field(field.name, field.type) for field in rows.schema]))


def _unchanged(net: KeyedNet) -> pa.Array:
    """Return for each row the indices of columns whose value is to be taken; null for none."""
    names = net.schema.columns.names
    pairs = sorted((names.index(name), rows) for name, rows in net.left_out.items() if len(rows))
    rows = np.concatenate([rows for _, rows in pairs])
    indices = np.repeat([index for index, _ in pairs], [len(rows) for _, rows in pairs])
    lengths = np.bincount(rows, minlength=len(net.rows))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = pa.array(indices[np.argsort(rows, kind="stable")], pa.int32())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=_UNCHANGED, mask=pa.array(lengths == 0))


def _from(net: KeyedNet) -> pa.Array:
    """Return for each row that has moved and takes values the key of the base row that has them."""
    taken = _plain(net.keys).take(pa.array(net.sources, mask=~net.moved)).combine_chunks()
    columns = [column.chunk(0) if column.num_chunks else pa.nulls(0, column.type) for column in taken.columns]
    return pa.StructArray.from_arrays(columns, fields=list(taken.schema), mask=pa.array(~net.moved))
