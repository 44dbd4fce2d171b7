"""Random histories, with Debezium killed and ourselves killed: each cut is whole, the furthest one, and never back."""

from __future__ import annotations

import os
from bisect import bisect_right
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from tests.sources.kafka.transactions.history import METADATA, TOPICS, Database, Item, Partition, State, Topics

from penstock.sources.kafka.transactions.cuts import QUIET_SECONDS, Cut, CutState, Cutting
from penstock.sources.kafka.transactions.in_flight import Founding
from penstock.sources.kafka.transactions.marks import Ends, MarkKind, Marks
from penstock.sources.kafka.transactions.routes import Routes

RUNS = int(os.environ.get("PENSTOCK_TRANSACTION_HISTORIES", "30"))


class Reader:
    """Reads topics in pieces, in any order, and asks for cuts; forgets all but the last cut when it is killed."""

    def __init__(self, random: Random, database: Database, topics: Topics, starts: dict[Partition, int] | None = None):
        self.random, self.database, self.topics = random, database, topics
        self.starts = starts or dict.fromkeys(topics.data, 0)
        self.begun = starts is None
        self.upto = dict(self.starts)
        self.state: CutState | None = None
        self.metadata_start = 0
        self.clock = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin with what was noted with the last cut."""
        state = self.state or CutState(metadata=self.metadata_start, tops={}, founded=self.begun)
        upto = {topic: tuple(self.upto[topic, p] for p in range(count)) for topic, count in TOPICS.items()}
        self.cutting = Cutting(upto, state, metadata=METADATA, routes=Routes(list(TOPICS)), founding=Founding(5.0))
        look_back = 0 if state.founded else 4
        self.read = {place: max(0, offset - look_back) for place, offset in self.upto.items()}
        self.metadata_read = state.metadata

    def step(self, size: int) -> None:
        """Read a piece of one partition."""
        if self.random.random() < 0.4:
            self.take_ends(size)
        else:
            self.take(self.random.choice(list(self.read)), size)

    def take_ends(self, size: int) -> None:
        ends = self.topics.metadata[self.metadata_read : self.metadata_read + size]
        self.cutting.take_ends(self.database.read_ends(ends, self.metadata_read), self.metadata_read + len(ends))
        self.metadata_read += len(ends)

    def take(self, place: Partition, size: int) -> None:
        items = self.topics.data[place][self.read[place] : self.read[place] + size]
        marks = self.database.marks(items, self.read[place])
        self.read[place] += len(items)
        self.cutting.take_changes(*place, marks, self.read[place])

    def look(self, moment: int) -> None:
        """Read all that there is at a moment."""
        for place, read in self.read.items():
            self.take(place, max(0, self.topics.there(place, moment) - read))
        self.take_ends(max(0, self.topics.there(None, moment) - self.metadata_read))
        self.clock += QUIET_SECONDS
        self.cutting.looked([*self.read, (METADATA, 0)], self.clock)

    def cut(self) -> Cut | None:
        self.clock += 1
        made = self.cutting.advance(self.clock)
        if made is not None:
            upto = {(topic, p): offset for topic, all_ in made.upto.items() for p, offset in enumerate(all_)}
            assert all(upto[place] >= self.upto[place] for place in upto), "a cut went back"
            self.upto, self.state = upto, made.state
        return made

    def values(self) -> State:
        """Return what is the last value of each key in the cut."""
        found: State = {}
        for (topic, partition), upto in self.upto.items():
            for item in self.topics.data[topic, partition][self.starts[topic, partition] : upto]:
                if not item.tombstone:
                    found[topic, item.key] = item.value
        return found


def furthest(reader: Reader) -> tuple[int, dict[Partition, int]]:
    """Return the last transaction that can be complete, and how far each partition can be cut then."""
    ends = {item.transaction for item in reader.topics.metadata[: reader.metadata_read]}
    there = {item for place, items in reader.topics.data.items() for item in items[: reader.read[place]]}
    number = 0
    while number + 1 in ends and set(reader.database.events[number + 1]) <= there:
        number += 1
    return number, {place: _cut(items[: reader.read[place]], number) for place, items in reader.topics.data.items()}


def _cut(items: list[Item], number: int) -> int:
    best, top = 0, (0, 0)
    settled = True
    for offset, item in enumerate(items):
        if item.transaction > number:
            break
        if not item.tombstone:
            settled = (item.transaction, item.order) >= top
            top = max(top, (item.transaction, item.order))
        if settled:
            best = offset + 1
    return best


@pytest.mark.parametrize("seed", range(RUNS))
def test_each_cut_is_whole_and_the_furthest(seed: int) -> None:
    random = Random(seed)
    database = Database.drawn(random, random.choice([3, 12, 40]))
    database.unplaced = random.choice([set(), {1}])
    reader = Reader(random, database, Topics(random, database, random.randrange(4)))
    number = 0
    for _ in range(150):
        reader.step(random.choice([1, 2, 5, 30]))
        if random.random() < 0.5:
            reader.cut()
            number, places = furthest(reader)
            assert reader.upto == places
            assert reader.values() == database.state(number)
        if random.random() < 0.03:
            reader.restart()
    reader.look(reader.topics.end)
    reader.cut()
    assert reader.values() == database.state(len(database.ends) - 1)
    assert reader.upto == {place: len(items) for place, items in reader.topics.data.items()}
    assert reader.cutting.in_flight == 0


@pytest.mark.parametrize("seed", range(RUNS))
def test_copies_are_taken_at_once(seed: int) -> None:
    random = Random(seed)
    database = Database.drawn(random, random.choice([5, 20]))
    topics = Topics(random, database, random.randrange(2), lost=False, copies=random.randrange(3))
    reader = Reader(random, database, topics)
    for moment in [*sorted(random.randrange(topics.end + 1) for _ in range(12)), topics.end, topics.end, topics.end]:
        reader.look(moment)
        made = reader.cut()
        if made is not None:
            number = bisect_right(database.ends, made.state.completed) - 1
            assert reader.values() == database.state(number)
        if random.random() < 0.1:
            reader.restart()
    if not reader.cutting.held().copying:
        assert reader.values() == database.state(len(database.ends) - 1)


@pytest.mark.parametrize("seed", range(RUNS))
def test_beginning_in_the_middle(seed: int) -> None:
    random = Random(seed)
    database = Database.drawn(random, random.choice([12, 40]))
    topics = Topics(random, database, random.randrange(3), lost=False)
    moments = sorted(random.randrange(topics.end + 1) for _ in range(8))
    starts = {place: topics.there(place, moments[0] + random.randrange(5)) for place in topics.data}
    reader = Reader(random, database, topics, starts)
    reader.metadata_start = topics.there(None, moments[0] + random.randrange(5))
    reader.restart()
    for moment in moments[1:]:
        reader.look(max(moment, moments[0] + 5))
        _check_from_the_middle(reader)
    for _ in range(10):
        reader.look(topics.end)
        _check_from_the_middle(reader)
    earlier = [item.transaction for place, items in topics.data.items() for item in items[: starts[place]]]
    later = [item.transaction for item in topics.metadata[reader.metadata_start :]]
    assert reader.state is not None or max(later, default=0) <= max(earlier, default=0) + 1
    if reader.state is not None and reader.cutting.state.doubt < 0:
        assert reader.upto == {place: len(items) for place, items in topics.data.items()}


def _check_from_the_middle(reader: Reader) -> None:
    """What was written since the beginning is as it was after one transaction, the same for all topics."""
    if reader.cut() is None or reader.state is None:
        return
    assert reader.state.valid_from is not None
    number = reader.database.ends.index(reader.state.completed)
    expected = reader.database.state(number)
    assert all(expected[key] == value for key, value in reader.values().items())


def test_state_does_not_grow_with_history() -> None:
    """Transactions of two events, in two topics; each thousand is written twice, as by a Debezium that was killed."""
    shapes = []
    for count in (10_000, 100_000):
        held = set()
        cutting = Cutting(
            {"x.a": (0,), "x.b": (0,)},
            CutState(metadata=0, tops={}, founded=True),
            metadata=METADATA,
            routes=Routes(["x.a", "x.b"]),
        )
        for offset in range(0, 2 * count, 1000):
            numbers = np.arange(offset // 2 // 1000 * 1000, offset // 2 // 1000 * 1000 + 1000) + 1
            offsets = np.arange(offset, offset + 1000)
            for order, topic in enumerate(["x.a", "x.b"], 1):
                marks = marks_in(offsets, numbers, numbers * 10 - 10, np.full(1000, order))
                cutting.take_changes(topic, 0, marks, offset + 1000)
            counts = np.ones((1000, 2), np.int64)
            cutting.take_ends(Ends(offsets, numbers, numbers * 10, numbers, ["a", "b"], counts), offset + 1000)
            cut = cutting.advance(0.0)
            assert cut is None or cut.upto == {"x.a": (offset + 1000,), "x.b": (offset + 1000,)}
            held.add(cutting.in_flight)
        assert held == {0}
        assert cut is not None
        assert cut.state.completed == count * 10
        shapes.append(_shape(cut.state.model_dump()))
    assert shapes[0] == shapes[1]


def test_rows_of_a_copy_that_come_late_are_waited_for() -> None:
    """The last row of a copy overtakes rows for other partitions: they are other requests of Debezium's producer."""
    places = [("x.a", 0), ("x.b", 0), (METADATA, 0)]
    state = CutState(metadata=0, tops={}, founded=True)
    cutting = Cutting({"x.a": (0,), "x.b": (0,)}, state, metadata=METADATA, routes=Routes(["x.a", "x.b"]))
    cutting.take_changes("x.b", 0, copied(0, last=True), 3)
    cutting.looked(places, 0.0)
    for now in (0.1, QUIET_SECONDS - 0.1):
        cutting.looked(places, now)
        assert cutting.advance(now) is None
    cutting.take_changes("x.a", 0, copied(0, last=False), 3)  # it is quiet for two seconds from here on
    for now in (QUIET_SECONDS, 2 * QUIET_SECONDS - 0.1):
        cutting.looked(places, now)
        assert cutting.advance(now) is None
    cutting.looked(places, 2 * QUIET_SECONDS)
    cut = cutting.advance(2 * QUIET_SECONDS)
    assert cut is not None
    assert cut.upto == {"x.a": (3,), "x.b": (3,)}


def copied(offset: int, *, last: bool) -> Marks:
    """Return three rows of a copy at position 7."""
    offsets, none = np.arange(offset, offset + 3), np.full(3, -1, np.int64)
    kinds, at = np.full(3, MarkKind.COPIED, np.int64), np.full(3, 7, np.int64)
    return Marks(offsets, kinds, none, at, none, at, np.array([False, False, last]))


def marks_in(
    offsets: npt.NDArray[np.int64],
    which: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> Marks:
    """Return changes."""
    count = len(offsets)
    kinds, none = np.full(count, MarkKind.CHANGE, np.int64), np.full(count, -1, np.int64)
    return Marks(offsets, kinds, which, before, order, none, np.zeros(count, np.bool_))


def _shape(value: object) -> object:
    """Return what a value is made of, without its numbers."""
    if isinstance(value, dict):
        return {name: _shape(each) for name, each in value.items()}
    return [_shape(each) for each in value] if isinstance(value, list | tuple) else type(value)
