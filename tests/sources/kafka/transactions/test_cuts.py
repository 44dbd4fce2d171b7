"""Random histories with kills of Debezium and of capture: each cut is consistent, furthest, and never moves back."""

from __future__ import annotations

import os
from bisect import bisect_right
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from tests.sources.kafka.transactions.history import METADATA, TOPICS, Database, Item, Partition, State, Topics

from penstock.sources.kafka.transactions.cuts import QUIET_SECONDS, Cut, CutState, Cutter
from penstock.sources.kafka.transactions.message_columns import Ends, MessageColumns, MessageKind
from penstock.sources.kafka.transactions.metadata import Routes
from penstock.sources.kafka.transactions.pending_transactions import ConsistentStart

RUNS = int(os.environ.get("PENSTOCK_TRANSACTION_HISTORIES", "30"))


class Reader:
    """Reads topics in parts, in any order, and advances cuts; a restart keeps only the last cut."""

    def __init__(self, random: Random, database: Database, topics: Topics, starts: dict[Partition, int] | None = None):
        self.random, self.database, self.topics = random, database, topics
        self.starts = starts or dict.fromkeys(topics.data, 0)
        self.from_start = starts is None
        self.upto = dict(self.starts)
        self.state: CutState | None = None
        self.metadata_start = 0
        self.clock = 0.0
        self.restart()

    def restart(self) -> None:
        """Start from the state of the last cut."""
        state = self.state or CutState(metadata=self.metadata_start, tops={}, founded=self.from_start)
        upto = {topic: tuple(self.upto[topic, p] for p in range(count)) for topic, count in TOPICS.items()}
        self.cutter = Cutter(
            upto, state, metadata=METADATA, routes=Routes(list(TOPICS)), consistent_start=ConsistentStart(5.0)
        )
        look_back = 0 if state.founded else 4
        self.read = {partition_id: max(0, offset - look_back) for partition_id, offset in self.upto.items()}
        self.metadata_read = state.metadata

    def step(self, size: int) -> None:
        """Read a part of one partition."""
        if self.random.random() < 0.4:
            self.take_ends(size)
        else:
            self.take(self.random.choice(list(self.read)), size)

    def take_ends(self, size: int) -> None:
        ends = self.topics.metadata[self.metadata_read : self.metadata_read + size]
        self.cutter.take_ends(self.database.read_ends(ends, self.metadata_read), self.metadata_read + len(ends))
        self.metadata_read += len(ends)

    def take(self, partition_id: Partition, size: int) -> None:
        items = self.topics.data[partition_id][self.read[partition_id] : self.read[partition_id] + size]
        message_columns = self.database.message_columns(items, self.read[partition_id])
        self.read[partition_id] += len(items)
        self.cutter.take_changes(*partition_id, message_columns, self.read[partition_id])

    def read_all(self, moment: int) -> None:
        """Read all messages available at a moment."""
        for partition_id, read in self.read.items():
            self.take(partition_id, max(0, self.topics.available(partition_id, moment) - read))
        self.take_ends(max(0, self.topics.available(None, moment) - self.metadata_read))
        self.clock += QUIET_SECONDS
        self.cutter.record_poll([*self.read, (METADATA, 0)], self.clock)

    def cut(self) -> Cut | None:
        self.clock += 1
        next_cut = self.cutter.advance(self.clock)
        if next_cut is not None:
            upto = {(topic, p): offset for topic, all_ in next_cut.upto.items() for p, offset in enumerate(all_)}
            assert all(upto[partition_id] >= self.upto[partition_id] for partition_id in upto), "a cut moved back"
            self.upto, self.state = upto, next_cut.state
        return next_cut

    def values(self) -> State:
        """Return the last value of each key in the cut."""
        found: State = {}
        for (topic, partition), upto in self.upto.items():
            for item in self.topics.data[topic, partition][self.starts[topic, partition] : upto]:
                if not item.tombstone:
                    found[topic, item.key] = item.value
        return found


