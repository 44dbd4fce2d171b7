"""Where a micro-batch ends: after so many changes or bytes, and always between transactions.

Chunks say how many rows they hold and from which to which transaction. Whole chunks are taken while they fit. The one
that does not fit may hold many transactions: it is read, to end after the last of them that fits. At least one
transaction is always taken, or a stream would stand still before one that is larger than the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.changelog.interface import ChangeLogReader, ChunkRef, Extent
from penstock.positions import Lsn

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """How much a micro-batch may hold; None: no limit."""

    rows: int | None = None
    size: int | None = None

    def end(self, log: ChangeLogReader, extents: Sequence[Extent], upto: Lsn) -> Lsn:
        """Return the position at which to end, `upto` at most."""
        if self.rows is None and self.size is None:
            return upto
        chunks = sorted(((chunk, extent) for extent in extents for chunk in extent.chunks), key=_by_end)
        rows = size = 0
        end: Lsn | None = None
        for chunk, extent in chunks:
            if not self._fits(rows + chunk.rows, size + chunk.size):
                return self._within(log, replace(extent, chunks=(chunk,)), rows, size, end)
            rows, size, end = rows + chunk.rows, size + chunk.size, chunk.last
        return upto

    def _fits(self, rows: float, size: float) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.size is None or size <= self.size)

    def _within(self, log: ChangeLogReader, extent: Extent, rows: int, size: int, end: Lsn | None) -> Lsn:
        """Look into the chunk that does not fit."""
        (chunk,) = extent.chunks
        if chunk.first == chunk.last:
            return chunk.last if end is None else end
        lsns = np.concatenate([batch.column("_lsn").to_numpy() for batch in log.read(extent)])
        positions, counts = np.unique(lsns, return_counts=True)
        each = chunk.size / max(1, chunk.rows)
        for position, count in zip(positions, np.cumsum(counts), strict=True):
            if not self._fits(rows + count, size + count * each):
                return end if end is not None else Lsn(int(position))
            end = Lsn(max(end or 0, int(position)))
        return end or chunk.last


def _by_end(found: tuple[ChunkRef, Extent]) -> tuple[Lsn, Lsn]:
    return found[0].last, found[0].first
