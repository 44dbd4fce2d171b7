"""Cuts: for each partition, the offset up to which transactions are complete across all topics.

::

    take_changes ─▶ runs of the partition ──────── new ones ──▶ pending ◀── ENDs ── take_ends
                          │                                        │
                          └─── cut_point(completed, copied) ◀──────┴── complete, in order ── advance() ─▶ Cut

**Correctness.** Let `completed` be the END of the last transaction for which it and all transactions before it were
read completely. An event belongs to a later transaction if and only if its `before` is not below `completed`. Each
partition is cut before the first such event, so the cut contains nothing of a later transaction. A partition contains
the events of its transactions in order, so all counted events are before that point, and the cut contains them. The cut
is maximal: the next event in each partition belongs to an incomplete transaction or is part of a repeat. `completed`
never decreases, and neither does any cut.

**Snapshots.** Rows of an initial snapshot have no transaction and no count. They all become visible in one tick, when
the snapshot is over: its last row was read, or an event that happened after it. Rows for different partitions do not
arrive in the order in which they were written. So each partition must also have a later change, or must have been read
to its end after no snapshot row arrived for some seconds. There is no better proof for a partition without a later
change, because Debezium does not count snapshot rows. Transactions up to the snapshot then count as complete. A
snapshot that Debezium restarts after a crash is a new snapshot; rows of the first one become visible with it.

**Repeated snapshots.** Only the snapshot that Debezium takes when it creates its replication slot is consistent. If the
slot exists, Debezium reads one table after the other, without a common snapshot, and then all changes since before the
first: a row may already have changes of later transactions. Such a snapshot becomes visible with the first transaction
that committed after its last row was read: no row has changes of a later one. (The time of a commit is set before the
commit can be seen. Debezium's clock must not be behind the database's by more than Debezium needs to read a table.)
A snapshot counts as repeated if anything precedes it: rows of another, or a transaction.

**State.** A `CutState` is sufficient to resume: it is stored with each tick, and reading resumes at the cut, after
which all pending events are located. It has a few numbers per partition, independent of the number of messages read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.errors import DefiniteError
from penstock.fields import with_fields
from penstock.sources.kafka.transactions.message_columns import Ends, Ints, MessageColumns, MessageKind
from penstock.sources.kafka.transactions.metadata import Routes
from penstock.sources.kafka.transactions.partition_runs import NO_POSITION, CutPoint, HighestPosition, PartitionRuns
from penstock.sources.kafka.transactions.pending_transactions import (
    ConsistentStart,
    MissingEvents,
    PendingTransactions,
    UnpositionedChanges,
)

__all__ = ["QUIET_SECONDS", "Cut", "CutBlockers", "CutState", "Cutter"]

QUIET_SECONDS = 2.0
"""A snapshot counts as complete after no row of it has arrived for this long."""


class CutState(BaseModel):
    """The state at a cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    completed: int = 0
    """The END of the last complete transaction."""
    highest: int = 0
    """The highest END that was read; above `completed` if later transactions are pending."""
    latest: int = 0
    """The latest time of an END that was read, in milliseconds."""
    copied: int = -1
    """The last completed snapshot; -1: none."""
    server: str = ""
    """The server of these transactions, if known."""
    metadata: int
    """The offset of the metadata topic from which ENDs are still needed."""
    tops: dict[str, tuple[HighestPosition, ...]]
    """The highest position of each partition."""
    founded: bool
    """Whether the first position is known from which all transactions are complete."""
    valid_from: int | None = None
    """The END at that position; None if it is the beginning of the topics."""
    valid_from_ms: int | None = None
    """The commit time of that transaction; None if unknown."""
    first: tuple[int, int] | None = None
    """The last transaction without a preceding commit, and its END; see `UnpositionedChanges`."""
    doubt: int = -1
    """Below this position, events may repeat events from before the start; -1 if not. See `ConsistentStart`."""


@dataclass(frozen=True)
class Cut:
    """The offsets of the next tick, and the state to store with it."""

    upto: dict[str, tuple[int, ...]]
    state: CutState


@dataclass(frozen=True)
class CutBlockers:
    """The reasons why the cut cannot advance."""

    transaction: int | None
    """The first transaction whose END was read."""
    missing: tuple[MissingEvents, ...]
    without_end: int
    """The number of events whose END was not read."""
    copying: bool
    """Whether a snapshot is in progress."""
    settles_after: int | None
    """The time after which a transaction must commit for a repeated snapshot to become visible, in milliseconds."""
    repeating: tuple[tuple[str, int], ...]
    """Partitions within a repeat, by topic and number."""
    founded: bool


