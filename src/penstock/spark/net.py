"""The net effect of a range of images, folded in Arrow: for every range, without Spark.

::

    images (L, T] ──▶ drop what a TRUNCATE wiped out ──▶ last image per key ──▶ touched keys, present rows
                                                    └──▶ a table without a key: how many more or fewer of each row

Images come in the order of the log. The last one of a key says whether its row is there.

**Left-out values** (TOAST) of an UPDATED image are those of the row as it was before it. Every image points to the one
that shows the row before: an UPDATED one to the old image of its own change if there is one, else to the image
before it at the same key; so does the old image of a change of key. Following these pointers leads along one row, from
key to key where it moved, until an image that has the value: the whole old row, an INSERTED one, an UPDATED one that
carries it. Where there is none, they end in the image that the row was first touched by, and the value is in the base
row with *that* image's key. Pointers are followed by doubling: each step takes every image twice as far.

A row has all its base values in one base row: one chain, one end.

Nothing here is Spark's: Spark's tasks fold so, and so does whoever gives Spark a small range (`small_fold` in
`penstock.tables`). `penstock.tables.fold` does the same for DataFrames of any size; all are held to the same reference
model in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.user_rows import whole_rows
from penstock.model import Image, TableSchema
from penstock.spark.distinct import Distinct, Numbers

__all__ = ["BagNet", "Flags", "KeyedNet", "fold_net"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class KeyedNet:
    """What a range does to a table with a key."""

    schema: TableSchema
    lsn: int
    """Where its last change was made; 0 if there is none."""
    truncated: bool
    """Whether nothing of the base is left."""
    touched: Distinct
    """The keys that the range touches."""
    keys: pa.Table
    """The same keys, by their number."""
    rows: pa.Table
    """The rows that are there after it; values that are those of a base row are null."""
    present: Numbers
    """For each row, the number of its key."""
    sources: Numbers
    """For each row, which of the touched keys the base row has that it takes values from; -1: it takes none."""
    moved: Flags
    """For each row that takes values, whether it changed its key meanwhile; it may be back at the one it had."""
    left_out: dict[str, Numbers]
    """The columns in which values are to be taken, and in which rows."""


@dataclass(frozen=True)
class BagNet:
    """What a range does to a table without a key."""

    schema: TableSchema
    lsn: int
    truncated: bool
    touched: Distinct
    """The rows that the range touches."""
    rows: pa.Table
    """The same rows, by their number."""
    counts: Numbers
    """How many more of each there are, or fewer."""


def fold_net(images: pa.Table, schema: TableSchema) -> KeyedNet | BagNet:
    """Fold `images`, which are in the order of the log."""
    lsn = images.column("_lsn")[-1].as_py() if len(images) else 0
    kinds = images.column("_image").to_numpy()
    truncates = np.flatnonzero(kinds == Image.TRUNCATE)
    left = images.slice(truncates[-1] + 1) if len(truncates) else images
    batch = left.combine_chunks().to_batches()[0] if len(left) else _nothing(images.schema)
    fold = _fold_keys if schema.key else _fold_bag
    return fold(batch, schema, lsn, len(truncates) > 0)


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


# -- tables with a key ----------------------------------------------------------------------------------------------


def _fold_keys(images: pa.RecordBatch, schema: TableSchema, lsn: int, truncated: bool) -> KeyedNet:
    columns = dict(zip(schema.columns.names, images.column("row").flatten(), strict=True))
    kinds = images.column("_image").to_numpy()
    touched, keys = Distinct.of([columns[name] for name in schema.key], keys=True)
    of_key = _last(keys, len(touched))
    present = np.flatnonzero(kinds[of_key] >= Image.UPDATED)
    last = of_key[present]
    earlier = _earlier(kinds, keys)
    unknown = _unknown(images)
    sources, moved, left_out, rows = np.full(len(last), -1), np.zeros(len(last), np.bool_), {}, []
    for index, (name, values) in enumerate(columns.items()):
        if index not in unknown:
            rows.append(values.take(pa.array(last)))
            continue
        lacks = unknown[index] | (kinds == Image.BEFORE_KEY)
        newest, travelled = _newest(earlier, lacks, keys)
        found = newest[last]
        at_base = lacks[found]
        rows.append(values.take(pa.array(found, mask=at_base)))
        left_out[name] = np.flatnonzero(at_base)
        sources[at_base] = keys[found[at_base]]
        moved[at_base] = travelled[last[at_base]]
    table = pa.Table.from_arrays(rows, schema=schema.columns)
    named = pa.table({name: columns[name].take(pa.array(of_key)) for name in schema.key})
    return KeyedNet(schema, lsn, truncated, touched, named, table, present, sources, moved, left_out)


def _last(keys: Numbers, count: int) -> Numbers:
    """Return the last image of each key."""
    last = np.zeros(count, np.int64)
    last[keys] = np.arange(len(keys))  # of several, numpy keeps the last
    return last


def _earlier(kinds: npt.NDArray[np.int8], keys: Numbers) -> Numbers:
    """Return for each image the one that shows its row before it; itself where there is none in the range."""
    order = np.argsort(keys, kind="stable")
    same = np.concatenate([[False], keys[order][1:] == keys[order][:-1]])[: len(keys)]
    earlier = np.arange(len(keys))
    earlier[order[same]] = order[np.flatnonzero(same) - 1]
    paired = np.flatnonzero((kinds[1:] == Image.UPDATED) & np.isin(kinds[:-1], (Image.BEFORE, Image.BEFORE_KEY))) + 1
    earlier[paired] = paired - 1
    return earlier


def _unknown(images: pa.RecordBatch) -> dict[int, Flags]:
    """Return, per column of which values were left out, in which images."""
    unchanged = images.column("_unchanged")
    if unchanged.null_count == len(unchanged):
        return {}
    lengths = np.diff(unchanged.offsets.to_numpy())
    images_of = np.repeat(
        np.arange(len(unchanged)), np.where(unchanged.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    )
    listed = unchanged.flatten().to_numpy()
    found = {}
    for index in np.unique(listed):
        found[int(index)] = np.zeros(len(unchanged), np.bool_)
        found[int(index)][images_of[listed == index]] = True
    return found


def _newest(earlier: Numbers, lacks: Flags, keys: Numbers) -> tuple[Numbers, Flags]:
    """Follow the pointers from images that lack a value, to the first that has it or to the end.

    Return where they end, and whether there was another key on the way.
    """
    at = np.where(lacks, earlier, np.arange(len(earlier)))
    moved = keys[at] != keys
    while not np.array_equal(further := at[at], at):
        moved |= moved[at]
        at = further
    return at, moved


# -- tables without one ---------------------------------------------------------------------------------------------


def _fold_bag(images: pa.RecordBatch, schema: TableSchema, lsn: int, truncated: bool) -> BagNet:
    columns = whole_rows(images, schema.table)
    touched, numbers = Distinct.of(columns, keys=False)
    signs = np.where(images.column("_image").to_numpy() >= Image.UPDATED, 1, -1)
    counts = np.zeros(len(touched), np.int64)
    np.add.at(counts, numbers, signs)
    rows = pa.Table.from_arrays(columns, schema=schema.columns).take(pa.array(_last(numbers, len(touched))))
    return BagNet(schema, lsn, truncated, touched, rows, counts)
