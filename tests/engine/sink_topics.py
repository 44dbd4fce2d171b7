"""Reads the topics of sinks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from confluent_kafka import Consumer, TopicPartition

from penstock.catalog.store import Catalog
from penstock.testing.waiting import until

__all__ = ["messages", "topic_names", "wait_sink"]


def messages(broker: str, topic: str, isolation: str = "read_committed") -> list[tuple[bytes | None, bytes | None]]:
    """Return the keys and values in a topic, one partition after the other; none if the topic is missing."""
    settings = {"bootstrap.servers": broker, "group.id": "unused", "isolation.level": isolation}
    with closing(Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})) as reader:
        found = reader.list_topics(timeout=10).topics.get(topic)
        partitions = () if found is None else sorted(found.partitions)
        return [message for partition in partitions for message in _partition(reader, topic, partition)]


def _partition(reader: Consumer, topic: str, partition: int) -> Iterator[tuple[bytes | None, bytes | None]]:
    reader.assign([TopicPartition(topic, partition, 0)])
    while True:
        for message in reader.consume(1000, 0.1):
            if message.error() is not None:
                return
            yield message.key(), message.value()


def topic_names(broker: str, prefix: str) -> list[str]:
    """Return the topics whose names begin with a prefix."""
    settings = {"bootstrap.servers": broker, "group.id": "unused"}
    with closing(Consumer(settings)) as reader:
        return sorted(name for name in reader.list_topics(timeout=10).topics if name.startswith(prefix))


def wait_sink(catalog: Catalog, sink: str) -> None:
    """Wait until a sink has started; raise an error if it has one."""

    def is_started() -> bool:
        found = catalog.sinks.get(sink)
        assert found is not None
        assert found.error is None, found.error
        return bool(found.started)

    until(is_started, f"sink {sink} to start")
