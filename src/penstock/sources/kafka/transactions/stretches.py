"""Messages of a partition that no tick has taken yet, as stretches: neighbours of one transaction, as one row.

::

    offsets   10 11 12 13 14 15 16 17 18 19 20 21 22            a a  b b b  c  | killed |  b b b  c  d d
    stretches └─ a ─┘└── b ──┘ c  └── b ──┘ c └─ d               settled ────────▶  repeats ▶  settled ─▶
                                                                                        (c is at its top again)

A cut lies behind a stretch. Up to it, all that the partition has of transactions up to a certain one must be there, and
nothing of later ones. Where Debezium repeats itself, older events come once more: whoever takes the last one of a key
for its value would go back in time in the midst of them. So a cut also has to be **settled**: the event before it is
the highest that was there up to it. A repeat is settled when it has come to where the partition was before.

What goes on between stretches needs the highest position so far and nothing else, so that is all there is to note.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.sources.kafka.transactions.marks import Ints, MarkKind, Marks

__all__ = ["NOWHERE", "Place", "Stretches", "Top"]

_END, _KIND, _BEFORE, _SNAPSHOT, _SETTLED, _TOP_BEFORE, _TOP_ORDER, _ORDER = range(8)
_ALIKE = [_KIND, _BEFORE, _SNAPSHOT, _SETTLED]
"""What neighbours have in common to be one stretch."""
_CARRIED = [*_ALIKE, _ORDER]
_FREE = np.array([MarkKind.PASSES, -1, -1, True, 0], np.int64)
"""What messages have that pass, with none before them."""
_ORDERS = 1 << 40
"""More than a transaction has events."""


class Top(NamedTuple):
    """The highest position of a partition's events: the commit before their transaction, and the place in it."""

    before: int
    order: int


NOWHERE = Top(-1, 0)
"""Before the first event."""


class Place(NamedTuple):
    """Where a partition can be cut."""

    stretches: int
    offset: int
    top: Top
    orderly: bool
    """Whether all that the completed transactions have in the partition lies before it, so far as it was read."""


class Stretches:
    """What is there of a partition behind the last cut."""

    def __init__(self, upto: int, top: Top, doubt: int = -1) -> None:
        self.upto = upto
        """The last cut."""
        self.read = upto
        """How far it was read."""
        self.top = top
        """The highest position at the last cut."""
        self.changed = -1
        """The highest commit that a change was read to come after."""
        self._rows = np.zeros((0, 8), np.int64)
        self._doubt = doubt
        self.high = top
        """The highest position of what was read."""

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, marks: Marks, read: int) -> npt.NDArray[np.bool_]:
        """Add the messages that follow, up to the offset `read`; say which are changes that were not there before."""
        self.read = max(self.read, read)
        if not len(marks.offsets):
            return np.zeros(0, np.bool_)
        self.changed = max(self.changed, int(marks.before[marks.kinds == MarkKind.CHANGE].max(initial=-1)))
        rows, new = self._placed(marks)
        held = self._rows[-1:]
        known = np.concatenate([held, rows])
        alike = np.all(known[1:, _ALIKE] == known[:-1, _ALIKE], axis=1)
        kept = known[np.append(~alike, True)]
        self._rows = np.concatenate([self._rows[: len(self._rows) - len(held)], kept])
        return new

    def place(self, completed: int, copied: int) -> Place:
        """Return the furthest cut, where transactions up to a position are complete, and snapshots up to one."""
        rows = self._rows
        kind, before = rows[:, _KIND], rows[:, _BEFORE]
        blocked = (kind == MarkKind.CHANGE) & (before >= completed)
        blocked |= (kind == MarkKind.COPIED) & (rows[:, _SNAPSHOT] > copied)
        free = int(np.argmax(blocked)) if blocked.any() else len(rows)
        settled = np.flatnonzero(rows[:free, _SETTLED])
        passed = int(settled[-1]) + 1 if len(settled) else 0
        top = Top(*map(int, rows[passed - 1, [_TOP_BEFORE, _TOP_ORDER]])) if passed else self.top
        offset = self.read if passed == len(rows) else int(rows[passed - 1, _END]) if passed else self.upto
        late = (kind[passed:] == MarkKind.CHANGE) & (before[passed:] < completed) & (before[passed:] > top.before)
        late &= before[passed:] >= self._doubt
        return Place(passed, offset, top, orderly=not late.any())

    def cut(self, place: Place) -> None:
        """Let go of what a tick takes."""
        self._rows = self._rows[place.stretches :].copy()
        self.upto, self.top = place.offset, place.top

    def doubt(self, below: int) -> None:
        """Hold events below a position for repeats of some that came before the beginning, until `trust`."""
        self._doubt = below
        changes = self._rows[:, _KIND] == MarkKind.CHANGE
        self._rows[changes & (self._rows[:, _BEFORE] < below), _SETTLED] = False

    def trust(self) -> None:
        """Know that no such repeat has more to come."""
        self._doubt = -1
        changes = self._rows[:, _KIND] == MarkKind.CHANGE
        on_top = np.all(self._rows[:, [_BEFORE, _ORDER]] == self._rows[:, [_TOP_BEFORE, _TOP_ORDER]], axis=1)
        self._rows[changes, _SETTLED] = on_top[changes]

    def repeats(self) -> bool:
        """Whether it was left, at the end of what was read, in the midst of a repeat."""
        return bool(len(self._rows)) and not self._rows[-1, _SETTLED]

    def _placed(self, marks: Marks) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return a row for each message, and which ones are new changes."""
        counts = (marks.kinds != MarkKind.PASSES) & (marks.before >= 0)
        before = np.where(counts, marks.before, -1)
        tops = np.maximum.accumulate(np.append(self.high.before, before))
        risen = np.cumsum(tops[1:] != tops[:-1])
        on_top = counts & (before == tops[1:])
        keys = risen * _ORDERS + np.where(on_top, marks.order, 0)
        highest = np.maximum.accumulate(np.append(self.high.order, keys))
        rows = np.zeros((len(keys), 8), np.int64)
        rows[:, _END], rows[:, _KIND], rows[:, _BEFORE] = marks.offsets + 1, marks.kinds, marks.before
        rows[:, _SNAPSHOT], rows[:, _SETTLED] = (
            marks.snapshot,
            on_top & (keys >= highest[:-1]) & (before >= self._doubt),
        )
        rows[:, _TOP_BEFORE], rows[:, _TOP_ORDER] = tops[1:], highest[1:] - risen * _ORDERS
        rows[:, _ORDER] = marks.order
        self.high = Top(int(rows[-1, _TOP_BEFORE]), int(rows[-1, _TOP_ORDER]))
        self._let_pass(rows, marks.kinds == MarkKind.PASSES, counts)
        return rows, on_top & (keys > highest[:-1]) & (marks.kinds == MarkKind.CHANGE)

    def _let_pass(self, rows: Ints, passes: npt.NDArray[np.bool_], counts: npt.NDArray[np.bool_]) -> None:
        """Let messages that pass go with the one before them; those at the head with what is there, or freely."""
        numbers = np.arange(len(rows))
        ahead = self._rows[-1, _CARRIED] if len(self._rows) else _FREE
        follows = np.maximum.accumulate(np.where(passes, -1, numbers))
        rows[:, _CARRIED] = np.where((follows >= 0)[:, None], rows[follows][:, _CARRIED], ahead)
        told = np.maximum.accumulate(np.where(counts, numbers, -1))
        rows[:, _SETTLED] = np.where(told >= 0, rows[told, _SETTLED], ahead[3])
