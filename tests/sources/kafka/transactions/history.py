"""A model in plain Python of a database's history and of the topics that Debezium writes from it.

A history is a list of transactions, each with events: a key of a topic gets a value. Debezium writes it in order, one
*item* after the other (events, then the END), to partitions by key. After a kill, every partition has some of what was
sent, and the next run starts at an item that all of them already have. So a partition is a list of items in order,
with occasional jumps back.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from penstock.sources.kafka.transactions.message_columns import UNKNOWN, Ends, MessageColumns, MessageKind

TOPICS = {"dbz.public.a": 2, "dbz.public.b": 1, "dbz.other.c": 3}
METADATA = "dbz.transaction"
FOREIGN = "public.unfollowed"
SNAPSHOTS = 10
"""More than the snapshots of a history."""
MILLISECONDS = 1000
"""Between two commits."""

State = dict[tuple[str, int], int]
Partition = tuple[str, int]


def table_of(topic: str) -> str:
    return topic.partition(".")[2]


@dataclass(frozen=True)
class Item:
    """An event, or an END: the item of a transaction that has no topic."""

    transaction: int
    order: int = 0
    topic: str = ""
    partition: int = 0
    key: int = 0
    tombstone: bool = False
    copied: int | None = None
    """The value of a snapshot row."""
    read_after: int = 0
    """Of a snapshot row: the transaction after which it was read. It is `transaction`, or a later one: see `copy`."""
    snapshot: int = 0
    """Of a snapshot row: the number of its snapshot. The end of each is in the WAL: no two have the same position."""
    last: bool = False

    @property
    def value(self) -> int:
        return self.transaction * 100 + self.order if self.copied is None else self.copied


@dataclass
class Database:
    """Transactions by number from 1; number 0 is the initial state."""

    ends: list[int] = field(default_factory=list)
    names: list[int] = field(default_factory=list)
    events: list[list[Item]] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)
    unplaced: set[int] = field(default_factory=set)
    """Transactions for which Debezium does not know the previous commit."""

    @classmethod
    def drawn(cls, random: Random, count: int) -> Database:
        """Draw a history, whose transactions may have no events."""
        database = cls([random.randrange(1, 5)], [0], [[]], [0])
        names = random.sample(range(1, 10 * count + 10), count)
        for number, name in enumerate(names, 1):
            database.ends.append(database.ends[-1] + random.randrange(1, 20) * SNAPSHOTS)
            database.names.append(name)
            foreign_events = random.choice([0, 0, 0, 1, 3])
            size = random.choice([0, 1, 1, 2, 3, 8])
            orders = sorted(random.sample(range(1, size + foreign_events + 1), size))
            database.foreign.append(foreign_events)
            database.events.append([database._event(random, number, order) for order in orders])
        return database

    def _event(self, random: Random, number: int, order: int) -> Item:
        topic = random.choice(list(TOPICS))
        key = random.randrange(6)
        return Item(number, order, topic, key % TOPICS[topic], key)

    def items(self, random: Random, after: int = 0) -> list[Item]:
        """Return the items that Debezium sends after a transaction: tombstones follow some events."""
        sent = []
        for number in range(after + 1, len(self.ends)):
            for event in self.events[number]:
                sent.append(event)
                if random.random() < 0.2:
                    sent.append(Item(number, 0, event.topic, event.partition, tombstone=True))
            sent.append(Item(number))
        return sent

    def copy(self, number: int, random: Random, snapshot: int) -> list[Item]:
        """Return the rows of a snapshot taken after a transaction.

        From the second snapshot on the slot exists. Debezium then reads one table after the other, while the history
        continues.
        """
        rows, read_after = [], number
        for topic in TOPICS:
            if snapshot:
                read_after = random.randrange(read_after, min(read_after + 4, len(self.ends)))
            values = sorted((key, value) for (name, key), value in self.state(read_after).items() if name == topic)
            rows += [
                Item(number, 0, topic, key % TOPICS[topic], key, False, v, read_after, snapshot) for key, v in values
            ]
        return [*rows[:-1], *[replace(row, last=True) for row in rows[-1:]]]

    def state(self, upto: int) -> State:
        """Return the values of all keys after a transaction: the number of the event that wrote each."""
        values: State = {}
        for number in range(upto + 1):
            for event in self.events[number]:
                values[event.topic, event.key] = number * 100 + event.order
        return values

    def message_columns(self, items: list[Item], first: int) -> MessageColumns:
        """Return events of a partition as they are read, starting at an offset."""
        numbers = np.array([item.transaction for item in items], np.int64)
        copied = np.array([item.copied is not None for item in items], np.bool_)
        changes = ~copied & ~np.array([item.tombstone for item in items], np.bool_)
        ends, names = np.array(self.ends), np.array(self.names)
        snapshots = np.array([item.snapshot for item in items], np.int64)
        before = np.where(np.isin(numbers, [*self.unplaced]), UNKNOWN, ends[numbers - 1])
        return MessageColumns(
            np.arange(first, first + len(items)),
            np.select([copied, changes], [MessageKind.COPIED, MessageKind.CHANGE], MessageKind.PASSES).astype(np.int64),
            np.where(changes, names[numbers], 0),
            np.select([copied, changes], [ends[numbers] + snapshots, before], -1),
            np.array([item.order for item in items], np.int64),
            np.where(copied, ends[numbers] + snapshots, -1),
            np.array([item.last for item in items], np.bool_),
            np.where(copied, np.array([item.read_after for item in items], np.int64) * MILLISECONDS, -1),
        )

    def read_ends(self, items: list[Item], first: int) -> Ends:
        """Return ENDs as they are read, starting at an offset."""
        tables = [*map(table_of, TOPICS), FOREIGN]
        counts = np.zeros((len(items), len(tables)), np.int64)
        for place, item in enumerate(items):
            for event in self.events[item.transaction]:
                counts[place, list(TOPICS).index(event.topic)] += 1
            counts[place, -1] = self.foreign[item.transaction]
        numbers = np.array([item.transaction for item in items], np.int64)
        ends, names = np.array(self.ends), np.array(self.names)
        offsets = np.arange(first, first + len(items))
        return Ends(offsets, names[numbers], ends[numbers], numbers * MILLISECONDS, tables, counts)


class Topics:
    """The final contents of the topics of a history."""

    def __init__(
        self, random: Random, database: Database, kills: int, *, lost: bool = True, copies: int | None = None
    ) -> None:
        """Write the history; with `lost` a kill loses messages sent to some partitions but not to others.

        With `copies`, that many runs are killed before Debezium stores its position: it takes the snapshot again. Each
        writes at least one message: without it, nothing shows that the slot existed.
        """
        self.data: dict[Partition, list[Item]] = {(t, p): [] for t, count in TOPICS.items() for p in range(count)}
        self.metadata: list[Item] = []
        self.times: dict[Partition | None, list[int]] = {place: [] for place in [*self.data, None]}
        """When each message arrived: brokers have all messages sent before a moment."""
        self.end = 0
        self._random, self._lost = random, lost
        after = 0
        for number in range(copies or 0):
            after = random.randrange(after, len(database.ends))
            database.unplaced.add(after + 1)
            copy = database.copy(after, random, number)
            self._write([*copy, *database.items(random, after)], 0, killed=True, least=1)
            written = [max(item.transaction, item.read_after) for items in self._all() for item in items]
            after = max([after, *written])
        copy = []
        if copies is not None:
            after = random.randrange(after, len(database.ends))
            database.unplaced.add(after + 1)
            copy = database.copy(after, random, copies)
        items = [*copy, *database.items(random, after)]
        begin = 0
        for life in range(kills + 1):
            begin = self._write(items, begin, killed=life < kills, least=len(copy))

    def _all(self) -> list[list[Item]]:
        return [*self.data.values(), self.metadata]

    def _write(self, items: list[Item], begin: int, *, killed: bool, least: int = 0) -> int:
        """Write the items of one run, at least `least`; return where the next run may start."""
        ends: dict[Partition | None, int] = dict.fromkeys(self.times, len(items))
        if killed:  # the run stops at a random item, and not all partitions have all items up to it
            stop = self._random.randrange(min(max(begin, least), len(items)), len(items) + 1)
            ends = {place: max(begin, stop - self._lost * self._random.choice([0, 0, 1, 3, 10])) for place in ends}
        for number in range(begin, len(items)):
            item = items[number]
            place = (item.topic, item.partition) if item.topic else None
            if number < ends[place]:
                (self.metadata if place is None else self.data[place]).append(item)
                self.times[place].append(self.end + number - begin)
        self.end += len(items) - begin
        stored = min(ends.values())
        return self._random.randrange(min(stored, max(least, stored - 25)), stored + 1)

    def available(self, place: Partition | None, moment: int) -> int:
        """Return how many messages a partition (None: the metadata topic) has at a moment."""
        return bisect_left(self.times[place], moment)
