"""The column writer: how kernels append values to columns, and the buffers that hold the entries.

A kernel reads a message in byte order and appends each value to its column, which has its own counter. So the order of
fields in the message does not matter, only that each column gets one entry per entry of its parent.

An entry is a validity flag and one or two numbers, whose meaning depends on the column's `Store`. A column has a fixed
capacity; beyond it, entries are counted but not stored. At the end of a message (`commit`, `rollback`) ::

    the message is valid      its entries are committed
    the message is corrupt    the counters are reset, and one null row is written in its place
    the capacity ran out      the counters are reset, and the kernel stops; it is called again with larger columns

So the output never contains any part of a corrupt message, and each message is decoded once, except the one for which
columns have to grow.

A column outside of lists has one entry per message, so it never grows. A column within a list starts with the same
capacity. When a message needs more, its kernel stops before that message, the column grows to twice the size needed,
and the kernel resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Column, Columns
from penstock.formats.jit import NIL, Ints, constant, inner
from penstock.formats.memory import WORD, address, set_byte, set_word, word

__all__ = [
    "ColumnBuffer",
    "ColumnWriter",
    "commit",
    "fill_columns",
    "put",
    "put_null",
    "put_pair",
    "put_present",
    "reserve",
    "rollback",
    "set_count",
]

_ROW = 64
"""Size in bytes of a column's row in the table: the numbers below, in this order."""
(
    _COUNT,
    _CAPACITY,
    _VALID,
    _VALUE,
    _SIZE,
    _COMMITTED,
    _NULLS,
    _NULL_COUNT,
) = (constant(place) for place in range(0, _ROW, WORD))


class ColumnWriter(NamedTuple):
    """All columns of a batch, by address."""

    columns: int
    """A row per column: number of entries; capacity; addresses of its three arrays (0 if the last is missing); number
    of committed entries; start and length of its part of `nulls`.
    """
    width: int
    """The number of columns."""
    nulls: int
    """The columns that get an entry when a column is null: the column and, for a struct, all its fields."""


@inner
def _next(out: ColumnWriter, column: int) -> tuple[int, int, bool]:
    """Count one more entry; return the column's row, the index of the entry, and whether it fits the capacity."""
    row = out.columns + _ROW * column
    at = word(row + _COUNT)
    set_word(row + _COUNT, at + 1)
    return row, at, at < word(row + _CAPACITY)


@inner
def put(out: ColumnWriter, column: int, value: int) -> None:
    """Append an entry with one number."""
    row, at, has_room = _next(out, column)
    if has_room:
        set_byte(word(row + _VALID) + at, 1)
        set_word(word(row + _VALUE) + WORD * at, value)


@inner
def put_pair(out: ColumnWriter, column: int, value: int, size: int) -> None:
    """Append an entry with two numbers."""
    row, at, has_room = _next(out, column)
    if has_room:
        set_byte(word(row + _VALID) + at, 1)
        set_word(word(row + _VALUE) + WORD * at, value)
        set_word(word(row + _SIZE) + WORD * at, size)


@inner
def put_present(out: ColumnWriter, column: int) -> None:
    """Append an entry without numbers: a struct that is not null."""
    row, at, has_room = _next(out, column)
    if has_room:
        set_byte(word(row + _VALID) + at, 1)


@inner
def reserve(out: ColumnWriter, column: int) -> int:
    """Append an entry whose value, an item count, is set later (`set_count`); return its index."""
    put(out, column, NIL)
    return word(out.columns + _ROW * column + _COUNT) - 1


@inner
def set_count(out: ColumnWriter, column: int, at: int, count: int) -> None:
    """Set the value of a reserved entry."""
    row = out.columns + _ROW * column
    if at < word(row + _CAPACITY):
        set_word(word(row + _VALUE) + WORD * at, count)


@inner
def put_null(out: ColumnWriter, column: int) -> None:
    """Append a null; for a struct, also to its fields."""
    own = out.columns + _ROW * column
    first = out.nulls + WORD * word(own + _NULLS)
    for index in range(word(own + _NULL_COUNT)):
        row, at, has_room = _next(out, word(first + WORD * index))
        if has_room:
            set_byte(word(row + _VALID) + at, 0)
            set_word(word(row + _VALUE) + WORD * at, 0)
            if word(row + _SIZE):
                set_word(word(row + _SIZE) + WORD * at, 0)


