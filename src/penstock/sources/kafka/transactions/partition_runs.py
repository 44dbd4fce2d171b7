"""Messages of a partition that are not part of a tick yet, as runs: adjacent messages of one transaction as one row.

::

    offsets   10 11 12 13 14 15 16 17 18 19 20 21 22            a a  b b b  c  | crash  |  b b b  c  d d
    runs      └─ a ─┘└── b ──┘ c  └── b ──┘ c └─ d               settled ────────▶  repeats ▶  settled ─▶
                                                                                        (c is the highest again)

A cut is at the end of a run. Before it must be everything that the partition has of transactions up to a certain one,
and nothing of later ones. When Debezium repeats events, older events arrive again: a reader that keeps the last event
of each key would go back in time within the repeat. So a cut must also be **settled**: the event before it is the
highest one up to it. A repeat is settled when it reaches the previous position of the partition.

Between runs only the highest position so far is needed, so it is the only state to store.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.sources.kafka.transactions.message_columns import Ints, MessageColumns, MessageKind

__all__ = ["NO_POSITION", "CutPoint", "HighestPosition", "PartitionRuns"]

_END, _KIND, _BEFORE, _SNAPSHOT, _SETTLED, _TOP_BEFORE, _TOP_ORDER, _ORDER = range(8)
_ALIKE = [_KIND, _BEFORE, _SNAPSHOT, _SETTLED]
"""The columns in which adjacent messages of one run are equal."""
_CARRIED = [*_ALIKE, _ORDER]
_FREE = np.array([MessageKind.PASSES, -1, -1, True, 0], np.int64)
"""The values of messages that pass, if no message precedes them."""
_ORDERS = 1 << 40
"""More than the number of events in a transaction."""


class HighestPosition(NamedTuple):
    """The highest position of a partition's events: the commit before their transaction, and the order in it."""

    before: int
    order: int


NO_POSITION = HighestPosition(-1, 0)
"""The position before the first event."""


class CutPoint(NamedTuple):
    """A point at which a partition can be cut."""

    runs: int
    offset: int
    top: HighestPosition
    orderly: bool
    """Whether all events of completed transactions in the partition, as far as it was read, are before it."""


