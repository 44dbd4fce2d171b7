"""The memory that a `ColumnWriter` writes to: the entries of each column, which grow while a batch is decoded.

A column outside of lists has one entry per message, so it never grows. A column within a list starts with the same
capacity. When a message needs more, its kernel stops before that message, the column grows to twice the size needed,
and the kernel resumes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.formats.column_writer import ROW, ColumnWriter
from penstock.formats.columns import Column, Columns
from penstock.formats.jit import Ints
from penstock.formats.memory import WORD, address

__all__ = ["ColumnBuffer", "fill_columns"]

_COUNT, _CAPACITY, _VALID, _VALUE, _SIZE, _COMMITTED, _NULLS, _NULL_COUNT = range(ROW // WORD)


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
    table = np.zeros((len(columns), ROW // WORD), np.int64)
    table[:, _NULLS], table[:, _NULL_COUNT] = columns.null_parts.T
    for row, one in zip(table, entries, strict=True):
        _set_addresses(row, one)
    out = ColumnWriter(address(table), len(columns), address(columns.nulls))
    done = walk(0, out)
    while done < messages:
        for index in np.flatnonzero(table[:, _COUNT] > table[:, _CAPACITY]):
            entries[index] = entries[index].with_capacity(2 * int(table[index, _COUNT]))
            _set_addresses(table[index], entries[index])
        table[:, _COUNT] = table[:, _COMMITTED]
        done = walk(done, out)
    return [one.truncated(int(row[_COUNT])) for row, one in zip(table, entries, strict=True)]


def _set_addresses(row: Ints, entries: ColumnBuffer) -> None:
    row[_CAPACITY] = len(entries.valid)
    row[_VALID], row[_VALUE], row[_SIZE] = entries.addresses()
