"""What a tick may take: for each partition, the offset up to which whole transactions go, over all topics together.

::

    take_changes ─▶ stretches of the partition ──── new ones ──▶ flight ◀─── ENDs ── take_ends
                          │                                        │
                          └────── place(completed, copied) ◀───────┴── complete, in order ── advance() ─▶ Cut

**Why it is right.** Let `completed` be the END of the last transaction of which, and of all before it, every event was
read. An event is of a later transaction if and only if its `before` is not below `completed`. Each partition is cut
before the first such event, so nothing of a later one is in the cut; it has the events of a transaction in order, so
all that was counted lies before that, and is in it. It is as far as can be: the next event in each partition is of a
transaction that is not complete, or in the midst of a repeat. `completed` only rises, and so does every cut.

**Snapshots.** Rows of a first copy have no transaction and no count. They are taken at once, when the copy is over: its
last row was read, or something that happened after it; and, because rows for different partitions do not arrive in the
order in which they were written, when each partition has a later change, or was read to its end after no row of the
copy had come for some seconds. A partition without a later change has no better proof: Debezium does not count copied
rows. Then transactions up to the copy count as complete. A copy that Debezium began anew after a crash is another copy;
what is there of the first goes with it.

**State.** A `CutState` is all there is to go on from: it is noted with each tick, and reading begins again at the cut,
where everything lies that is in flight. It has a few numbers for each partition, whatever was read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict

from penstock.errors import DefiniteError
from penstock.fields import with_fields
from penstock.sources.kafka.transactions.in_flight import Flight, Founding, Missing, Unplaced
from penstock.sources.kafka.transactions.marks import Ends, MarkKind, Marks
from penstock.sources.kafka.transactions.routes import Routes
from penstock.sources.kafka.transactions.stretches import NOWHERE, Place, Stretches, Top

__all__ = ["QUIET_SECONDS", "Cut", "CutState", "Cutting", "Held"]

QUIET_SECONDS = 2.0
"""No row of a copy has come for so long, when it is taken for whole."""


class CutState(BaseModel):
    """What is known at a cut."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    completed: int = 0
    """The END of the last complete transaction."""
    highest: int = 0
    """The highest END that was read; above `completed` where later ones are in flight."""
    latest: int = 0
    """The latest time of an END that was read, in milliseconds."""
    copied: int = -1
    """The last snapshot that is over; -1: none."""
    server: str = ""
    """Whose transactions these are, where that is told."""
    metadata: int
    """The offset of the metadata topic from which on ENDs are needed."""
    tops: dict[str, tuple[Top, ...]]
    """The highest position of each partition."""
    founded: bool
    """Whether it is known from where on all is whole."""
    valid_from: int | None = None
    """The END from which on it is; None where it is from the beginning of the topics."""
    valid_from_ms: int | None = None
    """When that transaction committed; None where that is not known."""
    first: tuple[int, int] | None = None
    """The last transaction that did not tell what committed before it, and its END; see `unplaced`."""
    doubt: int = -1
    """Below it, repeats may be of what came before the beginning; -1 where that is over. See `founding`."""


@dataclass(frozen=True)
class Cut:
    """What the next tick takes, and what to note with it."""

    upto: dict[str, tuple[int, ...]]
    state: CutState


@dataclass(frozen=True)
class Held:
    """Why there is no further cut."""

    transaction: int | None
    """The first one of which the END was read."""
    missing: tuple[Missing, ...]
    without_end: int
    """How many events wait for their END."""
    copying: bool
    """Whether a snapshot is not over."""
    repeating: tuple[tuple[str, int], ...]
    """Partitions in the midst of a repeat, by topic and number."""
    founded: bool


