"""What consumers see in the topics of sinks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.catalog.store import Catalog
from penstock.testing.waiting import PATIENCE, until

__all__ = ["Committed", "committed", "topic_names", "wait_sink"]


@dataclass(frozen=True)
class Committed:
    """A committed message."""

    partition: int
    key: bytes | None
    value: bytes | None


def committed(broker: str, topic: str, isolation: str = "read_committed") -> list[Committed]:
    """Return the committed messages of a topic, each partition in order; none if the topic does not exist."""
    settings = {"bootstrap.servers": broker, "group.id": "unused", "isolation.level": isolation, "log_level": 0}
    found: list[Committed] = []
    with closing(Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})) as reader:
        topics = reader.list_topics(timeout=PATIENCE).topics
        left = set(topics[topic].partitions) if topic in topics else set()
        reader.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            for message in reader.consume(1000, 1.0):
                error, partition = message.error(), message.partition()
                if error is None:
                    assert partition is not None
                    found.append(Committed(partition, message.key(), message.value()))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(partition)
    return sorted(found, key=lambda message: message.partition)


def topic_names(broker: str, prefix: str) -> list[str]:
    """Return the topics whose names begin with a prefix."""
    settings = {"bootstrap.servers": broker, "group.id": "unused"}
    with closing(Consumer(settings)) as reader:
        return sorted(name for name in reader.list_topics(timeout=PATIENCE).topics if name.startswith(prefix))


def wait_sink(catalog: Catalog, sink: str) -> None:
    """Wait until a sink has started; raise an error if it has one."""

    def is_started() -> bool:
        found = catalog.sinks.get(sink)
        assert found is not None
        assert found.error is None, found.error
        return bool(found.started)

    until(is_started, f"sink {sink} to start")
