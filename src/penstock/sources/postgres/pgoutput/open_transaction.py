"""A transaction in progress whose parts have left the decoder: the state kept until it ends.

Any of its subtransactions may still be rolled back, with all its descriptions, changes and failures. So everything is
recorded with its subtransaction, and the transaction's commit determines what remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from penstock.errors import TableError
from penstock.model import TableName
from penstock.sources.postgres.replication.interference import LocatedMarker

__all__ = ["Failure", "OpenTransaction", "Use"]


@dataclass(frozen=True)
class Failure:
    """A table that fails in a transaction (index in the scan; for a staged one, the subtransaction), and the reason."""

    table: TableName
    transaction: int
    message: str
    hint: str
    kind: type[TableError] = TableError


@dataclass(frozen=True)
class Use:
    """Which subtransactions have changes of one slot in a part, and the ordinals of their first and last change."""

    subtransactions: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]


@dataclass
class OpenTransaction:
    """A transaction in progress that is staged in parts."""

    ordinal: int = 0
    relations: dict[int, int] = field(default_factory=dict)
    """Relations that it described: valid for others once it has committed."""
    uses: dict[int, list[Use]] = field(default_factory=dict)
    """By slot with changes in it."""
    failures: list[Failure] = field(default_factory=list)
    markers: list[LocatedMarker] = field(default_factory=list)
    """Watermarks and heartbeats in it."""
    aborted: set[int] = field(default_factory=set)

    def lasting_slots(self) -> list[int]:
        """Return the slots with changes that were not rolled back, ordered by their first change."""
        first = {slot: min((at for at, _ in self._spans(slot)), default=None) for slot in self.uses}
        return sorted((slot for slot in first if first[slot] is not None), key=lambda slot: first[slot] or 0)

    def comes_after(self, slot: int, other: int) -> bool:
        """Return whether a change of `slot` follows a change of `other`."""
        begun = min(first for first, _ in self._spans(other))
        return any(last > begun for _, last in self._spans(slot))

    def _spans(self, slot: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last ordinal of each use, without rolled-back changes."""
        for use in self.uses[slot]:
            kept = ~np.isin(use.subtransactions, list(self.aborted))
            if kept.any():
                yield int(use.first[kept].min()), int(use.last[kept].max())

    def lasting_failures(self) -> list[Failure]:
        """Return the failures that were not rolled back, as failures of the first transaction of a list."""
        kept = (failure for failure in self.failures if failure.transaction not in self.aborted)
        return [replace(failure, transaction=0) for failure in kept]

    def lasting_markers(self) -> list[LocatedMarker]:
        """Return the markers that were not rolled back."""
        return [marker for marker in self.markers if marker.xid not in self.aborted]

    def use(
        self,
        slot: int,
        xids: npt.NDArray[np.int64],
        tx: npt.NDArray[np.int64],
        ordinals: npt.NDArray[np.int64],
    ) -> None:
        """Record changes of a slot: their subtransactions (`tx` refers to `xids`) and ordinals."""
        first, last = np.full(len(xids), np.iinfo(np.int64).max), np.zeros(len(xids), np.int64)
        np.minimum.at(first, tx, ordinals)
        np.maximum.at(last, tx, ordinals)
        self.uses.setdefault(slot, []).append(Use(xids, first, last))