def furthest(reader: Reader) -> tuple[int, dict[Partition, int]]:
    """Return the last transaction that can be complete, and the furthest cut of each partition for it."""
    ends = {item.transaction for item in reader.topics.metadata[: reader.metadata_read]}
    available = {
        item for partition_id, items in reader.topics.data.items() for item in items[: reader.read[partition_id]]
    }
    number = 0
    while number + 1 in ends and set(reader.database.events[number + 1]) <= available:
        number += 1
    return number, {
        partition_id: _cut(items[: reader.read[partition_id]], number)
        for partition_id, items in reader.topics.data.items()
    }


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
def test_each_cut_is_consistent_and_the_furthest(seed: int) -> None:
    random = Random(seed)
    database = Database.drawn(random, random.choice([3, 12, 40]))
    database.unplaced = random.choice([set(), {1}])
    reader = Reader(random, database, Topics(random, database, random.randrange(4)))
    number = 0
    for _ in range(150):
        reader.step(random.choice([1, 2, 5, 30]))
        if random.random() < 0.5:
            reader.cut()
            number, expected_upto = furthest(reader)
            assert reader.upto == expected_upto
            assert reader.values() == database.state(number)
        if random.random() < 0.03:
            reader.restart()
    reader.read_all(reader.topics.end)
    reader.cut()
    assert reader.values() == database.state(len(database.ends) - 1)
    assert reader.upto == {partition_id: len(items) for partition_id, items in reader.topics.data.items()}
    assert reader.cutter.pending == 0


@pytest.mark.parametrize("seed", range(RUNS))
def test_snapshots_are_captured_in_one_cut(seed: int) -> None:
    random = Random(seed)
    database = Database.drawn(random, random.choice([5, 20]))
    topics = Topics(random, database, random.randrange(2), lost=False, copies=random.randrange(3))
    reader = Reader(random, database, topics)
    for moment in [*sorted(random.randrange(topics.end + 1) for _ in range(12)), topics.end, topics.end, topics.end]:
        if random.random() < 0.1:
            reader.restart()
        reader.read_all(moment)
        next_cut = reader.cut()
        if next_cut is not None:
            number = bisect_right(database.ends, next_cut.state.completed) - 1
            assert reader.values() == database.state(number)
    blockers = reader.cutter.blockers()
    if not blockers.copying and blockers.settles_after is None:
        assert reader.values() == database.state(len(database.ends) - 1)


@pytest.mark.parametrize("seed", range(RUNS))
def test_late_start(seed: int) -> None:
    random = Random(seed)
    database = Database.drawn(random, random.choice([12, 40]))
    topics = Topics(random, database, random.randrange(3), lost=False)
    moments = sorted(random.randrange(topics.end + 1) for _ in range(8))
    starts = {
        partition_id: topics.available(partition_id, moments[0] + random.randrange(5)) for partition_id in topics.data
    }
    reader = Reader(random, database, topics, starts)
    reader.metadata_start = topics.available(None, moments[0] + random.randrange(5))
    reader.restart()
    for moment in moments[1:]:
        reader.read_all(max(moment, moments[0] + 5))
        _check_cut_after_late_start(reader)
    for _ in range(10):
        reader.read_all(topics.end)
        _check_cut_after_late_start(reader)
    earlier = [
        item.transaction for partition_id, items in topics.data.items() for item in items[: starts[partition_id]]
    ]
    later = [item.transaction for item in topics.metadata[reader.metadata_start :]]
    assert reader.state is not None or max(later, default=0) <= max(earlier, default=0) + 1
    if reader.state is not None and reader.cutter.state.doubt < 0:
        assert reader.upto == {partition_id: len(items) for partition_id, items in topics.data.items()}


def _check_cut_after_late_start(reader: Reader) -> None:
    """Check that the values written since the start are those after one transaction, the same for all topics."""
    if reader.cut() is None or reader.state is None:
        return
    assert reader.state.valid_from is not None
    number = reader.database.ends.index(reader.state.completed)
    expected = reader.database.state(number)
    assert all(expected[key] == value for key, value in reader.values().items())


