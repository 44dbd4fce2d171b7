"""Where kernels put values: columns, each with a counter of its own.

A kernel walks a message in the order of its bytes and puts each value at the end of the column it belongs to. So the
order of fields in the message does not matter, only that each column gets one entry per entry of its parent.

An entry is whether it is there, and one or two numbers of which the meaning is that of the column's `Store`. A column
has room for so many entries; beyond that it only counts. At the end of a message (`kept`, `taken_back`) ::

    it is fine        what it put is kept
    it is corrupt     the counters go back, and one null row stands in its place
    there is no room  the counters go back, and the kernel stops here; it is called again when there is more

So nothing of a corrupt message is ever in the output, and a batch is walked once.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.memory import WORD, set_byte, set_word, word

__all__ = [
    "ROW",
    "Sink",
    "kept",
    "put",
    "put_count",
    "put_null",
    "put_there",
    "put_two",
    "reserve",
    "taken_back",
]

ROW = 64
"""How many bytes a column has in the table: those of the numbers below, in this order."""
_COUNT, _ROOM, _VALID, _VALUE, _SIZE, _KEPT, _NULLS, _NULL_COUNT = (constant(place) for place in range(0, ROW, WORD))


class Sink(NamedTuple):
    """All columns of a batch, by address."""

    columns: int
    """A row per column: entries so far, room; where the three arrays of its entries are (the last may be missing: 0);
    entries that are kept; where its part of `nulls` begins, and how long that is."""
    width: int
    """How many columns there are."""
    nulls: int
    """The columns that get an entry when a column is null: itself and, below a struct, its fields."""


@inner
def _next(sink: Sink, column: int) -> tuple[int, int, bool]:
    """Count one more entry; return the column's row, the place of the entry, and whether there is room for it."""
    row = sink.columns + ROW * column
    at = word(row + _COUNT)
    set_word(row + _COUNT, at + 1)
    return row, at, at < word(row + _ROOM)


@inner
def put(sink: Sink, column: int, value: int) -> None:
    """Add one entry of one number."""
    row, at, room = _next(sink, column)
    if room:
        set_byte(word(row + _VALID) + at, 1)
        set_word(word(row + _VALUE) + WORD * at, value)


@inner
def put_two(sink: Sink, column: int, value: int, size: int) -> None:
    """Add one entry of two numbers."""
    row, at, room = _next(sink, column)
    if room:
        set_byte(word(row + _VALID) + at, 1)
        set_word(word(row + _VALUE) + WORD * at, value)
        set_word(word(row + _SIZE) + WORD * at, size)


@inner
def put_there(sink: Sink, column: int) -> None:
    """Add one entry without numbers: a struct that is not null."""
    row, at, room = _next(sink, column)
    if room:
        set_byte(word(row + _VALID) + at, 1)


@inner
def reserve(sink: Sink, column: int) -> int:
    """Add one entry whose value, a count of items, comes later (`put_count`); return where."""
    put(sink, column, NIL)
    return word(sink.columns + ROW * column + _COUNT) - 1


@inner
def put_count(sink: Sink, column: int, at: int, count: int) -> None:
    """Set the value of an entry that was reserved."""
    row = sink.columns + ROW * column
    if at < word(row + _ROOM):
        set_word(word(row + _VALUE) + WORD * at, count)


@inner
def put_null(sink: Sink, column: int) -> None:
    """Add a null, also to the fields of a struct."""
    own = sink.columns + ROW * column
    first = sink.nulls + WORD * word(own + _NULLS)
    for index in range(word(own + _NULL_COUNT)):
        row, at, room = _next(sink, word(first + WORD * index))
        if room:
            set_byte(word(row + _VALID) + at, 0)
            set_word(word(row + _VALUE) + WORD * at, 0)
            if word(row + _SIZE):
                set_word(word(row + _SIZE) + WORD * at, 0)


@inner
def taken_back(sink: Sink) -> None:
    """Forget what was put since the last message that was kept."""
    for row in range(sink.columns, sink.columns + ROW * sink.width, ROW):
        set_word(row + _COUNT, word(row + _KEPT))


@inner
def kept(sink: Sink) -> bool:
    """Keep what was put, if there was room for all of it."""
    for row in range(sink.columns, sink.columns + ROW * sink.width, ROW):
        if word(row + _COUNT) > word(row + _ROOM):
            return False
    for row in range(sink.columns, sink.columns + ROW * sink.width, ROW):
        set_word(row + _KEPT, word(row + _COUNT))
    return True
