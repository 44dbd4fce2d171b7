"""The staged parts of transactions in progress, as recorded in the index."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from penstock.changelog.interface import StagedCommit
from penstock.changelog.kafka.records import IndexedChunk, StagedPart, to_text

__all__ = ["StagedTransactions"]


@dataclass
class _Transaction:
    parts: list[StagedPart] = field(default_factory=list)
    prepared: bool = False


class StagedTransactions:
    """Transactions in progress by xid; only records change them, see `penstock.changelog.kafka.index`."""

    def __init__(self) -> None:
        self._open: dict[int, _Transaction] = {}

    def add(self, xid: int, parts: Sequence[StagedPart]) -> None:
        """Add staged parts."""
        self._open.setdefault(xid, _Transaction()).parts.extend(parts)

    def prepare(self, xid: int, aborted: Collection[int]) -> None:
        """Mark a transaction as prepared, and remove its rolled-back subtransactions."""
        if found := self._open.get(xid):
            found.parts = list(_without(found.parts, frozenset(aborted)))
            found.prepared = True

    def end(self, xid: int) -> None:
        """Remove a transaction that was published or rolled back."""
        self._open.pop(xid, None)

    def drop_unprepared(self) -> None:
        """Remove the unprepared transactions when a new writer opens the log: Postgres sends them again."""
        self._open = {xid: found for xid, found in self._open.items() if found.prepared}

    def committed(self, xid: int, commit: StagedCommit) -> Iterator[IndexedChunk]:
        """Yield the chunks of a transaction as published by its commit."""
        if found := self._open.get(xid):
            for chunk, _, lost in _without(found.parts, commit.aborted):
                packed = to_text(np.array(lost, np.int32).tobytes()) if lost else None
                staged = (xid, int(commit.committed_at), packed)
                yield chunk._replace(first=int(commit.lsn), last=int(commit.lsn), staged=staged)

    def dump(self) -> tuple[tuple[int, bool, tuple[StagedPart, ...]], ...]:
        """Return all transactions in the form of a ``state`` record."""
        return tuple((xid, found.prepared, tuple(found.parts)) for xid, found in self._open.items())

    def load(self, dumped: Sequence[tuple[int, bool, Sequence[StagedPart]]]) -> None:
        """Replace all transactions by those of a ``state`` record."""
        self._open = {xid: _Transaction(list(parts), prepared) for xid, prepared, parts in dumped}

    def first_offset(self) -> int | None:
        """Return the offset of the first part in the data topic."""
        return min((part.chunk.offset for found in self._open.values() for part in found.parts), default=None)


def _without(parts: Sequence[StagedPart], aborted: Collection[int]) -> Iterator[StagedPart]:
    """Yield the parts without these subtransactions; omit parts that become empty."""
    for part in parts:
        live = tuple(sub for sub in part.live if sub[1] not in aborted)
        if len(live) == len(part.live):
            yield part
        elif live:
            lost = (*part.lost, *(row for row, xid, _, _ in part.live if xid in aborted))
            rows, changes = sum(sub[2] for sub in live), sum(sub[3] for sub in live)
            yield StagedPart(part.chunk._replace(rows=rows, changes=changes), live, lost)
