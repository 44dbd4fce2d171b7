"""Where a micro-batch ends: after so many changes or bytes, and always between transactions.

Chunks say how many rows they hold and from which to which transaction. Whole chunks are taken, over all tables by where
they end, while they fit. The one that does not fit may hold many transactions, and so may those that overlap with it:
their positions are read, to end after the last transaction that fits. At least one transaction is always taken,
or a stream would stand still before one that is larger than the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.changelog.interface import ChangeLogReader, Extent
from penstock.positions import Lsn

__all__ = ["Limits"]

_Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """How much a micro-batch may hold; None: no limit."""

    rows: int | None = None
    size: int | None = None

    def end(self, log: ChangeLogReader, extents: Sequence[Extent], upto: Lsn) -> Lsn:
        """Return the position at which to end, `upto` at most."""
        if self.rows is None and self.size is None:
            return upto
        parts = [replace(extent, chunks=(chunk,)) for extent in extents for chunk in extent.chunks]
        parts.sort(key=lambda part: part.chunks[0].last)
        fitting = self._whole(parts)
        if fitting == len(parts):
            return upto
        reach = parts[fitting].chunks[0].last
        mixed = [part for part in parts[fitting:] if part.chunks[0].first <= reach]
        begins = min(part.chunks[0].first for part in mixed)
        apart = [part for part in parts[:fitting] if part.chunks[0].last < begins]
        return min(upto, self._within(log, apart, parts[len(apart) : fitting] + mixed, reach))

    def _whole(self, parts: Sequence[Extent]) -> int:
        """Return how many chunks fit whole."""
        rows = size = 0
        for number, part in enumerate(parts):
            rows, size = rows + part.rows, size + part.size
            if not self._fits(rows, size):
                return number
        return len(parts)

    def _within(self, log: ChangeLogReader, apart: Sequence[Extent], mixed: Sequence[Extent], reach: Lsn) -> Lsn:
        """Look for the last transaction of overlapping chunks that fits together with what lies before them."""
        lsns, sizes = self._positions(log, mixed)
        positions, at = np.unique(lsns, return_inverse=True)
        rows = sum(part.rows for part in apart) + np.cumsum(np.bincount(at))
        size = sum(part.size for part in apart) + np.cumsum(np.bincount(at, sizes))
        fits = (positions <= reach) & (rows <= (self.rows or np.inf)) & (size <= (self.size or np.inf))
        if fits.any():
            return Lsn(int(positions[fits][-1]))
        return apart[-1].chunks[0].last if apart else Lsn(int(positions[0]))

    def _positions(self, log: ChangeLogReader, parts: Sequence[Extent]) -> tuple[_Numbers, _Numbers]:
        """Return the position of each image of some chunks, and about how many bytes it has."""
        found = [(_lsns(log, part), part.size / max(1, part.rows)) for part in parts]
        sizes = [np.full(len(lsns), each) for lsns, each in found]
        return np.concatenate([lsns for lsns, _ in found]), np.concatenate(sizes)

    def _fits(self, rows: float, size: float) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.size is None or size <= self.size)


def _lsns(log: ChangeLogReader, part: Extent) -> _Numbers:
    """Return the positions in one chunk; one of a single transaction, which may have very many, is not read."""
    (chunk,) = part.chunks
    if chunk.first == chunk.last:
        return np.full(chunk.rows, int(chunk.last))
    return np.concatenate([batch.column("_lsn").to_numpy() for batch in log.read(part)])
