"""What a reader holds in memory of published chunks and of publications: numbers in arrays, found by bisection.

A chunk takes some 80 bytes here, a publication 24, so that a reader of a log with millions of them stays small.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

from penstock.changelog.interface import ChunkRef
from penstock.changelog.kafka.records import Described, from_text
from penstock.positions import Lsn

__all__ = ["ChunkColumns", "Publications"]

_Staged = tuple[int, int, bytes | None]


class ChunkColumns:
    """The chunks of a table, in order of their last transaction."""

    def __init__(self) -> None:
        self._numbers = tuple(array("q") for _ in Described._fields[1:-1])
        self._staged: dict[int, _Staged] = {}
        """By the offset of the data, which is a chunk's own."""

    @property
    def _last(self) -> array[int]:
        return self._numbers[2]

    @property
    def _offset(self) -> array[int]:
        return self._numbers[7]

    def add(self, chunk: Described) -> None:
        """Add a chunk; chunks of one publication come in order of their last transaction."""
        at = bisect_right(self._last, chunk.last)
        for column, number in zip(self._numbers, chunk[1:-1], strict=True):
            column.insert(at, number)
        if chunk.staged is not None:
            xid, committed_at, aborted = chunk.staged
            self._staged[chunk.offset] = (xid, committed_at, None if aborted is None else from_text(aborted))

    def drop(self, upto: int) -> None:
        """Forget the chunks that end at or before a position."""
        end = bisect_right(self._last, upto)
        for offset in self._offset[:end]:
            self._staged.pop(offset, None)
        for column in self._numbers:
            del column[:end]

    def between(self, after: int, upto: int, durable: int) -> Iterator[ChunkRef]:
        """Yield the chunks that touch (after, upto] and end at or before `durable`."""
        for at in range(bisect_right(self._last, after), bisect_right(self._last, durable)):
            if self._numbers[1][at] > upto:
                return
            yield self._ref(at)

    def first_offset(self) -> int | None:
        """Return where in the data topic the first of these chunks begins; staged ones were written long before."""
        return min(self._offset, default=None)

    def _ref(self, at: int) -> ChunkRef:
        version, first, last, rows, size, flags, checksum, offset, parts, head = (c[at] for c in self._numbers)
        kinds, unchanged = flags >> 1, bool(flags & 1)
        place, staged = (offset, parts, head), self._staged.get(offset)
        return ChunkRef(place, version, Lsn(first), Lsn(last), rows, size, kinds, unchanged, checksum, staged)


class Publications:
    """Every publication: how far it went, the newest commit time up to there, and where its record is."""

    def __init__(self) -> None:
        self.durable, self.peak, self.offset = array("q"), array("q"), array("q")

    def add(self, durable: int, peak: int, offset: int) -> None:
        """Add the last one."""
        self.durable.append(durable)
        self.peak.append(peak)
        self.offset.append(offset)

    def upto(self, position: int) -> int:
        """Return how many end at or before a position."""
        return bisect_right(self.durable, position)

    def drop(self, position: int) -> None:
        """Forget those that end at or before a position."""
        end = self.upto(position)
        for column in (self.durable, self.peak, self.offset):
            del column[:end]
