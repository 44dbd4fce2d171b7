"""Fold in Arrow: the net change of any range of images, without Spark.

::

    images (L, T] ──▶ drop images before a TRUNCATE ──▶ last image per key ──▶ touched keys, present rows
                                                   └──▶ keyless table: change of the count of each row

Images are in log order. The last image of a key determines whether its row exists.

**Omitted values** (TOAST) of an UPDATED image are those of the previous version of the row. Every image points to the
image of that previous version: an UPDATED image to the old image of the same change if there is one, else to the
previous image at the same key; likewise the old image of a key change. Following these pointers leads along one row,
across key changes, to an image that has the value: a whole old row, an INSERTED image, or an UPDATED image that carries
it. If there is none, the pointers end at the first image of the row in the range, and the value is in the base
row with *that* image's key. Pointers are followed by doubling: each step takes every image twice as far.

All base values of a row are in one base row: it has one chain with one end.

**Rescued values.** The text of a column is taken from where its value is taken from; see
`penstock.changelog.rescued_texts`. If a value is in the base row, `RESCUED` counts as omitted, too: the row then adds
the base row's texts of its omitted columns to its own.

This module does not use Spark: Spark tasks call it, and so does the conversion of small ranges for Spark
(`penstock.tables.log_tail`). `penstock.tables.fold` does the same for DataFrames of any size; the tests compare
all of them with the same reference model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.rescued_texts import text_of, with_texts
from penstock.changelog.user_rows import whole_rows
from penstock.errors import TableError
from penstock.model import RESCUED, Image, TableName, TableSchema, is_rescuable, rescued_index
from penstock.positions import Lsn
from penstock.tables.arrow.distinct_rows import Distinct, Numbers

__all__ = [
    "Flags",
    "KeyedNet",
    "KeylessNet",
    "earlier_images",
    "fold_net",
    "missing_base_row",
    "newest_images",
    "omitted_values",
]

Flags = npt.NDArray[np.bool_]


def missing_base_row(table: TableName, position: int) -> TableError:
    """Return the error for a row that a net change requires and the base table lacks."""
    message = f"a change of {table} up to {Lsn(position)} requires a row that is missing from its base table"
    hint = (
        f"Repair the table: penstock repair SOURCE {table} --all. Or take a new snapshot of it: ALTER SOURCES …"
        f" RETRY TABLE {table};"
    )
    return TableError(str(table), position, message, hint)


@dataclass(frozen=True)
class KeyedNet:
    """The net change of a range on a table with a key."""

    schema: TableSchema
    lsn: int
    """The position of the last change; 0 if there is none."""
    truncated: bool
    """Whether a TRUNCATE removed all base rows."""
    touched: Distinct
    """The keys that the range touches."""
    keys: pa.Table
    """The same keys, by number."""
    rows: pa.Table
    """The rows that exist after the range; values that come from a base row are null."""
    present: Numbers
    """For each row, the number of its key."""
    sources: Numbers
    """For each row, the number of the touched key whose base row supplies its omitted values; -1 for none."""
    moved: Flags
    """For each row with omitted values, whether its key changed; it may have changed back since."""
    left_out: dict[str, Numbers]
    """The columns with omitted values, and the rows in which they are omitted."""


@dataclass(frozen=True)
class KeylessNet:
    """The net change of a range on a keyless table."""

    schema: TableSchema
    lsn: int
    truncated: bool
    touched: Distinct
    """The rows that the range touches."""
    rows: pa.Table
    """The same rows, by number."""
    counts: Numbers
    """The change of each row's count."""


