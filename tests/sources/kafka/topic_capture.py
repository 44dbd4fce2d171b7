"""Capture of topics: created for a test on a real broker, filled, changed, and captured into a log of their own."""

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
from tests.sources.source_capture import SourceCapture

from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import TableError
from penstock.positions import Lsn
from penstock.sources.interface import Instance
from penstock.sources.kafka.creation import resolve_start
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tick_instance import TickConfig, TickInstance
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
        """Create a topic, by default with unlimited retention; return its name."""
        topic_name = name or unique("captured")
        settings = {"retention.ms": "-1", **(config or {})}
        self.admin.create_topics([NewTopic(topic_name, partitions, 1, config=settings)])[topic_name].result(PATIENCE)
        return topic_name

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.admin.delete_topics([topic])[topic].result(PATIENCE)

    def add_partitions(self, topic: str, count: int) -> None:
        """Increase the number of partitions of a topic."""
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(PATIENCE)
        self.producer = self._producer()  # the previous producer refreshes its metadata only every few minutes

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Remove the first messages of a partition."""
        (deleted,) = self.admin.delete_records([TopicPartition(topic, partition, before)]).values()
        deleted.result(PATIENCE)

    def fill(self, topic: str, *counts: int) -> None:
        """Write `counts` messages to the partitions."""
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


class TopicCapture(SourceCapture):
    """Topics with their log and their state, in a folder."""

    config: TickConfig

    def __init__(self, folder: Path, broker: HasBootstrap, topics: Sequence[str], **options: Any) -> None:
        self.log = SqliteLog(folder / "log.db")
        self.log.create(Lsn.ZERO)
        self.state = folder / "state"
        self._raised = None
        how = KafkaWithOptions.given(**{"timestamp_frequency_ms": 20, **options})
        start, whats = start_of(how, datetime.now(UTC)), [options_of(broker, topic) for topic in topics]
        starts = [resolve_start(what, how, "clicks", topic, start) for what, topic in zip(whats, topics, strict=True)]
        self.config = TickConfig.of("clicks", whats[0], how, starts)

    def instance(self) -> Instance:
        """Create an instance."""
        return TickInstance(self.config, self.log, self.state)

    def ticks(self, topic: str, after: int = 0, upto: int | None = None) -> pa.Table:
        """Return the ticks of a topic in a range: position, from, to."""
        with closing(self.log.reader()) as reader:
            extent = reader.extent(tick_table(topic).name, Lsn(after), self.durable() if upto is None else Lsn(upto))
            found = [row for batch in reader.read(extent) for row in batch.to_pylist()]
        columns = {name: [row["row"][name] for row in found] for name in ("from", "to")}
        return pa.table({"at": [row["_lsn"] for row in found], **columns})

    def ranges(self, topic: str, after: int = 0, upto: int | None = None) -> list[OffsetRange]:
        """Return the offset ranges of a range of ticks, from as little of the log as is needed."""
        with closing(self.log.reader()) as reader:
            return ranges_within(reader, topic, Lsn(after), self.durable() if upto is None else Lsn(upto))

    def upto(self, topic: str) -> list[int]:
        """Return the offsets up to which a topic was captured."""
        reached: list[list[int]] = self.ticks(topic).column("to").to_pylist()
        return reached[-1] if reached else []

    def error(self, topic: str) -> TableError | None:
        """Return the error of a topic's ticks."""
        with closing(self.log.reader()) as reader:
            logged = reader.tables().get(tick_table(topic).name)
        return None if logged is None else logged.error

    def wait_for_error(self, topic: str) -> TableError:
        """Run until the source has a permanent error; return it."""
        self.run_until(lambda: self.error(topic) is not None)
        error = self.error(topic)
        assert error is not None
        assert "ALTER SOURCES clicks RETRY TABLE clicks; If that is rejected: DROP SOURCES clicks;" in error.hint
        return error


def options_of(broker: HasBootstrap, topic: str) -> KafkaSqlOptions:
    """Return the options for a topic."""
    return KafkaSqlOptions.given(broker=broker.bootstrap, topic=topic, value_format="bytes")


def require_contiguous(capture: TopicCapture, topic: str) -> None:
    """Check that each tick starts where the previous one ends, and that a range follows from its end ticks."""
    ticks = capture.ticks(topic).to_pylist()
    at = [0] * len(ticks[0]["from"])
    for tick in ticks:
        assert tick["from"] == at + [0] * (len(tick["to"]) - len(at))
        assert all(first <= last for first, last in zip(tick["from"], tick["to"], strict=True))
        assert tick["to"] != at
        at = tick["to"]
    positions = [tick["at"] for tick in ticks]
    assert positions == sorted(set(positions))
    for after, upto in itertools.combinations(range(0, len(ticks), max(1, len(ticks) // 7)), 2):
        first, last = ticks[after]["from"], ticks[upto - 1]["to"]
        expected = [
            OffsetRange(topic, number, begin, end)
            for number, (begin, end) in enumerate(zip(first + [0] * (len(last) - len(first)), last, strict=True))
            if begin < end
        ]
        assert capture.ranges(topic, positions[after] - 1, positions[upto - 1]) == expected
