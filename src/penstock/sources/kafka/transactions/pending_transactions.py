"""Pending transactions: incomplete ones, the start within a history, and changes without a position.

**Pending transactions** (`PendingTransactions`). An END is complete when all events that it counts were read, in each
topic of the source. Transactions complete in the order of their ENDs, which is commit order. Complete transactions are
removed. An END is new if it is above all ENDs before it; otherwise it is a repeat. An END that is not above them, but
later by the clock of the database than all ENDs read so far, cannot be a repeat: positions went back, because another
server started.

**Consistent start** (`ConsistentStart`): the first position from which every transaction is complete::

    partition 0  … a a b │ b c e …        │ start offset of each partition
    partition 1  … b d   │ d e …          b and d have events on both sides of it: they cannot be counted.
    metadata     … B C   │ D E …          All after d, the later of the two, is complete: valid from e on.

The last events before the start show which transaction may be cut by it, in each partition. All transactions after the
latest of these are complete. If these events were removed from Kafka, it is unknown which transactions lost events.
Then an END that stays incomplete for a while, although later ones are complete, counts as one that began before the
start. This happens only before the first tick: until then no data is visible.

Debezium may repeat messages at just that moment. A partition may then receive events of transactions before the start
that are older than its earlier events. These events are *in doubt*: no cut lies among them until a later event of their
partition was read, or until ENDs show that Debezium has repeated everything it had written. (Events that are lost in a
crash of Debezium while the source is being created, in some partitions and not in others, cannot be detected.)

**Unpositioned changes** (`UnpositionedChanges`): the first transaction after a snapshot lacks the commit before it
(``"sequence":"[null,…]"``). Its END has the position. So messages of a partition are buffered, from such a change on,
until the END was read, which takes a moment. If Debezium was killed within that transaction, there is no END, and the
next run starts with a snapshot. This is detected by a snapshot row that follows in the partition, or by an END after
the transaction. The transaction then gets the position that the partition had before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DefiniteError
from penstock.sources.kafka.transactions.message_columns import UNKNOWN, Ends, Ints, MessageColumns, MessageKind, joined

__all__ = ["LOOK_BACK", "ConsistentStart", "MissingEvents", "PendingTransactions", "UnpositionedChanges"]

_OFFSET, _WHICH, _POSITION, _TIME, _FIXED = range(5)
_WHICH_EVENT, _ORDER, _BEFORE = range(3)


class MissingEvents(NamedTuple):
    """The number of events of a transaction read from one topic, and the number in its END."""

    topic: str
    read: int
    expected: int


class PendingTransactions:
    """ENDs in order, and the events that they count."""

    def __init__(self, topics: Sequence[str], completed: int, highest: int, latest: int) -> None:
        self._topics = tuple(topics)
        self._rising = completed
        """A new END is pending only if it is above this position."""
        self.highest = highest
        """The highest END ever read."""
        self.last = highest
        """The END that was read last."""
        self.latest = latest
        """The latest time of an END that was read."""
        self._ends = np.zeros((0, _FIXED + len(topics)), np.int64)
        self._events = [np.zeros((0, 3), np.int64) for _ in topics]

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """The number of ENDs and events in memory."""
        return len(self._ends) + sum(len(events) for events in self._events)

    def take_ends(self, topic: str, ends: Ends, wanted: Ints) -> None:
        """Add ENDs, with the number of events of each in each topic; skip repeats."""
        if not len(ends.offsets):
            return
        highest = np.maximum.accumulate(np.append(self.highest, ends.position))
        latest = np.maximum.accumulate(np.append(self.latest, ends.times))
        if np.any((ends.position <= highest[:-1]) & (ends.times > latest[:-1])):
            message = f"positions in topic {topic} went back: the upstream database was replaced"
            raise DefiniteError(message, "Have Debezium write new topics, then drop the source and create it again.")
        fixed = [ends.offsets, ends.which, ends.position, ends.times]
        rows = np.concatenate([np.stack(fixed, axis=1), wanted], axis=1)
        rising = np.maximum.accumulate(np.append(self._rising, ends.position))
        self._ends = np.concatenate([self._ends, rows[ends.position > rising[:-1]]])
        self._rising, self.last = int(rising[-1]), int(ends.position[-1])
        self.highest, self.latest = int(highest[-1]), int(latest[-1])

    def take_events(self, topic: int, which: Ints, order: Ints, before: Ints) -> None:
        """Add new changes of a topic."""
        if len(which):
            self._events[topic] = np.concatenate([self._events[topic], np.stack([which, order, before], axis=1)])

    def complete(self) -> npt.NDArray[np.bool_]:
        """Return for each END whether all its events were read."""
        there = self._read_counts(len(self._ends))
        more = there > self._ends[:, _FIXED:]
        if more.any():
            number, topic = np.argwhere(more)[0]
            message = (
                f"topic {self._topics[topic]} has more events of transaction {self._ends[number, _WHICH]} "
                f"({there[number, topic]}) than its END counts ({self._ends[number, _FIXED + topic]})"
            )
            raise DefiniteError(
                message,
                "Topics must be named <prefix>.<schema>.<table>. Rename the topic, or remove TRANSACTION METADATA.",
            )
        complete: npt.NDArray[np.bool_] = np.all(there == self._ends[:, _FIXED:], axis=1)
        return complete

    def position(self, number: int) -> int:
        """Return the position of a pending END, by its index."""
        return int(self._ends[number, _POSITION])

    def time(self, number: int) -> int:
        """Return the commit time of a pending END, in milliseconds."""
        return int(self._ends[number, _TIME])

    def latest_time(self, count: int) -> int:
        """Return the latest commit time of the first `count` pending ENDs, in milliseconds; -1 without any."""
        return int(self._ends[:count, _TIME].max(initial=-1))

    def position_of(self, which: int) -> int | None:
        """Return the position of a transaction's END, or None if it is not pending."""
        found = self._ends[self._ends[:, _WHICH] == which, _POSITION]
        return int(found[0]) if len(found) else None

    def first_offset(self) -> int | None:
        """Return the offset of the first pending END in the metadata topic."""
        return int(self._ends[0, _OFFSET]) if len(self._ends) else None

    def first_before(self, above: int = -1) -> int | None:
        """Return the lowest preceding commit of pending events that is above a position."""
        found = [events[events[:, _BEFORE] > above, _BEFORE] for events in self._events]
        return min((int(each.min()) for each in found if len(each)), default=None)

    def without_end(self, completed: int) -> int | None:
        """Return a transaction before a position whose END is not among those up to it."""
        known = self._ends[self._ends[:, _POSITION] <= completed, _WHICH]
        for events in self._events:
            lost = events[events[:, _BEFORE] < completed, _WHICH_EVENT]
            lost = lost[~np.isin(lost, known)]
            if len(lost):
                return int(lost[0])
        return None

    def first_missing(self) -> tuple[int, list[MissingEvents]] | None:
        """Return the first transaction whose END was read, and the topics in which its events are incomplete."""
        if not len(self._ends):
            return None
        read, expected = self._read_counts(1)[0], self._ends[0, _FIXED:]
        lacking = [
            MissingEvents(self._topics[n], int(read[n]), int(expected[n])) for n in np.flatnonzero(read != expected)
        ]
        return int(self._ends[0, _WHICH]), lacking

    def without_ends(self) -> int:
        """Return the number of events whose END was not read."""
        return sum(int(np.sum(events[:, _BEFORE] >= self.highest)) for events in self._events)

    def forget(self, completed: int) -> None:
        """Remove transactions up to a position."""
        self._rising = max(self._rising, completed)
        self._ends = self._ends[self._ends[:, _POSITION] > completed]
        self._events = [events[events[:, _BEFORE] >= completed] for events in self._events]

    def _read_counts(self, count: int) -> Ints:
        """Count the distinct events of the first ENDs, by topic."""
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


