"""Windows of the log: consecutive parts of a range, of several tables, that fit into memory.

All changes of a transaction have the same position, so a window that ends at any position contains only whole
transactions. Memory is bounded by the size of a window plus the largest transaction. The boundaries come from the chunk
descriptions of the log: nothing is read before the window is. The range is first divided into steps of a fixed number
of WAL bytes, so that the descriptions in memory are bounded too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from penstock.changelog.interface import ChangeLogReader, Extent
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Window", "windows"]

_WAL_STEP = 256 << 20


@dataclass(frozen=True)
class Window:
    """The changes of some tables in (`after`, `upto`]; a table without changes has no extent."""

    after: Lsn
    upto: Lsn
    extents: tuple[Extent, ...]


def windows(
    reader: ChangeLogReader, tables: Collection[TableName], after: Lsn, upto: Lsn, size: int
) -> Iterator[Window]:
    """Divide (after, upto] into windows of about `size` bytes, without gaps; a window may have no changes."""
    for step in _steps(reader, sorted(tables), after, upto):
        yield from _split(step, size)


def _steps(reader: ChangeLogReader, tables: Collection[TableName], after: Lsn, upto: Lsn) -> Iterator[Window]:
    """Yield consecutive parts of the range; the step size doubles while there are no changes."""
    width = _WAL_STEP
    while after < upto:
        end = Lsn(min(upto, after + width))
        extents = tuple(extent for table in tables if (extent := reader.extent(table, after, end)).chunks)
        if extents and width > _WAL_STEP:
            first = Lsn(max(after, min(extent.chunks[0].first for extent in extents) - 1))
            if first > after:
                yield Window(after, first, ())
            after, width = first, _WAL_STEP
            continue
        yield Window(after, end, extents)
        after, width = end, width * 2 if not extents else width


def _split(window: Window, size: int) -> Iterator[Window]:
    """Split a window at positions that are about `size` bytes apart."""
    after, total = window.after, 0
    chunks = (chunk for extent in window.extents for chunk in extent.chunks)
    for chunk in sorted(chunks, key=lambda chunk: chunk.last):
        total += chunk.size
        if total >= size and after < chunk.last < window.upto:
            yield _clip(window, after, chunk.last)
            after, total = chunk.last, 0
    yield _clip(window, after, window.upto)


def _clip(window: Window, after: Lsn, upto: Lsn) -> Window:
    found = []
    for extent in window.extents:
        chunks = tuple(chunk for chunk in extent.chunks if chunk.last > after and chunk.first <= upto)
        if chunks:
            found.append(replace(extent, after=after, upto=upto, chunks=chunks))
    return Window(after, upto, tuple(found))
