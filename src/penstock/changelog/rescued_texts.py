"""The column `RESCUED` of rows whose values come from several images: each text comes from where its value comes from.

::

    image          a = 1   b omitted   _rescued = {}          the texts of columns that it has, none of those it omits
    earlier row    a = 0   b = null    _rescued = {b: "…"}
    the row        a = 1   b = null    _rescued = {b: "…"}

`text_of` returns the texts of one column; a caller takes them by the same indices as the values of that column.
`with_texts` adds them to the maps of images that omit that column, which therefore have no text of it: nothing is ever
replaced, and a column that was sent with another value loses its earlier text. All functions work on whole columns.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import rescued_type

__all__ = ["renamed", "text_of", "with_texts", "without_columns"]


def text_of(maps: pa.MapArray, column: str) -> pa.Array:
    """Return the text of a column in each map; null if there is none."""
    if maps.null_count == len(maps):
        return pa.nulls(len(maps), pa.string())
    return pc.map_lookup(maps, query_key=pa.scalar(column), occurrence="first")


def with_texts(maps: pa.MapArray, texts: Mapping[str, pa.Array]) -> pa.Array:
    """Return the maps with texts of columns that they do not contain; null adds nothing."""
    added = {name: text for name, text in texts.items() if text.null_count < len(text)}
    if not added:
        return maps
    rows, keys, values = _entries(maps)
    for name, text in added.items():
        there = np.flatnonzero(text.is_valid().to_numpy(zero_copy_only=False))
        rows = np.concatenate([rows, there])
        keys = pa.concat_arrays([keys, pa.repeat(pa.scalar(name, pa.string()), len(there))])
        values = pa.concat_arrays([values, text.take(pa.array(there))])
    return _maps(len(maps), rows, keys, values)


def without_columns(maps: pa.MapArray, columns: list[str]) -> pa.Array:
    """Return the maps without the texts of these columns; null for a map of which nothing is left."""
    if maps.null_count == len(maps) or not columns:
        return maps
    rows, keys, values = _entries(maps)
    kept = pc.invert(pc.is_in(keys, value_set=pa.array(columns, pa.string())))
    chosen = kept.to_numpy(zero_copy_only=False)
    return _maps(len(maps), rows[chosen], keys.filter(kept), values.filter(kept))


def renamed(maps: pa.MapArray, names: Mapping[str, str]) -> pa.Array:
    """Return the maps with other names of columns."""
    if maps.null_count == len(maps) or all(old == new for old, new in names.items()):
        return maps
    rows, keys, values = _entries(maps)
    places = pc.index_in(keys, value_set=pa.array(list(names), pa.string()))
    found = pa.array(list(names.values()), pa.string()).take(places)
    return _maps(len(maps), rows, pc.coalesce(found, keys), values)


def _entries(maps: pa.MapArray) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Return row, key and value of each entry of maps that are not null."""
    lists = maps.cast(pa.list_(pa.struct([("key", pa.string()), ("value", pa.string())])))
    keys, values = lists.flatten().flatten()
    return pc.list_parent_indices(lists).to_numpy().astype(np.int64), keys, values


def _maps(count: int, rows: np.ndarray, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Return maps of entries, sorted by key; null for a row without entries."""
    order = pc.sort_indices(pa.table({"row": rows, "key": keys}), [("row", "ascending"), ("key", "ascending")])
    sizes = np.bincount(rows, minlength=count)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    arrays = [offsets, keys.take(order), values.take(order)]
    return pa.MapArray.from_arrays(*arrays, type=rescued_type(), mask=pa.array(sizes == 0))