class Cutter:
    """Collects the messages read, and computes the offsets up to which transactions are complete."""

    def __init__(
        self,
        upto: Mapping[str, tuple[int, ...]],
        state: CutState,
        *,
        metadata: str,
        routes: Routes,
        consistent_start: ConsistentStart | None = None,
    ) -> None:
        """Resume from a cut; without `consistent_start`, all messages from the cut on exist."""
        self._state = state
        self._metadata_topic, self._routes = metadata, routes
        self._topics = {topic: number for number, topic in enumerate(upto)}
        self._runs = {
            topic: [
                PartitionRuns(*each, state.doubt)
                for each in zip(offsets, _tops(state, topic, len(offsets)), strict=True)
            ]
            for topic, offsets in upto.items()
        }
        self._unpositioned = {topic: [UnpositionedChanges() for _ in offsets] for topic, offsets in upto.items()}
        self._pending = PendingTransactions(tuple(upto), state.completed, state.highest, state.latest)
        self._consistent_start = None if state.founded else consistent_start
        self._metadata_read = state.metadata
        self._server = state.server
        self._first = state.first
        self._copying = self._over = self._closing = -1
        self._lowest = -1
        """The lowest position that was read; -1: none."""
        self._copied_at = -1
        """When the last snapshot row was read from the database, in milliseconds; -1: none."""
        self._settles_after: int | None = None
        """If a repeated snapshot is over: `_copied_at`."""
        self._copied_since = False
        """Whether snapshot rows arrived since the last poll."""
        self._quiet_since = 0.0
        """The time since which `_closing` is over and no row of it has arrived."""
        self._read_since: set[tuple[str, int]] = set()
        """Partitions that were read to the end of a poll after that, once the snapshot was quiet."""
        self._comparable = False
        self._rounds = 0
        self._ends_since = False
        """Whether ENDs were read since `doubt` was set."""

    @property
    def pending(self) -> int:
        """The number of pending ENDs, events and runs in memory."""
        runs = sum(len(each) for parts in self._runs.values() for each in parts)
        return self._pending.size + runs + self._buffered()

    @property
    def pending_ends(self) -> int:
        """The number of pending ENDs."""
        return len(self._pending)

    @property
    def state(self) -> CutState:
        """The state at the last cut."""
        return self._state

    def is_ahead(self, topic: str, partition: int, by: int) -> bool:
        """Return whether a partition is ahead of the ENDs by more than `by` messages."""
        runs = self._runs[topic][partition]
        return runs.read - runs.upto > by and runs.high.before >= self._pending.highest

    def add_partitions(self, topic: str, count: int) -> range:
        """Set the number of partitions of a topic; return the numbers of the new ones."""
        parts = self._runs[topic]
        added = range(len(parts), count)
        parts += [PartitionRuns(0, NO_POSITION) for _ in added]
        self._unpositioned[topic] += [UnpositionedChanges() for _ in added]
        return added

    def take_changes(self, topic: str, partition: int, messages: MessageColumns, read: int) -> None:
        """Add messages of a partition, which was read up to the offset `read`."""
        self._check_server(messages.server, topic)
        self._unpositioned[topic][partition].take(messages, read)
        self._place(topic, partition)

    def take_ends(self, ends: Ends, read: int) -> None:
        """Add messages of the metadata topic, which was read up to the offset `read`."""
        self._check_server(ends.server, self._metadata_topic)
        self._pending.take_ends(self._metadata_topic, ends, self._routes.wanted(ends))
        self._metadata_read = max(self._metadata_read, read)
        self._ends_since |= bool(len(ends.offsets))
        self._track_lowest(ends.position)
        self._track_stream(int(ends.position.max(initial=-1)) - 1)
        for topic, parts in self._unpositioned.items():
            for partition in (number for number, each in enumerate(parts) if len(each)):
                self._place(topic, partition)

    def record_poll(self, read: Collection[tuple[str, int]], now: float) -> None:
        """Record which partitions were read up to the end offsets of a poll; call it once per poll.

        `now` is the time of the poll, by the clock of `advance`.
        """
        self._close_finished_snapshot(set(read), now)
        places = {(topic, number) for topic, parts in self._runs.items() for number in range(len(parts))}
        if not {*places, (self._metadata_topic, 0)} <= set(read):
            return
        self._rounds += 1
        if self._state.doubt >= 0 and self._ends_since and self._pending.last >= self._pending.highest:
            for each in (each for parts in self._runs.values() for each in parts):
                each.trust()
            self._update(doubt=-1)

    def advance(self, now: float) -> Cut | None:
        """Return the furthest cut, or None if it did not advance. `now` is a monotonic clock, in seconds."""
        if self._is_copying or (self._consistent_start is not None and not self._found(self._consistent_start, now)):
            return None
        complete = self._pending.complete()
        count = len(complete) if complete.all() else int(np.argmin(complete))
        completed = self._pending.position(count - 1) if count else self._state.completed
        if self._consistent_start is not None and not count:
            return None
        if self._settles_after is not None and self._pending.latest_time(count) <= self._settles_after:
            return None
        places = {
            topic: [each.cut_point(completed, self._state.copied) for each in parts]
            for topic, parts in self._runs.items()
        }
        if not all(place.orderly for found in places.values() for place in found):
            return None
        self._reject_missing_end(completed)
        return self._cut(completed, self._pending.time(count - 1) if count else None, places)

    def blockers(self) -> CutBlockers:
        """Return why the cut cannot advance."""
        first = self._pending.first_missing()
        parts = [(topic, number, each) for topic, all_ in self._runs.items() for number, each in enumerate(all_)]
        return CutBlockers(
            transaction=None if first is None else first[0],
            missing=() if first is None else tuple(first[1]),
            without_end=self._pending.without_ends() + self._buffered(),
            copying=self._is_copying,
            settles_after=self._settles_after,
            repeating=tuple((topic, number) for topic, number, each in parts if each.repeats()),
            founded=self._consistent_start is None,
        )

    def _place(self, topic: str, partition: int) -> None:
        """Process the messages of a partition whose position is known."""
        runs = self._runs[topic][partition]
        unpositioned = self._unpositioned[topic][partition]
        messages, read = unpositioned.give(self._end_of, self._pending.highest, runs.high.before)
        earlier = messages.offsets < runs.read
        if earlier.any():
            if self._consistent_start is not None:
                self._consistent_start.add_earlier(messages.chosen(earlier))
            messages = messages.chosen(~earlier)
        new = runs.take(messages, read) & (messages.before >= self._state.completed)
        self._pending.take_events(self._topics[topic], messages.which[new], messages.order[new], messages.before[new])
        self._track_snapshot(messages)

    def _buffered(self) -> int:
        return sum(len(each) for parts in self._unpositioned.values() for each in parts)

    def _end_of(self, which: int) -> int | None:
        """Return the END of a transaction without a preceding commit, and store it: Debezium may repeat it."""
        end = self._pending.position_of(which)
        if end is not None:
            self._first = (which, end)
        return self._first[1] if self._first is not None and self._first[0] == which else None

    # -- transactions -----------------------------------------------------------------------------------------------

    def _cut(self, completed: int, time: int | None, places: Mapping[str, list[CutPoint]]) -> Cut | None:
        moved = any(
            place.offset != each.upto
            for topic, found in places.items()
            for place, each in zip(found, self._runs[topic], strict=True)
        )
        if completed == self._state.completed and not moved:
            return None
        for topic, found in places.items():
            for each, place in zip(self._runs[topic], found, strict=True):
                each.cut(place)
        self._pending.forget(completed)
        self._settles_after = None
        fields = {"completed": completed, **self._validity(completed, time)}
        self._update(**fields)
        return Cut({topic: tuple(each.upto for each in parts) for topic, parts in self._runs.items()}, self._state)

    def _validity(self, completed: int, time: int | None) -> dict[str, object]:
        if self._consistent_start is None:
            return {}
        self._consistent_start = None
        return {"founded": True, "valid_from": completed, "valid_from_ms": time}

    def _found(self, consistent_start: ConsistentStart, now: float) -> bool:
        """Find the position from which all transactions are complete; return whether it is known."""
        if not self._rounds:
            return False
        base = consistent_start.base(self._pending, now)
        if base is None:
            return False
        self._raise_completed(base)
        for each in (each for parts in self._runs.values() for each in parts):
            each.doubt(base)
        self._ends_since = False
        self._update(doubt=base)
        return True

    def _raise_completed(self, position: int) -> None:
        """Count transactions up to a position as complete."""
        if position > self._state.completed:
            self._pending.forget(position)
            self._update(completed=position)

    def _reject_missing_end(self, completed: int) -> None:
        """Raise `DefiniteError` for a transaction without an END before the cut: its event count is unknown."""
        lost = self._pending.without_end(completed)
        if lost is not None and self._consistent_start is None:
            message = f"topic {self._metadata_topic} has no END of transaction {lost}, but ENDs of later transactions"
            hint = (
                "Messages were removed from the topic, or Debezium ran without provide.transaction.metadata. "
                "Drop the source and create it again."
            )
            raise DefiniteError(message, hint)

    def _update(self, **fields: object) -> None:
        ahead = self._pending.first_offset()
        self._state = with_fields(
            self._state,
            highest=self._pending.highest,
            latest=self._pending.latest,
            server=self._server,
            first=self._first,
            metadata=self._metadata_read if ahead is None else ahead,
            tops={topic: tuple(each.top for each in parts) for topic, parts in self._runs.items()},
            **fields,
        )

    def _check_server(self, server: str, topic: str) -> None:
        if server and self._server and server != self._server:
            message = (
                f"topic {topic} has transactions of another MySQL server: GTIDs of several servers have no common order"
            )
            raise DefiniteError(message, "Have Debezium write new topics, then drop the source and create it again.")
        self._server = self._server or server

    # -- snapshots --------------------------------------------------------------------------------------------------

    @property
    def _is_copying(self) -> bool:
        """Whether a snapshot is in progress. It may have rows for any partition, so nothing is cut until it ends."""
        return self._copying > self._state.copied

    def _track_snapshot(self, messages: MessageColumns) -> None:
        copied = messages.kinds == MessageKind.COPIED
        if copied.any():
            self._copied_since = True
            self._copying = max(self._copying, int(messages.snapshot.max()))
            self._comparable = bool(np.all(messages.before[copied] >= 0))
            self._copied_at = max(self._copied_at, int(messages.times.max()))
        self._track_lowest(messages.before[messages.kinds != MessageKind.PASSES])
        if messages.last.any():
            self._over = max(self._over, int(messages.snapshot[messages.last].max()))
        changed = int(messages.before[messages.kinds == MessageKind.CHANGE].max(initial=-1))
        self._track_stream(max(changed, self._pending.highest - 1))

    def _track_lowest(self, positions: Ints) -> None:
        known = positions[positions >= 0]
        if len(known):
            lowest = int(known.min())
            self._lowest = lowest if self._lowest < 0 else min(self._lowest, lowest)

    def _track_stream(self, before: int) -> None:
        """Record that a transaction after a position was read: a snapshot at or before it is over."""
        if self._comparable and before >= self._copying:
            self._over = max(self._over, self._copying)

    def _close_finished_snapshot(self, read: set[tuple[str, int]], now: float) -> None:
        """Close a snapshot that is over when no partition can receive more rows of it."""
        if self._over != self._closing or self._copied_since:
            self._closing, self._quiet_since, self._copied_since = self._over, now, False
            self._read_since = set()
        if now >= self._quiet_since + QUIET_SECONDS:
            self._read_since |= read
        passed = (
            (topic, number) in self._read_since or (self._comparable and each.changed >= self._over)
            for topic, parts in self._runs.items()
            for number, each in enumerate(parts)
        )
        if self._over > self._state.copied and all(passed):
            self._close(self._over)

    def _close(self, snapshot: int) -> None:
        if self._comparable:
            if self._is_repeated(snapshot):
                self._settles_after = self._copied_at
            self._raise_completed(snapshot)
        self._update(copied=snapshot)
        if self._consistent_start is not None:
            self._consistent_start = None
            self._update(founded=True, valid_from=snapshot if self._comparable else None)

    def _is_repeated(self, snapshot: int) -> bool:
        """Return whether anything precedes a snapshot, or may do so: the source began within the topics."""
        began_later = self._consistent_start is not None or self._state.valid_from is not None
        return began_later or self._state.copied >= 0 or self._state.completed > 0 or 0 <= self._lowest < snapshot


def _tops(state: CutState, topic: str, count: int) -> tuple[HighestPosition, ...]:
    tops = state.tops.get(topic, ())
    return (*tops, *[NO_POSITION] * (count - len(tops)))
