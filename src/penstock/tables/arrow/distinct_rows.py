"""Numbers for distinct rows, so that work on keys becomes work on integers.

::

    columns a, b of some rows ──▶ 0, 1, 0, 2 …        equal numbers mean equal values
    other rows                ──▶ 2, -1, 0 …          looked up among the first; -1: not found

Arrow's hashing numbers one column; two columns form a pair of numbers, which is numbered again, and so on. Texts are
never concatenated, and numbers stay below the square of the number of rows.

Equality depends on the use. *Keys* are compared as Postgres does: 0.0 and -0.0 are one key, NaN equals itself. *Whole
rows* of a keyless table are compared bit by bit: a row with -0.0 differs from a row with 0.0. Nested values are
compared by their JSON, which is exact; the entries of a map are unordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.json_rows import json_rows

__all__ = ["Distinct", "Numbers"]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Distinct:
    """The numbering of the distinct rows of a set."""

    values: tuple[pa.Array, ...]
    """The distinct values of each column."""
    pairs: tuple[Numbers, ...]
    """From the second column on: the pairs (number so far, number of the value) that occur, sorted."""
    keys: bool
    """Whether rows are compared as keys."""

    @classmethod
    def of(cls, columns: Sequence[pa.Array], *, keys: bool) -> tuple[Self, Numbers]:
        """Number rows; return the numbering and the number of each row."""
        encoded = [_comparable(column, keys).dictionary_encode(null_encoding="encode") for column in columns]
        numbers, pairs = _numbers(encoded[0].indices), []
        for column in encoded[1:]:
            both = numbers * len(column.dictionary) + _numbers(column.indices)
            there, numbers = np.unique(both, return_inverse=True)
            pairs.append(there)
        return cls(tuple(column.dictionary for column in encoded), tuple(pairs), keys), numbers

    def __len__(self) -> int:
        """Return the number of distinct rows."""
        return len(self.pairs[-1]) if self.pairs else len(self.values[0])

    def find(self, columns: Sequence[pa.Array]) -> Numbers:
        """Return the number of each row; -1 if it is not among the numbered rows."""
        numbers = self._find_in(0, columns[0])
        for place, pairs in enumerate(self.pairs, 1):
            other = self._find_in(place, columns[place])
            both = np.where((numbers < 0) | (other < 0), -1, numbers * len(self.values[place]) + other)
            numbers = _found(both, pairs)
        return numbers

    def _find_in(self, place: int, column: pa.Array) -> Numbers:
        return _numbers(pc.index_in(_comparable(column, self.keys), value_set=self.values[place]))


def _found(wanted: Numbers, there: Numbers) -> Numbers:
    """Return the index of each number among sorted ones; -1 if it is not among them."""
    if not len(there):
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(there, wanted), len(there) - 1)
    return np.where(there[at] == wanted, at, -1).astype(np.int64)


def _numbers(found: pa.Array) -> Numbers:
    numbers: Numbers = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return numbers


def _comparable(values: pa.Array, keys: bool) -> pa.Array:
    """Return values whose equality in Arrow is the required one."""
    if pa.types.is_nested(values.type):
        return json_rows(pa.StructArray.from_arrays([_normal(values, keys)], names=["v"]))
    if pa.types.is_floating(values.type):
        return _normal(values, keys).view(pa.int32() if values.type == pa.float32() else pa.int64())
    return values


def _normal(values: pa.Array, keys: bool) -> pa.Array:
    """Normalize equal values to one form, also inside nested values."""
    kind = values.type
    if pa.types.is_floating(kind):
        return _normal_floats(values, keys)
    if pa.types.is_struct(kind):
        children = [_normal(child, keys) for child in values.flatten()]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if pa.types.is_map(kind):
        return _sorted_map(values, keys)
    if pa.types.is_list(kind):
        items = _normal(values.flatten(), keys)
        return pa.ListArray.from_arrays(_offsets(values), items, type=kind, mask=values.is_null())
    return values


def _normal_floats(values: pa.Array, keys: bool) -> pa.Array:
    values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    zero = pa.scalar(0.0, values.type)
    return pc.if_else(pc.equal(values, zero), zero, values) if keys else values


def _sorted_map(values: pa.MapArray, keys: bool) -> pa.Array:
    """Sort the entries of each map by key."""
    entries = values.cast(pa.list_(pa.struct([("key", values.type.key_type), ("value", values.type.item_type)])))
    flat = entries.flatten()
    names, items = (_normal(child, keys) for child in flat.flatten())
    table = pa.table({"map": pc.list_parent_indices(entries), "key": _comparable(names, keys)})
    order = pc.sort_indices(table, [("map", "ascending"), ("key", "ascending")])
    arrays = [_offsets(entries), names.take(order), items.take(order)]
    return pa.MapArray.from_arrays(*arrays, type=values.type, mask=values.is_null())


def _offsets(lists: pa.ListArray) -> pa.Array:
    """Return offsets into the result of `flatten`, which skips null lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
