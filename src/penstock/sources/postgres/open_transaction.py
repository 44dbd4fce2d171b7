"""A transaction in progress whose parts have left the decoder: what is to be remembered until it ends.

Any of its subtransactions may still be rolled back, and with it what it described, changed or broke. So all is noted
with the subtransaction, and what lasts is known when the transaction commits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from penstock.model import TableName
from penstock.sources.postgres.signals import Heard

__all__ = ["Failure", "OpenTransaction", "Use"]


@dataclass(frozen=True)
class Failure:
    """A table that ends in a transaction (its place in the scan; of a staged one, the subtransaction), for a reason."""

    table: TableName
    transaction: int
    message: str
    hint: str


@dataclass(frozen=True)
class Use:
    """Which subtransactions have changes of one slot in a part, and the ordinals of the first and last of these."""

    subtransactions: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]


@dataclass
class OpenTransaction:
    """A transaction in progress that was staged in parts."""

    ordinal: int = 0
    relations: dict[int, int] = field(default_factory=dict)
    """Relations that it described: they hold for others only when it has committed."""
    uses: dict[int, list[Use]] = field(default_factory=dict)
    """Of every slot with changes in it."""
    failures: list[Failure] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
    """Watermarks and heartbeats in it."""
    aborted: set[int] = field(default_factory=set)

    def lasting_slots(self) -> list[int]:
        """Return the slots with changes that were not rolled back, by the first of these."""
        first = {slot: min((at for at, _ in self._spans(slot)), default=None) for slot in self.uses}
        return sorted((slot for slot in first if first[slot] is not None), key=lambda slot: first[slot] or 0)

    def comes_after(self, slot: int, other: int) -> bool:
        """Whether a change of one slot came after one of the other."""
        begun = min(first for first, _ in self._spans(other))
        return any(last > begun for _, last in self._spans(slot))

    def _spans(self, slot: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last ordinal of each use, without what was rolled back."""
        for use in self.uses[slot]:
            kept = ~np.isin(use.subtransactions, list(self.aborted))
            if kept.any():
                yield int(use.first[kept].min()), int(use.last[kept].max())

    def lasting_failures(self) -> list[Failure]:
        """Return the failures that were not rolled back, as those of the first of some transactions."""
        kept = (failure for failure in self.failures if failure.transaction not in self.aborted)
        return [replace(failure, transaction=0) for failure in kept]

    def lasting_signs(self) -> list[Heard]:
        """Return what was heard and not rolled back."""
        return [heard for heard in self.heard if heard.xid not in self.aborted]

    def use(
        self,
        slot: int,
        xids: npt.NDArray[np.int64],
        tx: npt.NDArray[np.int64],
        ordinals: npt.NDArray[np.int64],
    ) -> None:
        """Take note of changes of a slot: whose they are (`tx` refers to `xids`), and their places."""
        first, last = np.full(len(xids), np.iinfo(np.int64).max), np.zeros(len(xids), np.int64)
        np.minimum.at(first, tx, ordinals)
        np.maximum.at(last, tx, ordinals)
        self.uses.setdefault(slot, []).append(Use(xids, first, last))