@inner
def rollback(out: ColumnWriter) -> None:
    """Discard the entries since the last commit."""
    for row in range(out.columns, out.columns + _ROW * out.width, _ROW):
        set_word(row + _COUNT, word(row + _COMMITTED))


@inner
def commit(out: ColumnWriter) -> bool:
    """Commit the entries of a message and return True; return False if a column lacked capacity."""
    for row in range(out.columns, out.columns + _ROW * out.width, _ROW):
        if word(row + _COUNT) > word(row + _CAPACITY):
            return False
    for row in range(out.columns, out.columns + _ROW * out.width, _ROW):
        set_word(row + _COMMITTED, word(row + _COUNT))
    return True


# -- buffers -----------------------------------------------------------------------------------------------------------

(
    _COUNT_WORD,
    _CAPACITY_WORD,
    _VALID_WORD,
    _VALUE_WORD,
    _SIZE_WORD,
    _COMMITTED_WORD,
    _NULLS_WORD,
    _NULL_COUNT_WORD,
) = range(_ROW // WORD)
"""The same numbers of a row, as indexes for NumPy."""


@dataclass
class ColumnBuffer:
    """The entries of one column: validity and numbers; `size` is empty where entries have no second number."""

    valid: npt.NDArray[np.uint8]
    value: Ints
    size: Ints

    @classmethod
    def of(cls, column: Column, capacity: int) -> ColumnBuffer:
        """Allocate a buffer for `capacity` entries."""
        return cls(
            np.empty(capacity, np.uint8),
            np.empty(capacity, np.int64),
            np.empty(capacity * column.store.has_second, np.int64),
        )

    def with_capacity(self, capacity: int) -> ColumnBuffer:
        """Return the same entries in a buffer of larger capacity."""
        more = capacity - len(self.valid)
        valid = np.append(self.valid, np.empty(more, np.uint8))
        value, size = (np.append(old, np.empty(more if old.size else 0, np.int64)) for old in (self.value, self.size))
        return ColumnBuffer(valid, value, size)

    def truncated(self, count: int) -> ColumnBuffer:
        """Return the first `count` entries."""
        return ColumnBuffer(self.valid[:count], self.value[:count], self.size[:count])

    def addresses(self) -> tuple[int, int, int]:
        """Return the addresses of the three arrays; 0 for a missing one."""
        return address(self.valid), address(self.value), address(self.size) if self.size.size else 0


def fill_columns(columns: Columns, messages: int, walk: Callable[[int, ColumnWriter], int]) -> list[ColumnBuffer]:
    """Decode all messages with `walk` and return the filled buffers.

    `walk` starts at the message index that it is given, and returns the index at which capacity ran out.
    """
    entries = [ColumnBuffer.of(column, max(messages, 1)) for column in columns]
    table = np.zeros((len(columns), _ROW // WORD), np.int64)
    table[:, _NULLS_WORD], table[:, _NULL_COUNT_WORD] = columns.null_parts.T
    for row, one in zip(table, entries, strict=True):
        _set_addresses(row, one)
    out = ColumnWriter(address(table), len(columns), address(columns.nulls))
    done = walk(0, out)
    while done < messages:
        for index in np.flatnonzero(table[:, _COUNT_WORD] > table[:, _CAPACITY_WORD]):
            entries[index] = entries[index].with_capacity(2 * int(table[index, _COUNT_WORD]))
            _set_addresses(table[index], entries[index])
        table[:, _COUNT_WORD] = table[:, _COMMITTED_WORD]
        done = walk(done, out)
    return [one.truncated(int(row[_COUNT_WORD])) for row, one in zip(table, entries, strict=True)]


def _set_addresses(row: Ints, entries: ColumnBuffer) -> None:
    row[_CAPACITY_WORD] = len(entries.valid)
    row[_VALID_WORD], row[_VALUE_WORD], row[_SIZE_WORD] = entries.addresses()
