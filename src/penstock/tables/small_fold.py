"""Folds a small range in Arrow, so that a live view needs only milliseconds for it.

The tail of a live table is short, and `fold` in Spark runs jobs for it each time the table occurs in a query.
`penstock.spark.net_changes` folds any range without Spark; this module converts its result to the form that `fold`
returns. Spark gets it as a local relation, whose rows are known at planning time.

After the fold, more is known: whether any value is still missing, and whether any row with a missing value changed its
key. Most tails with omitted values or changed keys turn out to have neither, and cost as little as plain ones.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.model import TableSchema
from penstock.spark.net_changes import KeyedNet, KeylessNet, fold_net
from penstock.tables.contents import Contents
from penstock.tables.fold import check_reserved_names

__all__ = ["fold_small"]

_UNCHANGED = pa.list_(pa.field("item", pa.int32(), nullable=False))


def fold_small(images: pa.Table, schema: TableSchema, contents: Contents) -> tuple[pa.Table, Contents]:
    """Return what `fold` returns for `images`, which are in log order, and a more precise description of its contents.

    If no value is missing, ``_unchanged`` and ``_from`` are left out.
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
    return _plain(net.rows).add_column(0, "_count", pa.array(net.counts)).filter(pa.array(net.counts != 0))


def _keyed(net: KeyedNet) -> pa.Table:
    """Return the rows that exist, then the keys whose row is deleted."""
    present = _plain(net.rows).add_column(0, "_gone", pa.repeat(False, len(net.rows)))
    if (net.sources >= 0).any():
        present = present.append_column("_unchanged", _unchanged(net)).append_column("_from", _from(net))
    absent = np.ones(len(net.keys), np.bool_)
    absent[net.present] = False
    gone = _plain(net.keys.filter(pa.array(absent)))
    gone = gone.append_column("_gone", pa.repeat(True, len(gone)))
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
