"""Transactions in flight: ENDs of which events may be missing, and events of which the END may be missing.

An END is complete when as many different events of it were read as it says, in each of our topics. Transactions
complete in the order of their ENDs, which is that of their commits. What is complete is forgotten.

That an END rises above all before it tells it from a repeat. One that does not, but is later by the database's clock
than all that were ever read, was not among them: positions went back, as another server began to count anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DefiniteError
from penstock.sources.kafka.transactions.marks import Ends, Ints

__all__ = ["Flight", "Missing"]

_OFFSET, _WHICH, _POSITION, _TIME, _FIXED = range(5)
_WHICH_EVENT, _ORDER, _BEFORE = range(3)


class Missing(NamedTuple):
    """What is there of a transaction in one topic, and what its END says."""

    topic: str
    there: int
    said: int


class Flight:
    """ENDs in order, and the events that count for them."""

    def __init__(self, topics: Sequence[str], completed: int, highest: int, latest: int) -> None:
        self._topics = tuple(topics)
        self._rising = completed
        """What an END has to lie above, to be in flight."""
        self.highest = highest
        """The highest END that was ever read."""
        self.last = highest
        """The one that was read last."""
        self.latest = latest
        """The latest time of an END that was read."""
        self._ends = np.zeros((0, _FIXED + len(topics)), np.int64)
        self._events = [np.zeros((0, 3), np.int64) for _ in topics]

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """How many ENDs and events are held."""
        return len(self._ends) + sum(len(events) for events in self._events)

    def take_ends(self, topic: str, ends: Ends, wanted: Ints) -> None:
        """Add ENDs, with how many events each has in each topic; repeats are left out."""
        if not len(ends.offsets):
            return
        highest = np.maximum.accumulate(np.append(self.highest, ends.position))
        latest = np.maximum.accumulate(np.append(self.latest, ends.times))
        if np.any((ends.position <= highest[:-1]) & (ends.times > latest[:-1])):
            message = f"positions in the topic {topic} went back: the database behind it is another one now"
            raise DefiniteError(message, "Let Debezium write topics anew, drop the source and create it again.")
        fixed = [ends.offsets, ends.which, ends.position, ends.times]
        rows = np.concatenate([np.stack(fixed, axis=1), wanted], axis=1)
        rising = np.maximum.accumulate(np.append(self._rising, ends.position))
        self._ends = np.concatenate([self._ends, rows[ends.position > rising[:-1]]])
        self._rising, self.last = int(rising[-1]), int(ends.position[-1])
        self.highest, self.latest = int(highest[-1]), int(latest[-1])

    def take_events(self, topic: int, which: Ints, order: Ints, before: Ints) -> None:
        """Add changes in a topic that were not there before."""
        if len(which):
            self._events[topic] = np.concatenate([self._events[topic], np.stack([which, order, before], axis=1)])

    def complete(self) -> npt.NDArray[np.bool_]:
        """Say of each END whether all its events are there."""
        there = self._there(len(self._ends))
        more = there > self._ends[:, _FIXED:]
        if more.any():
            number, topic = np.argwhere(more)[0]
            message = (
                f"the topic {self._topics[topic]} has more events of transaction {self._ends[number, _WHICH]} "
                f"({there[number, topic]}) than its END says ({self._ends[number, _FIXED + topic]})"
            )
            raise DefiniteError(message, "Name the tables of topics that are not called <prefix>.<schema>.<table>.")
        complete: npt.NDArray[np.bool_] = np.all(there == self._ends[:, _FIXED:], axis=1)
        return complete

    def position(self, number: int) -> int:
        """Return the position of an END, by its number among those in flight."""
        return int(self._ends[number, _POSITION])

    def time(self, number: int) -> int:
        """Return when it committed, in milliseconds."""
        return int(self._ends[number, _TIME])

    def position_of(self, which: int) -> int | None:
        """Return the position of a transaction's END, if it is in flight."""
        found = self._ends[self._ends[:, _WHICH] == which, _POSITION]
        return int(found[0]) if len(found) else None

    def first_offset(self) -> int | None:
        """Return where the first END in flight stands in its topic."""
        return int(self._ends[0, _OFFSET]) if len(self._ends) else None

    def first_before(self, above: int = -1) -> int | None:
        """Return the first commit above a position that events in flight tell to be before them."""
        found = [events[events[:, _BEFORE] > above, _BEFORE] for events in self._events]
        return min((int(each.min()) for each in found if len(each)), default=None)

    def without_end(self, completed: int) -> int | None:
        """Return a transaction that lies before a position, and whose END is not among those up to it."""
        known = self._ends[self._ends[:, _POSITION] <= completed, _WHICH]
        for events in self._events:
            lost = events[events[:, _BEFORE] < completed, _WHICH_EVENT]
            lost = lost[~np.isin(lost, known)]
            if len(lost):
                return int(lost[0])
        return None

    def first_missing(self) -> tuple[int, list[Missing]] | None:
        """Return the first transaction whose END was read, and what is there of it where something is missing."""
        if not len(self._ends):
            return None
        there, said = self._there(1)[0], self._ends[0, _FIXED:]
        lacking = [Missing(self._topics[n], int(there[n]), int(said[n])) for n in np.flatnonzero(there != said)]
        return int(self._ends[0, _WHICH]), lacking

    def without_ends(self) -> int:
        """Return how many events wait for an END that was not read."""
        return sum(int(np.sum(events[:, _BEFORE] >= self.highest)) for events in self._events)

    def forget(self, completed: int) -> None:
        """Let go of transactions up to a position."""
        self._rising = max(self._rising, completed)
        self._ends = self._ends[self._ends[:, _POSITION] > completed]
        self._events = [events[events[:, _BEFORE] >= completed] for events in self._events]

    def _there(self, count: int) -> Ints:
        """Count the different events of the first ENDs, by topic."""
        there = np.zeros((count, len(self._topics)), np.int64)
        asked = self._ends[:count, _WHICH]
        for topic, events in enumerate(self._events):
            mine = events[np.isin(events[:, _WHICH_EVENT], asked)]
            if not len(mine):
                continue
            mine = mine[np.lexsort((mine[:, _ORDER], mine[:, _WHICH_EVENT]))]
            first = np.append(True, np.any(mine[1:, :_BEFORE] != mine[:-1, :_BEFORE], axis=1))
            found, counts = np.unique(mine[first, _WHICH_EVENT], return_counts=True)
            place = np.minimum(np.searchsorted(found, asked), len(found) - 1)
            there[:, topic] = np.where(found[place] == asked, counts[place], 0)
        return there