def test_state_does_not_grow_with_history() -> None:
    """Transactions of two events, in two topics; each thousand is written twice, as after a kill of Debezium."""
    shapes = []
    for count in (10_000, 100_000):
        pending_counts = set()
        cutter = Cutter(
            {"x.a": (0,), "x.b": (0,)},
            CutState(metadata=0, tops={}, founded=True),
            metadata=METADATA,
            routes=Routes(["x.a", "x.b"]),
        )
        for offset in range(0, 2 * count, 1000):
            numbers = np.arange(offset // 2 // 1000 * 1000, offset // 2 // 1000 * 1000 + 1000) + 1
            offsets = np.arange(offset, offset + 1000)
            for order, topic in enumerate(["x.a", "x.b"], 1):
                message_columns = change_columns(offsets, numbers, numbers * 10 - 10, np.full(1000, order))
                cutter.take_changes(topic, 0, message_columns, offset + 1000)
            counts = np.ones((1000, 2), np.int64)
            cutter.take_ends(Ends(offsets, numbers, numbers * 10, numbers, ["a", "b"], counts), offset + 1000)
            cut = cutter.advance(0.0)
            assert cut is None or cut.upto == {"x.a": (offset + 1000,), "x.b": (offset + 1000,)}
            pending_counts.add(cutter.pending)
        assert pending_counts == {0}
        assert cut is not None
        assert cut.state.completed == count * 10
        shapes.append(_shape(cut.state.model_dump()))
    assert shapes[0] == shapes[1]


def test_delayed_snapshot_rows_are_waited_for() -> None:
    """The last snapshot row overtakes rows of other partitions: they are separate requests of Debezium's producer."""
    partitions = [("x.a", 0), ("x.b", 0), (METADATA, 0)]
    state = CutState(metadata=0, tops={}, founded=True)
    cutter = Cutter({"x.a": (0,), "x.b": (0,)}, state, metadata=METADATA, routes=Routes(["x.a", "x.b"]))
    cutter.take_changes("x.b", 0, snapshot_rows(0, last=True), 3)
    cutter.record_poll(partitions, 0.0)
    for now in (0.1, QUIET_SECONDS - 0.1):
        cutter.record_poll(partitions, now)
        assert cutter.advance(now) is None
    cutter.take_changes("x.a", 0, snapshot_rows(0, last=False), 3)  # the quiet period of two seconds starts here
    for now in (QUIET_SECONDS, 2 * QUIET_SECONDS - 0.1):
        cutter.record_poll(partitions, now)
        assert cutter.advance(now) is None
    cutter.record_poll(partitions, 2 * QUIET_SECONDS)
    cut = cutter.advance(2 * QUIET_SECONDS)
    assert cut is not None
    assert cut.upto == {"x.a": (3,), "x.b": (3,)}


def test_repeated_snapshot_becomes_visible_with_a_transaction_that_commits_after_it() -> None:
    """Debezium reads the tables of a repeated snapshot one after the other, without a common snapshot."""
    state = CutState(metadata=0, tops={}, founded=True)
    cutter = Cutter({"x.a": (0,)}, state, metadata=METADATA, routes=Routes(["x.a"]))
    moments = iter(range(0, 1000, 10))

    def cut() -> Cut | None:
        for now in (float(next(moments)), float(next(moments))):
            cutter.record_poll([("x.a", 0), (METADATA, 0)], now)
        return cutter.advance(now)

    def commit(number: int, position: int, time: int) -> None:
        """Write a transaction with one event."""
        one, which = np.array([offset + number]), np.array([number])
        cutter.take_changes("x.a", 0, change_columns(one, which, np.array([position - 1]), np.array([1])), one[0] + 1)
        end = Ends(one - offset, which, np.array([position]), np.array([time]), ["a"], np.ones((1, 1), np.int64))
        cutter.take_ends(end, number + 1)

    cutter.take_changes("x.a", 0, snapshot_rows(0, last=True), 3)
    first = cut()
    assert first is not None
    assert first.upto == {"x.a": (3,)}
    cutter.take_changes("x.a", 0, snapshot_rows(3, last=True, position=20, time=50), 6)
    assert cut() is None
    assert cutter.blockers().settles_after == 50
    offset = 6
    commit(0, position=30, time=50)
    assert cut() is None
    commit(1, position=40, time=51)
    visible = cut()
    assert visible is not None
    assert visible.upto == {"x.a": (8,)}
    assert cutter.blockers().settles_after is None


def snapshot_rows(offset: int, *, last: bool, position: int = 7, time: int = 5) -> MessageColumns:
    """Return three snapshot rows."""
    offsets, none = np.arange(offset, offset + 3), np.full(3, -1, np.int64)
    kinds, at = np.full(3, MessageKind.COPIED, np.int64), np.full(3, position, np.int64)
    return MessageColumns(
        offsets, kinds, none, at, none, at, np.array([False, False, last]), np.full(3, time, np.int64)
    )


def change_columns(
    offsets: npt.NDArray[np.int64],
    which: npt.NDArray[np.int64],
    before: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
) -> MessageColumns:
    """Return changes."""
    count = len(offsets)
    kinds, none = np.full(count, MessageKind.CHANGE, np.int64), np.full(count, -1, np.int64)
    return MessageColumns(offsets, kinds, which, before, order, none, np.zeros(count, np.bool_), none)


def _shape(value: object) -> object:
    """Return the structure of a value, without its numbers."""
    if isinstance(value, dict):
        return {name: _shape(each) for name, each in value.items()}
    return [_shape(each) for each in value] if isinstance(value, list | tuple) else type(value)
