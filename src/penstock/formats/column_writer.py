"""The column writer: how kernels append values to columns, each with its own counter.

A kernel reads a message in byte order and appends each value to its column. So the order of fields in the message does
not matter, only that each column gets one entry per entry of its parent.

An entry is a validity flag and one or two numbers, whose meaning depends on the column's `Store`. A column has a fixed
capacity; beyond it, entries are counted but not stored. At the end of a message (`commit`, `rollback`) ::

    the message is valid      its entries are committed
    the message is corrupt    the counters are reset, and one null row is written in its place
    the capacity ran out      the counters are reset, and the kernel stops; it is called again with larger columns

So the output never contains any part of a corrupt message, and each message is decoded once, except the one for which
columns have to grow.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import WORD, set_byte, set_word, word

__all__ = [
    "ROW",
    "ColumnWriter",
    "commit",
    "put",
    "put_null",
    "put_pair",
    "put_present",
    "reserve",
    "rollback",
    "set_count",
]

ROW = 64
"""Size in bytes of a column's row in the table: the numbers below, in this order."""
_COUNT, _CAPACITY, _VALID, _VALUE, _SIZE, _COMMITTED, _NULLS, _NULL_COUNT = (
    constant(place) for place in range(0, ROW, WORD)
)


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
    row = out.columns + ROW * column
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
    return word(out.columns + ROW * column + _COUNT) - 1


@inner
def set_count(out: ColumnWriter, column: int, at: int, count: int) -> None:
    """Set the value of a reserved entry."""
    row = out.columns + ROW * column
    if at < word(row + _CAPACITY):
        set_word(word(row + _VALUE) + WORD * at, count)


@inner
def put_null(out: ColumnWriter, column: int) -> None:
    """Append a null; for a struct, also to its fields."""
    own = out.columns + ROW * column
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
    for row in range(out.columns, out.columns + ROW * out.width, ROW):
        set_word(row + _COUNT, word(row + _COMMITTED))


@inner
def commit(out: ColumnWriter) -> bool:
    """Commit the entries of a message and return True; return False if a column lacked capacity."""
    for row in range(out.columns, out.columns + ROW * out.width, ROW):
        if word(row + _COUNT) > word(row + _CAPACITY):
            return False
    for row in range(out.columns, out.columns + ROW * out.width, ROW):
        set_word(row + _COMMITTED, word(row + _COUNT))
    return True