def fold_net(images: pa.Table, schema: TableSchema) -> KeyedNet | KeylessNet:
    """Fold `images`, which are in log order."""
    lsn = images.column("_lsn")[-1].as_py() if len(images) else 0
    kinds = images.column("_image").to_numpy()
    truncates = np.flatnonzero(kinds == Image.TRUNCATE)
    left = images.slice(truncates[-1] + 1) if len(truncates) else images
    batch = left.combine_chunks().to_batches()[0] if len(left) else _nothing(images.schema)
    fold = _fold_keys if schema.key else _fold_keyless
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
    earlier = earlier_images(kinds, keys)
    unknown = omitted_values(images)
    sources, moved, left_out, rows = np.full(len(last), -1), np.zeros(len(last), np.bool_), {}, []
    place, texts = rescued_index(schema.columns), {}
    for index, (name, values) in enumerate(columns.items()):
        if index not in unknown:
            rows.append(values.take(pa.array(last)))
            continue
        lacks = unknown[index] | (kinds == Image.BEFORE_KEY)
        newest, travelled = newest_images(earlier, lacks, keys)
        found = newest[last]
        at_base = lacks[found]
        rows.append(values.take(pa.array(found, mask=at_base)))
        left_out[name] = np.flatnonzero(at_base)
        sources[at_base] = keys[found[at_base]]
        moved[at_base] = travelled[last[at_base]]
        if place is not None and is_rescuable(values.type):
            taken = pa.array(found, mask=at_base | ~lacks[last])
            texts[name] = text_of(columns[RESCUED], name).take(taken)
    if texts and place is not None:
        rows[place] = with_texts(rows[place], texts)
        left_out[RESCUED] = np.unique(np.concatenate([left_out[name] for name in texts]))
    table = pa.Table.from_arrays(rows, schema=schema.columns)
    named = pa.table({name: columns[name].take(pa.array(of_key)) for name in schema.key})
    return KeyedNet(schema, lsn, truncated, touched, named, table, present, sources, moved, left_out)


def _last(keys: Numbers, count: int) -> Numbers:
    """Return the last image of each key."""
    last = np.zeros(count, np.int64)
    last[keys] = np.arange(len(keys))  # for duplicates, numpy keeps the last
    return last


def earlier_images(kinds: npt.NDArray[np.int8], keys: Numbers) -> Numbers:
    """Return for each image the one of the previous version of its row; itself if there is none in the range."""
    order = np.argsort(keys, kind="stable")
    same = np.concatenate([[False], keys[order][1:] == keys[order][:-1]])[: len(keys)]
    earlier = np.arange(len(keys))
    earlier[order[same]] = order[np.flatnonzero(same) - 1]
    paired = np.flatnonzero((kinds[1:] == Image.UPDATED) & np.isin(kinds[:-1], (Image.BEFORE, Image.BEFORE_KEY))) + 1
    earlier[paired] = paired - 1
    return earlier


def omitted_values(images: pa.RecordBatch) -> dict[int, Flags]:
    """Return, per column with omitted values, in which images they are omitted."""
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


def newest_images(earlier: Numbers, lacks: Flags, keys: Numbers) -> tuple[Numbers, Flags]:
    """Follow the pointers from images that lack a value to the first image that has it, or to the end.

    Return where they end, and whether the key changed on the way.
    """
    at = np.where(lacks, earlier, np.arange(len(earlier)))
    moved = keys[at] != keys
    while not np.array_equal(further := at[at], at):
        moved |= moved[at]
        at = further
    return at, moved


# -- keyless tables -------------------------------------------------------------------------------------------------


def _fold_keyless(images: pa.RecordBatch, schema: TableSchema, lsn: int, truncated: bool) -> KeylessNet:
    columns = whole_rows(images, schema.table)
    touched, numbers = Distinct.of(columns, keys=False)
    signs = np.where(images.column("_image").to_numpy() >= Image.UPDATED, 1, -1)
    counts = np.zeros(len(touched), np.int64)
    np.add.at(counts, numbers, signs)
    rows = pa.Table.from_arrays(columns, schema=schema.columns).take(pa.array(_last(numbers, len(touched))))
    return KeylessNet(schema, lsn, truncated, touched, rows, counts)