LOOK_BACK = 16
"""The number of messages read before the start of a partition: the last ones may be tombstones."""
_PATIENCE_SECONDS = 10.0


class ConsistentStart:
    """Finds the position up to which transactions may be incomplete and are skipped."""

    def __init__(self, patience: float = _PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._last: tuple[int, int] | None = None
        self._base: int | None = None
        self._stuck: tuple[int, float] | None = None

    def add_earlier(self, earlier: MessageColumns) -> None:
        """Add messages of a partition from before its start."""
        changes = np.flatnonzero(earlier.kinds == MessageKind.CHANGE)
        if len(changes):
            found = (int(earlier.before[changes[-1]]), int(earlier.which[changes[-1]]))
            self._last = max(found, self._last or found)

    def base(self, flight: PendingTransactions, now: float) -> int | None:
        """Return the position, once all existing messages were read; None if it is not known."""
        if self._base is None:
            self._base = self._after_last(flight)
        elif (passed_by := self._passed_by(flight, now)) is not None:
            self._base = passed_by
        return self._base

    def _after_last(self, flight: PendingTransactions) -> int | None:
        """Return the END of the last transaction that may be cut: from the metadata, or from later events."""
        if self._last is None:
            return 0
        before, which = self._last
        found = flight.position_of(which)
        return flight.first_before(before) if found is None else found

    def _passed_by(self, flight: PendingTransactions, now: float) -> int | None:
        """Return the END before the first complete one, if earlier ones made no progress for long enough."""
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


class UnpositionedChanges:
    """The buffered messages of one partition."""

    def __init__(self) -> None:
        self._held: MessageColumns | None = None
        self._read = 0

    def __len__(self) -> int:
        return 0 if self._held is None else len(self._held.offsets)

    def take(self, messages: MessageColumns, read: int) -> None:
        """Add the next messages; the partition was read up to the offset `read`."""
        self._held = messages if self._held is None else joined(self._held, messages)
        self._read = max(self._read, read)

    def give(self, end_of: Callable[[int], int | None], highest: int, floor: int) -> tuple[MessageColumns, int]:
        """Return the messages whose position is known, and the offset up to which they cover the partition.

        `end_of` returns the END of a transaction if it is known; `highest` is the highest END that was read; `floor` is
        the position of the partition before these messages.
        """
        assert self._held is not None
        messages = self._placed(self._held, end_of, highest, floor)
        unknown = messages.before == UNKNOWN
        count = int(np.argmax(unknown)) if unknown.any() else len(unknown)
        numbers = np.arange(len(unknown))
        self._held = messages.chosen(numbers >= count) if count < len(unknown) else None
        read = self._read if self._held is None else int(self._held.offsets[0])
        return messages.chosen(numbers < count), read

    def _placed(
        self, messages: MessageColumns, end_of: Callable[[int], int | None], highest: int, floor: int
    ) -> MessageColumns:
        before: Ints = messages.before.copy()
        for which in np.unique(messages.which[before == UNKNOWN]):
            mine = (before == UNKNOWN) & (messages.which == which)
            end = end_of(int(which))
            if end is not None:
                before[mine] = end - 1
            elif _has_no_end(messages, int(np.flatnonzero(mine)[-1]), highest):
                before[mine] = max(floor, 0, int(before[: np.argmax(mine)].max(initial=0)))
        return replace(messages, before=before)


def _has_no_end(messages: MessageColumns, number: int, highest: int) -> bool:
    """Return whether the messages after a change show that the END of its transaction was never written."""
    kinds, before = messages.kinds[number + 1 :], messages.before[number + 1 :]
    later = (kinds == MessageKind.CHANGE) & (before >= 0) & (before <= highest)
    return bool(np.any(kinds == MessageKind.COPIED) or np.any(later))
