"""A database and Debezium's connector, in plain Python: the changes upstream, and how they are written to a topic.

The connector writes changes in order, and now and then restarts from an earlier point (a replay). So the contents of a
table follow from the numbers of events alone: *exactly once* it is, per key, the event with the highest number that
was written so far; *by upsert* the event that was written last. The envelope does not see these numbers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.envelopes.topics import SPREAD, Batch, Message, Table

from penstock.model import Image

ROW = "struct<topic:int,id:int,n:int>"
SOURCE = (
    "struct<version:string,connector:string,snapshot:string,ts_ms:bigint,"
    "sequence:string,lsn:bigint,file:string,pos:bigint,row:int>"
)
RECORD = f"struct<before:{ROW},after:{ROW},source:{SOURCE},op:string>"


def source(**parts: Any) -> dict[str, Any]:
    """Return the ``source`` of a record of Postgres, changed by `parts`."""
    plain = {"version": "3.3.1.Final", "connector": "postgresql", "snapshot": "false", "ts_ms": 1_700_000_000_000}
    return {**plain, "sequence": '["100","100"]', "lsn": 100, "file": None, "pos": None, "row": None, **parts}


def row(id_: int, n: int | None = 0, topic: int = 0) -> dict[str, Any]:
    return {"topic": topic, "id": id_, "n": n}


def record(op: str, before: Any = None, after: Any = None, **parts: Any) -> dict[str, Any]:
    """Return a record, with `parts` in its ``source``."""
    return {"before": before, "after": after, "source": source(**parts), "op": op}


@dataclass(frozen=True)
class Event:
    """One change, or row of the snapshot, as the connector writes it."""

    id: int
    value: dict[str, Any]

    @property
    def images(self) -> list[tuple[int, Any]]:
        before, after = self.value["before"], self.value["after"]
        images_by_op = {"u": [(Image.BEFORE, before), (Image.UPDATED, after)], "d": [(Image.DELETED, before)]}
        return [(int(kind), image) for kind, image in images_by_op.get(self.value["op"], [(Image.INSERTED, after)])]


class Database:
    """A table upstream and its log: concurrent transactions, COPY, changed keys."""

    def __init__(self, random: Random, topic: int) -> None:
        self.random, self.topic = random, topic
        self.mysql = topic % 2 == 1
        self.rows: dict[int, int] = {id_: random.randint(0, 999) for id_ in range(5) if random.random() < 0.5}
        self.at, self.commit, self.time = 1000, 0, 1_700_000_000_000
        self.events: list[Event] = []
        start = self._place(self.at, 0)
        for id_, n in self.rows.items():
            self._log("r", id_, None, n, {**start, "snapshot": random.choice(["true", "first", "last"])})
        for _ in range(random.randint(2, 12)):
            self._transact()

    def _transact(self) -> None:
        self.time += self.random.randint(0, 2)
        start = self.at - self.random.randint(0, 190)  # it overlaps with the previous one
        for number in range(self.random.randint(1, 4)):
            self._change(self._place(self.at + number if self.mysql else start + number * 10, 0))
        self.commit = self.at = self.at + 100

    def _change(self, place: dict[str, Any]) -> None:
        ids = sorted(self.rows)
        free = [id_ for id_ in range(7) if id_ not in self.rows]
        action = self.random.choice(["add", "add", "change", "change", "change", "take", "move"])
        if action == "add" and free:
            for number, id_ in enumerate(free[: self.random.randint(1, 3)]):  # COPY: several rows at one position
                self.rows[id_] = self.random.randint(0, 999)
                self._log("c", id_, None, self.rows[id_], {**place, "row": number if self.mysql else None})
        elif ids and action != "add":
            id_ = self.random.choice(ids)
            old, n = self.rows.pop(id_), self.random.randint(0, 999)
            if action == "change" or (action == "move" and not free):
                self.rows[id_] = n
                self._log("u", id_, old, n, place)
            else:
                self._log("d", id_, old, None, place)
                if action == "move":
                    self.rows[free[0]] = old
                    self._log("c", free[0], None, old, place)

    def _place(self, at: int, number: int) -> dict[str, Any]:
        if self.mysql:
            file = f"binlog.{999_995 + at // 300:06d}"
            return {"connector": "mysql", "sequence": None, "lsn": None, "file": file, "pos": at % 300, "row": number}
        last = "null" if not self.commit else f'"{self.commit}"'
        return {"sequence": f'[{last},"{at}"]', "lsn": at}

    def _log(self, op: str, id_: int, before: int | None, after: int | None, place: dict[str, Any]) -> None:
        rows = [None if n is None else row(id_, n, self.topic) for n in (before, after)]
        self.events.append(Event(id_, record(op, *rows, ts_ms=self.time, **place)))


@dataclass
class DebeziumBatch(Batch):
    """One batch of a topic written by Debezium; `table` is the upsert result."""

    exactly_once: Table = field(default_factory=dict)
    images: list[tuple[int, Any]] = field(default_factory=list)
    """Images of events that were never written before."""


def debezium_topic(random: Random, topic: int, batches: int) -> list[DebeziumBatch]:
    """Write a topic of records, with replays, tombstones, and messages that must be rejected."""
    events = Database(random, topic).events
    delivered = _deliveries(random, len(events))
    cuts = sorted(random.randint(0, len(delivered)) for _ in range(batches - 1))
    writer = _Writer(random, topic, random.randint(1, 3), defaultdict(int))
    upserted: Table = {}
    written: set[int] = set()
    result = []
    for tick, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(delivered)], strict=True)):
        batch = DebeziumBatch()
        for at in delivered[start:end]:
            writer.write(events[at], tick, batch)
            upserted[(topic, events[at].id)] = events[at].value["after"]
            batch.images += events[at].images if at not in written else []
            written.add(at)
        batch.table = _present(upserted)
        batch.exactly_once = _present({(topic, events[at].id): events[at].value["after"] for at in sorted(written)})
        result.append(batch)
    return result


def _present(rows: Table) -> Table:
    return {key: after["n"] for key, after in rows.items() if after is not None}


def _deliveries(random: Random, count: int) -> list[int]:
    """Return event numbers as written: in order, but with occasional jumps back."""
    order, at = [], 0
    while at < count:
        order.append(at)
        at += 1
        if random.random() < 0.12:
            at = random.randint(max(0, at - 8), at)
    return order


@dataclass
class _Writer:
    """Writes events to partitions by key."""

    random: Random
    topic: int
    partitions: int
    offsets: dict[int, int]

    def write(self, event: Event, tick: int, batch: DebeziumBatch) -> None:
        key = {"topic": self.topic, "id": event.id}
        chance = self.random.random()
        if chance < 0.04:
            batch.rejected.add(self._put(batch, tick, event, None, event.value))
        elif chance < 0.08:
            batch.rejected.add(self._put(batch, tick, event, key, None, "it is corrupt"))
        self._put(batch, tick, event, key, event.value)
        if event.value["op"] == "d":
            self._put(batch, tick, event, key, None)

    def _put(
        self, batch: DebeziumBatch, tick: int, event: Event, key: Any, value: Any, problem: str | None = None
    ) -> tuple[int, int]:
        partition = self.topic * SPREAD + (event.id * 7 + 3) % self.partitions
        message = Message(key, value, partition, self.offsets[partition], tick, problem)
        self.offsets[partition] += 1
        batch.messages.append(message)
        return message.location