class PartitionRuns:
    """The messages of a partition after the last cut."""

    def __init__(self, upto: int, top: HighestPosition, doubt: int = -1) -> None:
        self.upto = upto
        """The last cut."""
        self.read = upto
        """The offset up to which the partition was read."""
        self.top = top
        """The highest position at the last cut."""
        self.changed = -1
        """The highest preceding commit of a change that was read."""
        self._rows = np.zeros((0, 8), np.int64)
        self._doubt = doubt
        self.high = top
        """The highest position that was read."""

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, messages: MessageColumns, read: int) -> npt.NDArray[np.bool_]:
        """Add the next messages, up to the offset `read`; return which of them are new changes."""
        self.read = max(self.read, read)
        if not len(messages.offsets):
            return np.zeros(0, np.bool_)
        self.changed = max(self.changed, int(messages.before[messages.kinds == MessageKind.CHANGE].max(initial=-1)))
        rows, new = self._placed(messages)
        held = self._rows[-1:]
        known = np.concatenate([held, rows])
        alike = np.all(known[1:, _ALIKE] == known[:-1, _ALIKE], axis=1)
        kept = known[np.append(~alike, True)]
        self._rows = np.concatenate([self._rows[: len(self._rows) - len(held)], kept])
        return new

    def cut_point(self, completed: int, copied: int) -> CutPoint:
        """Return the furthest cut if transactions up to `completed` and snapshots up to `copied` are complete."""
        rows = self._rows
        kind, before = rows[:, _KIND], rows[:, _BEFORE]
        blocked = (kind == MessageKind.CHANGE) & (before >= completed)
        blocked |= (kind == MessageKind.COPIED) & (rows[:, _SNAPSHOT] > copied)
        free = int(np.argmax(blocked)) if blocked.any() else len(rows)
        settled = np.flatnonzero(rows[:free, _SETTLED])
        passed = int(settled[-1]) + 1 if len(settled) else 0
        top = HighestPosition(*map(int, rows[passed - 1, [_TOP_BEFORE, _TOP_ORDER]])) if passed else self.top
        offset = self.read if passed == len(rows) else int(rows[passed - 1, _END]) if passed else self.upto
        late = (kind[passed:] == MessageKind.CHANGE) & (before[passed:] < completed) & (before[passed:] > top.before)
        late &= before[passed:] >= self._doubt
        return CutPoint(passed, offset, top, orderly=not late.any())

    def cut(self, place: CutPoint) -> None:
        """Remove the messages that a tick contains."""
        self._rows = self._rows[place.runs :].copy()
        self.upto, self.top = place.offset, place.top

    def doubt(self, below: int) -> None:
        """Treat events below a position as possible repeats of events before the start, until `trust`."""
        self._doubt = below
        changes = self._rows[:, _KIND] == MessageKind.CHANGE
        self._rows[changes & (self._rows[:, _BEFORE] < below), _SETTLED] = False

    def trust(self) -> None:
        """End the doubt: no such repeat has more events."""
        self._doubt = -1
        changes = self._rows[:, _KIND] == MessageKind.CHANGE
        on_top = np.all(self._rows[:, [_BEFORE, _ORDER]] == self._rows[:, [_TOP_BEFORE, _TOP_ORDER]], axis=1)
        self._rows[changes, _SETTLED] = on_top[changes]

    def repeats(self) -> bool:
        """Return whether the messages read end within a repeat."""
        return bool(len(self._rows)) and not self._rows[-1, _SETTLED]

    def _placed(self, messages: MessageColumns) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return a row for each message, and which of them are new changes."""
        counts = (messages.kinds != MessageKind.PASSES) & (messages.before >= 0)
        before = np.where(counts, messages.before, -1)
        tops = np.maximum.accumulate(np.append(self.high.before, before))
        risen = np.cumsum(tops[1:] != tops[:-1])
        on_top = counts & (before == tops[1:])
        keys = risen * _ORDERS + np.where(on_top, messages.order, 0)
        highest = np.maximum.accumulate(np.append(self.high.order, keys))
        rows = np.zeros((len(keys), 8), np.int64)
        rows[:, _END], rows[:, _KIND], rows[:, _BEFORE] = messages.offsets + 1, messages.kinds, messages.before
        rows[:, _SNAPSHOT], rows[:, _SETTLED] = (
            messages.snapshot,
            on_top & (keys >= highest[:-1]) & (before >= self._doubt),
        )
        rows[:, _TOP_BEFORE], rows[:, _TOP_ORDER] = tops[1:], highest[1:] - risen * _ORDERS
        rows[:, _ORDER] = messages.order
        self.high = HighestPosition(int(rows[-1, _TOP_BEFORE]), int(rows[-1, _TOP_ORDER]))
        self._attach_passing(rows, messages.kinds == MessageKind.PASSES, counts)
        return rows, on_top & (keys > highest[:-1]) & (messages.kinds == MessageKind.CHANGE)

    def _attach_passing(self, rows: Ints, passes: npt.NDArray[np.bool_], counts: npt.NDArray[np.bool_]) -> None:
        """Attach messages that pass to the one before them; at the head, to the last run or to none."""
        numbers = np.arange(len(rows))
        ahead = self._rows[-1, _CARRIED] if len(self._rows) else _FREE
        follows = np.maximum.accumulate(np.where(passes, -1, numbers))
        rows[:, _CARRIED] = np.where((follows >= 0)[:, None], rows[follows][:, _CARRIED], ahead)
        positioned = np.maximum.accumulate(np.where(counts, numbers, -1))
        rows[:, _SETTLED] = np.where(positioned >= 0, rows[positioned, _SETTLED], ahead[3])
