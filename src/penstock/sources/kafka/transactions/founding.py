"""Where to begin in the middle of a history: the first moment from which on every transaction is there as a whole.

::

    partition 0  … a a b │ b c e …        │ where reading begins, in each partition
    partition 1  … b d   │ d e …          b and d have events on both sides of it: they cannot be counted.
    metadata     … B C   │ D E …          All after d, the later of the two, is whole: valid from e on.

The last events before the beginning tell which transaction may be cut by it, in each partition. All transactions after
the latest of these lie behind the beginning, in every partition. Where these events are gone from Kafka, it is not
known which transactions lost some. Then an END that stays incomplete for a while, when later ones are complete, is
taken for one that begins before us. That is only done before the first tick: nothing was promised until then.

Debezium may repeat itself at just that moment. What a partition then gets of transactions that are not asked for may be
older than what it had before the beginning. So these events are *in doubt*: no cut lies among them, until a later one
of their partition was read, or until ENDs came that show Debezium beyond all it had written. (What is lost in a crash
of Debezium while the source is being made, in some partitions and not in others, cannot be known.)
"""

from __future__ import annotations

import numpy as np

from penstock.sources.kafka.transactions.flight import Flight
from penstock.sources.kafka.transactions.marks import MarkKind, Marks

__all__ = ["LOOK_BACK", "Founding"]

LOOK_BACK = 16
"""So many messages before the beginning of a partition are read: the last may be tombstones."""
_PATIENCE_SECONDS = 10.0


class Founding:
    """Finds the position up to which transactions are not asked for."""

    def __init__(self, patience: float = _PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._last: tuple[int, int] | None = None
        self._base: int | None = None
        self._stuck: tuple[int, float] | None = None

    def saw(self, earlier: Marks) -> None:
        """Take messages of a partition before its beginning."""
        changes = np.flatnonzero(earlier.kinds == MarkKind.CHANGE)
        if len(changes):
            found = (int(earlier.before[changes[-1]]), int(earlier.which[changes[-1]]))
            self._last = max(found, self._last or found)

    def base(self, flight: Flight, now: float) -> int | None:
        """Return the position by what is known now, when all that was there was read; None where it is not known."""
        if self._base is None:
            self._base = self._after_last(flight)
        elif (passed_by := self._passed_by(flight, now)) is not None:
            self._base = passed_by
        return self._base

    def _after_last(self, flight: Flight) -> int | None:
        """Return the END of the last transaction that may be cut: from the metadata, or from those that follow it."""
        if self._last is None:
            return 0
        before, which = self._last
        found = flight.position_of(which)
        return flight.first_before(before) if found is None else found

    def _passed_by(self, flight: Flight, now: float) -> int | None:
        """Return the END before the first complete one, if nothing came for those before that for long enough."""
        complete = flight.complete()
        if not complete.any() or complete[0]:
            self._stuck = None
            return None
        head = flight.position(0)
        if self._stuck is None or self._stuck[0] != head:
            self._stuck = (head, now)
        if now - self._stuck[1] < self._patience:
            return None
        return flight.position(int(np.argmax(complete)) - 1)
