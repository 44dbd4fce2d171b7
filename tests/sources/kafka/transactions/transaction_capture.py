"""Capture by transactions of topics as Debezium writes them; and a bank, whose sum is correct after each transaction.

A transfer takes from an account and gives to another, in two events of one transaction. Events have the new balance of
an account, so that the last balances of all accounts, up to any tick, must add up to the initial sum of the bank.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from tests.servers import HasBootstrap
from tests.sources.kafka.topic_capture import TopicCapture, Topics, options_of
from tests.topic_reader import read_topic

from penstock.formats import JsonFormat, ResolvedFormat, resolve
from penstock.sources.interface import Instance
from penstock.sources.kafka.creation import resolve_start
from penstock.sources.kafka.topic_start import start_of
from penstock.sources.kafka.transactions.instance import TransactionsInstance
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.testing.waiting import PATIENCE

Sent = tuple[str, int, dict[str, Any] | None]
"""A topic, a partition, and a value."""
JSON = resolve(JsonFormat(columns="op STRING"))
START = 100


class TransactionCapture(TopicCapture):
    """Capture of topics by transactions."""

    def __init__(
        self,
        folder: Path,
        broker: HasBootstrap,
        topics: Sequence[str],
        metadata: str,
        formats: Mapping[str, ResolvedFormat] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, broker, topics, **options)
        self.formats = formats or {}
        how = self.config.how
        start = resolve_start(options_of(broker, metadata), how, "clicks", metadata, start_of(how, datetime.now(UTC)))
        self.metadata = TransactionMetadata(topic=start, format=self.formats.get(metadata, JSON))

    def instance(self) -> Instance:
        values = {topic.name: self.formats.get(topic.name, JSON) for topic in self.config.topics}
        return TransactionsInstance(self.config, self.metadata, values, self.log, self.state, patience=0.5)

    def start_offsets(self, topic: str) -> tuple[int, ...]:
        """Return the offsets at which reading a topic started."""
        return next(each.offsets for each in self.config.topics if each.name == topic)

    def ends(self) -> dict[int, dict[str, list[int]]]:
        """Return the offsets up to which topics were captured, by tick."""
        at: dict[str, list[int]] = {topic.name: list(topic.offsets) for topic in self.config.topics}
        ticks = [(row["at"], name, row["to"]) for name in at for row in self.ticks(name).to_pylist()]
        found: dict[int, dict[str, list[int]]] = {}
        for position, name, upto in sorted(ticks):
            at = {**at, name: upto}
            found[position] = at
        return found


class Bank:
    """Accounts in topics, two partitions each, and the messages that Debezium would write for their transfers."""

    def __init__(self, topics: Topics, random: Random, *, wrapped: bool = False) -> None:
        self.topics, self.random, self.wrapped = topics, random, wrapped
        self.names = [topics.make(2), topics.make(2)]
        self.metadata = topics.make(1)
        self.sent: list[Sent] = []
        """All messages in order, without repeats."""
        self.written: list[Sent] = []
        """The messages that were written."""
        self.balances = {(name, key): START for name in self.names for key in range(4)}
        self.commit, self._xid = 1000, 0

    @property
    def total(self) -> int:
        return START * len(self.balances)

    def copy(self) -> list[Sent]:
        """Return the initial snapshot: a row for each account."""
        rows = []
        for place, (name, key) in enumerate(self.balances):
            marker = "last" if place == len(self.balances) - 1 else "true"
            rows.append((name, key % 2, self._record(key, START, snapshot=marker, lsn=999, sequence='[null,"999"]')))
        return self._remember(rows)

    def transfer(self, later: int = 0) -> list[Sent]:
        """Return the messages of some transfers in one transaction."""
        before, self._xid = self.commit, self._xid + 1
        self.commit += self.random.randrange(10, 50)
        events: list[Sent] = []
        for _ in range(self.random.choice([1, 1, 2, 5])):
            giver, taker = self.random.sample(list(self.balances), 2)
            for account, amount in ((giver, -3), (taker, 3)):
                self.balances[account] += amount
                name, key = account
                place = {"snapshot": "false", "lsn": before + 1, "sequence": f'["{before}","{before + 1}"]'}
                part = {"id": f"{self._xid}:{before + 1}", "total_order": len(events) + 1, "data_collection_order": 1}
                events.append((name, key % 2, self._record(key, self.balances[account], transaction=part, **place)))
        counts = [{"data_collection": name, "event_count": _count(events, name)} for name in self.names]
        end = {"status": "END", "id": f"{self._xid}:{self.commit}", "event_count": len(events)}
        end |= {"data_collections": [one for one in counts if one["event_count"]], "ts_ms": self.commit + later}
        begin = {"status": "BEGIN", "id": f"{self._xid}:{before + 1}", "event_count": None, "data_collections": None}
        begin_message: Sent = (self.metadata, 0, self._wrapped({**begin, "ts_ms": self.commit}))
        return self._remember([begin_message, *events, (self.metadata, 0, self._wrapped(end))])

    def again(self, count: int) -> list[Sent]:
        """Return the last `count` messages again."""
        return self.sent[-count:]

    def write(self, messages: Iterable[Sent]) -> None:
        """Write messages to the broker, in this order."""
        for name, partition, value in messages:
            self.written.append((name, partition, value))
            body = None if value is None else json.dumps(value).encode()
            self.topics.producer.produce(name, body, partition=partition)
        assert self.topics.producer.flush(PATIENCE) == 0

    def _record(self, key: int, balance: int, transaction: dict[str, Any] | None = None, **source: Any) -> Any:
        record = {"op": "u", "after": {"id": key, "balance": balance}, "source": source, "transaction": transaction}
        return self._wrapped({**record, "ts_ms": self.commit})

    def _wrapped(self, value: dict[str, Any]) -> dict[str, Any]:
        return {"schema": {"type": "struct"}, "payload": value} if self.wrapped else value

    def _remember(self, messages: list[Sent]) -> list[Sent]:
        self.sent += messages
        return messages


def _count(events: Sequence[Sent], name: str) -> int:
    return sum(event[0] == name for event in events)


def json_balance(value: bytes) -> tuple[int, int]:
    """Read the account and its balance."""
    record = json.loads(value)
    after = record.get("payload", record)["after"]
    return after["id"], after["balance"]


def require_sums(
    capture: TransactionCapture,
    broker: HasBootstrap,
    total: int,
    read: Callable[[bytes], tuple[int, int]] = json_balance,
) -> int:
    """Check the sum of the bank at every tick, from the messages themselves; return the number of ticks."""
    found = {topic.name: messages(broker, topic.name, len(topic.offsets)) for topic in capture.config.topics}
    ticks = capture.ends()
    for position, ends in ticks.items():
        balances = {
            (name, account): balance
            for name, upto in ends.items()
            for partition, end in enumerate(upto)
            for offset, value in found[name][partition]
            if offset < end and value is not None
            for account, balance in [read(value)]
        }
        assert sum(balances.values()) == total, f"the sum is wrong at tick {position}"
    return len(ticks)


def messages(broker: HasBootstrap, topic: str, partitions: int) -> list[list[tuple[int, bytes | None]]]:
    """Return all messages of a topic, with their offsets."""
    found: list[list[tuple[int, bytes | None]]] = [[] for _ in range(partitions)]
    for message in read_topic(broker.bootstrap, topic):
        found[message.partition() or 0].append((int(message.offset() or 0), message.value()))
    return found