class Cutting:
    """Takes what was read, and says what can be cut off as a whole."""

    def __init__(
        self,
        upto: Mapping[str, tuple[int, ...]],
        state: CutState,
        *,
        metadata: str,
        routes: Routes,
        founding: Founding | None = None,
    ) -> None:
        """Go on from a cut; without `founding` everything from the cut on is there."""
        self._state = state
        self._metadata_topic, self._routes = metadata, routes
        self._topics = {topic: number for number, topic in enumerate(upto)}
        self._stretches = {
            topic: [
                Stretches(*each, state.doubt) for each in zip(offsets, _tops(state, topic, len(offsets)), strict=True)
            ]
            for topic, offsets in upto.items()
        }
        self._unplaced = {topic: [Unplaced() for _ in offsets] for topic, offsets in upto.items()}
        self._flight = Flight(tuple(upto), state.completed, state.highest, state.latest)
        self._founding = None if state.founded else founding
        self._metadata_read = state.metadata
        self._server = state.server
        self._first = state.first
        self._copying = self._over = self._closing = -1
        self._copied_since = False
        """Whether rows of a copy came since the last look."""
        self._quiet_since = 0.0
        """Since when `_closing` is known to be over, and no row of it has come."""
        self._read_since: set[tuple[str, int]] = set()
        """Partitions that were read up to where they ended at a look after that, and after it was quiet."""
        self._comparable = False
        self._rounds = 0
        self._ends_since = False
        """Whether ENDs were read since there is a doubt."""

    @property
    def in_flight(self) -> int:
        """How much is held: ENDs, events and stretches."""
        stretches = sum(len(each) for parts in self._stretches.values() for each in parts)
        return self._flight.size + stretches + self._held_back()

    @property
    def ends_in_flight(self) -> int:
        """How many ENDs are held."""
        return len(self._flight)

    @property
    def state(self) -> CutState:
        """What is known at the last cut."""
        return self._state

    def is_ahead(self, topic: str, partition: int, by: int) -> bool:
        """Say whether a partition is ahead of the ENDs, by so many messages."""
        stretches = self._stretches[topic][partition]
        return stretches.read - stretches.upto > by and stretches.high.before >= self._flight.highest

    def add_partitions(self, topic: str, count: int) -> range:
        """Let a topic have so many; return the numbers of those that are new."""
        parts = self._stretches[topic]
        added = range(len(parts), count)
        parts += [Stretches(0, NOWHERE) for _ in added]
        self._unplaced[topic] += [Unplaced() for _ in added]
        return added

    def take_changes(self, topic: str, partition: int, marks: Marks, read: int) -> None:
        """Take messages of a partition, which was read up to the offset `read`."""
        self._hold_to(marks.server, topic)
        self._unplaced[topic][partition].take(marks, read)
        self._place(topic, partition)

    def take_ends(self, ends: Ends, read: int) -> None:
        """Take messages of the metadata topic, which was read up to the offset `read`."""
        self._hold_to(ends.server, self._metadata_topic)
        self._flight.take_ends(self._metadata_topic, ends, self._routes.wanted(ends))
        self._metadata_read = max(self._metadata_read, read)
        self._ends_since |= bool(len(ends.offsets))
        self._follow_stream(int(ends.position.max(initial=-1)) - 1)
        for topic, parts in self._unplaced.items():
            for partition in (number for number, each in enumerate(parts) if len(each)):
                self._place(topic, partition)

    def looked(self, read: Collection[tuple[str, int]], now: float) -> None:
        """Know which partitions were read up to where they ended at a look; call it once for each look.

        `now` is when that was, by the clock of `advance`.
        """
        self._follow_closing(set(read), now)
        places = {(topic, number) for topic, parts in self._stretches.items() for number in range(len(parts))}
        if not {*places, (self._metadata_topic, 0)} <= set(read):
            return
        self._rounds += 1
        if self._state.doubt >= 0 and self._ends_since and self._flight.last >= self._flight.highest:
            for each in (each for parts in self._stretches.values() for each in parts):
                each.trust()
            self._update(doubt=-1)

    def advance(self, now: float) -> Cut | None:
        """Return the furthest cut; None where it is the last one. `now` is any clock that rises, in seconds."""
        if self._is_copying or (self._founding is not None and not self._found(self._founding, now)):
            return None
        complete = self._flight.complete()
        count = len(complete) if complete.all() else int(np.argmin(complete))
        completed = self._flight.position(count - 1) if count else self._state.completed
        if self._founding is not None and not count:
            return None
        places = {
            topic: [each.place(completed, self._state.copied) for each in parts]
            for topic, parts in self._stretches.items()
        }
        if not all(place.orderly for found in places.values() for place in found):
            return None
        self._refuse_lost(completed)
        return self._cut(completed, self._flight.time(count - 1) if count else None, places)

    def held(self) -> Held:
        """Say why there is no further cut."""
        first = self._flight.first_missing()
        parts = [(topic, number, each) for topic, all_ in self._stretches.items() for number, each in enumerate(all_)]
        return Held(
            transaction=None if first is None else first[0],
            missing=() if first is None else tuple(first[1]),
            without_end=self._flight.without_ends() + self._held_back(),
            copying=self._is_copying,
            repeating=tuple((topic, number) for topic, number, each in parts if each.repeats()),
            founded=self._founding is None,
        )

    def _place(self, topic: str, partition: int) -> None:
        """Take what is known of a partition to stand somewhere."""
        stretches = self._stretches[topic][partition]
        unplaced = self._unplaced[topic][partition]
        marks, read = unplaced.give(self._end_of, self._flight.highest, stretches.high.before)
        earlier = marks.offsets < stretches.read
        if earlier.any():
            if self._founding is not None:
                self._founding.saw(marks.chosen(earlier))
            marks = marks.chosen(~earlier)
        new = stretches.take(marks, read) & (marks.before >= self._state.completed)
        self._flight.take_events(self._topics[topic], marks.which[new], marks.order[new], marks.before[new])
        self._follow_copy(marks)

    def _held_back(self) -> int:
        return sum(len(each) for parts in self._unplaced.values() for each in parts)

    def _end_of(self, which: int) -> int | None:
        """Return the END of a transaction that does not tell its place, and remember it: it may be repeated."""
        end = self._flight.position_of(which)
        if end is not None:
            self._first = (which, end)
        return self._first[1] if self._first is not None and self._first[0] == which else None

    # -- transactions -----------------------------------------------------------------------------------------------

    def _cut(self, completed: int, time: int | None, places: Mapping[str, list[Place]]) -> Cut | None:
        moved = any(
            place.offset != each.upto
            for topic, found in places.items()
            for place, each in zip(found, self._stretches[topic], strict=True)
        )
        if completed == self._state.completed and not moved:
            return None
        for topic, found in places.items():
            for each, place in zip(self._stretches[topic], found, strict=True):
                each.cut(place)
        self._flight.forget(completed)
        told = {"completed": completed, **self._validity(completed, time)}
        self._update(**told)
        return Cut({topic: tuple(each.upto for each in parts) for topic, parts in self._stretches.items()}, self._state)

    def _validity(self, completed: int, time: int | None) -> dict[str, object]:
        if self._founding is None:
            return {}
        self._founding = None
        return {"founded": True, "valid_from": completed, "valid_from_ms": time}

    def _found(self, founding: Founding, now: float) -> bool:
        """Find from where on all is whole; say whether that is known."""
        if not self._rounds:
            return False
        base = founding.base(self._flight, now)
        if base is None:
            return False
        self._raise_completed(base)
        for each in (each for parts in self._stretches.values() for each in parts):
            each.doubt(base)
        self._ends_since = False
        self._update(doubt=base)
        return True

    def _raise_completed(self, position: int) -> None:
        """Count transactions up to a position as complete."""
        if position > self._state.completed:
            self._flight.forget(position)
            self._update(completed=position)

    def _refuse_lost(self, completed: int) -> None:
        """Refuse to pass a transaction of which nobody said how many events it has."""
        lost = self._flight.without_end(completed)
        if lost is not None and self._founding is None:
            message = f"the topic {self._metadata_topic} has no END of transaction {lost}, but some of later ones"
            hint = (
                "Messages were removed from it, or Debezium ran for a time without provide.transaction.metadata. "
                "Begin anew: drop the source and create it again."
            )
            raise DefiniteError(message, hint)

    def _update(self, **told: object) -> None:
        ahead = self._flight.first_offset()
        self._state = with_fields(
            self._state,
            highest=self._flight.highest,
            latest=self._flight.latest,
            server=self._server,
            first=self._first,
            metadata=self._metadata_read if ahead is None else ahead,
            tops={topic: tuple(each.top for each in parts) for topic, parts in self._stretches.items()},
            **told,
        )

    def _hold_to(self, server: str, topic: str) -> None:
        if server and self._server and server != self._server:
            message = f"transactions of another MySQL server are in the topic {topic}: GTIDs have no common order"
            raise DefiniteError(message, "Let Debezium write topics anew, drop the source and create it again.")
        self._server = self._server or server

    # -- snapshots --------------------------------------------------------------------------------------------------

    @property
    def _is_copying(self) -> bool:
        """Whether a snapshot is not over: nothing is cut then, as it may have rows for any partition."""
        return self._copying > self._state.copied

    def _follow_copy(self, marks: Marks) -> None:
        copied = marks.kinds == MarkKind.COPIED
        if copied.any():
            self._copied_since = True
            self._copying = max(self._copying, int(marks.snapshot.max()))
            self._comparable = bool(np.all(marks.before[copied] >= 0))
        if marks.last.any():
            self._over = max(self._over, int(marks.snapshot[marks.last].max()))
        changed = int(marks.before[marks.kinds == MarkKind.CHANGE].max(initial=-1))
        self._follow_stream(max(changed, self._flight.highest - 1))

    def _follow_stream(self, before: int) -> None:
        """Know that a transaction after a position was read: a copy at or before that is over."""
        if self._comparable and before >= self._copying:
            self._over = max(self._over, self._copying)

    def _follow_closing(self, read: set[tuple[str, int]], now: float) -> None:
        """Close a snapshot that is over when no partition can have more rows of it."""
        if self._over != self._closing or self._copied_since:
            self._closing, self._quiet_since, self._copied_since = self._over, now, False
            self._read_since = set()
        if now >= self._quiet_since + QUIET_SECONDS:
            self._read_since |= read
        passed = (
            (topic, number) in self._read_since or (self._comparable and each.changed >= self._over)
            for topic, parts in self._stretches.items()
            for number, each in enumerate(parts)
        )
        if self._over > self._state.copied and all(passed):
            self._close(self._over)

    def _close(self, snapshot: int) -> None:
        if self._comparable:
            self._raise_completed(snapshot)
        self._update(copied=snapshot)
        if self._founding is not None:
            self._founding = None
            self._update(founded=True, valid_from=snapshot if self._comparable else None)


def _tops(state: CutState, topic: str, count: int) -> tuple[Top, ...]:
    tops = state.tops.get(topic, ())
    return (*tops, *[NOWHERE] * (count - len(tops)))
