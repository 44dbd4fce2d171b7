"""Topics under capture: made for a test on a real broker, filled, changed, and followed into a log of their own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.servers import HasBootstrap, unique
from tests.sources.running import Captured

from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import TableError
from penstock.positions import Lsn
from penstock.sources.interface import Instance
from penstock.sources.kafka.first_offsets import beginning
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tick_instance import FollowingConfig, FollowingInstance
from penstock.sources.kafka.ticks import OffsetRange, ranges_within, tick_table
from penstock.sources.kafka.topic_start import start_of
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.testing.waiting import PATIENCE


class Topics:
    """A broker's topics, for a test."""

    def __init__(self, broker: HasBootstrap) -> None:
        self.broker = broker
        self.client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.client)
        self.producer = self._producer()

    def make(self, partitions: int = 2, name: str | None = None, config: Mapping[str, str] | None = None) -> str:
        """Make a topic that keeps everything, unless its settings say otherwise; return its name."""
        made = name or unique("followed")
        settings = {"retention.ms": "-1", **(config or {})}
        self.admin.create_topics([NewTopic(made, partitions, 1, config=settings)])[made].result(PATIENCE)
        return made

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(PATIENCE)

    def add_partitions(self, topic: str, count: int) -> None:
        """Let a topic have so many."""
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE)
        self.producer = self._producer()  # the one that is there looks for new ones every few minutes

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove the first messages of a partition."""
        (answer,) = self.admin.delete_records([TopicPartition(topic, partition, before)]).values()
        answer.result(PATIENCE)

    def fill(self, topic: str, *counts: int) -> None:
        """Write so many messages into each partition."""
        for partition, count in enumerate(counts):
            for _ in range(count):
                self.producer.produce(topic, b"m", partition=partition)
        assert self.producer.flush(PATIENCE) == 0

    def transactional(self) -> Producer:
        """Return a producer that writes in transactions."""
        producer = Producer({**self.client, "transactional.id": unique("transactional")})
        producer.init_transactions(PATIENCE)
        return producer

    def _producer(self) -> Producer:
        return Producer({**self.client, "linger.ms": 0})


class Followed(Captured):
    """Topics with their log and their state, in a folder."""

    config: FollowingConfig

    def __init__(self, folder: Path, broker: HasBootstrap, topics: Sequence[str], **options: Any) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.log.create(Lsn.ZERO)
        self.state = folder / "state"
        self._raised = None
        how = KafkaWithOptions.given(**{"timestamp_frequency_ms": 20, **options})
        start, whats = start_of(how, datetime.now(UTC)), [options_of(broker, topic) for topic in topics]
        begun = [beginning(what, how, "clicks", topic, start) for what, topic in zip(whats, topics, strict=True)]
        self.config = FollowingConfig.of("clicks", whats[0], how, begun)

    def instance(self) -> Instance:
        """Make an instance."""
        return FollowingInstance(self.config, self.log, self.state)

    def ticks(self, topic: str, after: int = 0, upto: int | None = None) -> pa.Table:
        """Return the ticks of a topic in a range: position, from, to."""
        with closing(self.log.reader()) as reader:
            extent = reader.extent(tick_table(topic).name, Lsn(after), self.durable() if upto is None else Lsn(upto))
            found = [row for batch in reader.read(extent) for row in batch.to_pylist()]
        columns = {name: [row["row"][name] for row in found] for name in ("from", "to")}
        return pa.table({"at": [row["_lsn"] for row in found], **columns})

    def ranges(self, topic: str, after: int = 0, upto: int | None = None) -> list[OffsetRange]:
        """Return what is to be read for a range, told by as little of the log as is needed."""
        with closing(self.log.reader()) as reader:
            return ranges_within(reader, topic, Lsn(after), self.durable() if upto is None else Lsn(upto))

    def upto(self, topic: str) -> list[int]:
        """Return how far a topic was taken."""
        reached: list[list[int]] = self.ticks(topic).column("to").to_pylist()
        return reached[-1] if reached else []

    def error(self, topic: str) -> TableError | None:
        """Return the error of a topic's ticks."""
        with closing(self.log.reader()) as reader:
            logged = reader.tables().get(tick_table(topic).name)
        return None if logged is None else logged.error

    def ended(self, topic: str) -> TableError:
        """Run until the source has ended; return why."""
        self.run_until(lambda: self.error(topic) is not None)
        error = self.error(topic)
        assert error is not None
        assert "ALTER SOURCES clicks RETRY TABLE clicks; Where that is refused: DROP SOURCES clicks;" in error.hint
        return error


def options_of(broker: HasBootstrap, topic: str) -> KafkaSqlOptions:
    """Name a topic."""
    return KafkaSqlOptions.given(broker=broker.bootstrap, topic=topic, value_format="bytes")


def require_whole(followed: Followed, topic: str) -> None:
    """Each tick goes on where the one before ended, from the first message on; and any range is told by its ends."""
    ticks = followed.ticks(topic).to_pylist()
    at = [0] * len(ticks[0]["from"])
    for tick in ticks:
        assert tick["from"] == at + [0] * (len(tick["to"]) - len(at))
        assert all(first <= last for first, last in zip(tick["from"], tick["to"], strict=True))
        assert tick["to"] != at
        at = tick["to"]
    places = [tick["at"] for tick in ticks]
    assert places == sorted(set(places))
    for after, upto in itertools.combinations(range(0, len(ticks), max(1, len(ticks) // 7)), 2):
        first, last = ticks[after]["from"], ticks[upto - 1]["to"]
        expected = [
            OffsetRange(topic, number, begin, end)
            for number, (begin, end) in enumerate(zip(first + [0] * (len(last) - len(first)), last, strict=True))
            if begin < end
        ]
        assert followed.ranges(topic, places[after] - 1, places[upto - 1]) == expected
