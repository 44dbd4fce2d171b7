"""The memory behind a sink: the entries of each column, which grow while a batch is walked.

A column outside of lists has an entry per message, so it never grows. One within a list begins with as much; when a
message needs more, its kernel stops before it, the column grows to twice what is needed, and the kernel goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.formats.columns import Column, Columns
from penstock.formats.compiling import Ints
from penstock.formats.memory import WORD, address
from penstock.formats.sink import ROW, Sink

__all__ = ["Entries", "filled"]

_COUNT, _ROOM, _VALID, _VALUE, _SIZE, _KEPT, _NULLS, _NULL_COUNT = range(ROW // WORD)


@dataclass
class Entries:
    """The entries of one column: whether each is there, and its numbers; `size` is empty where it has no second."""

    valid: npt.NDArray[np.uint8]
    value: Ints
    size: Ints

    @classmethod
    def of(cls, column: Column, room: int) -> Entries:
        """Make room for so many."""
        return cls(np.empty(room, np.uint8), np.empty(room, np.int64), np.empty(room * column.store.has_two, np.int64))

    def grown(self, room: int) -> Entries:
        """Return the same entries, with more room."""
        more = room - len(self.valid)
        valid = np.append(self.valid, np.empty(more, np.uint8))
        value, size = (np.append(old, np.empty(more if old.size else 0, np.int64)) for old in (self.value, self.size))
        return Entries(valid, value, size)

    def first(self, count: int) -> Entries:
        """Return only the first ones."""
        return Entries(self.valid[:count], self.value[:count], self.size[:count])

    def addresses(self) -> tuple[int, int, int]:
        """Return where the three arrays are; 0 for one that is missing."""
        return address(self.valid), address(self.value), address(self.size) if self.size.size else 0


def filled(columns: Columns, messages: int, walk: Callable[[int, Sink], int]) -> list[Entries]:
    """Let `walk` put all messages, from the one that it is given on; it returns the one at which it had no room."""
    entries = [Entries.of(column, max(messages, 1)) for column in columns]
    table = np.zeros((len(columns), ROW // WORD), np.int64)
    table[:, _NULLS], table[:, _NULL_COUNT] = columns.null_parts.T
    for row, one in zip(table, entries, strict=True):
        _place(row, one)
    sink = Sink(address(table), len(columns), address(columns.nulls))
    done = walk(0, sink)
    while done < messages:
        for index in np.flatnonzero(table[:, _COUNT] > table[:, _ROOM]):
            entries[index] = entries[index].grown(2 * int(table[index, _COUNT]))
            _place(table[index], entries[index])
        table[:, _COUNT] = table[:, _KEPT]
        done = walk(done, sink)
    return [one.first(int(row[_COUNT])) for row, one in zip(table, entries, strict=True)]


def _place(row: Ints, entries: Entries) -> None:
    row[_ROOM] = len(entries.valid)
    row[_VALID], row[_VALUE], row[_SIZE] = entries.addresses()
