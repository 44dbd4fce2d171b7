"""A Kafka topic that a test writes, for sources that read topics."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.servers import SharedBroker, unique

from penstock.testing.waiting import PATIENCE


class Topic:
    """A topic that the test writes. Its name is unique and starts with `source`, the source that reads it."""

    def __init__(self, broker: SharedBroker, source: str, partitions: int = 1, **settings: str) -> None:
        self.source = source
        self.name = name = unique(source)
        self._client: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        config = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in settings.items()}}
        self._new_topic = NewTopic(name, partitions, 1, config=config)
        admin = AdminClient(self._client)
        admin.create_topics([self._new_topic])[name].result(PATIENCE)

    def send(self, messages: Iterable[tuple[Any, Any]], partition: int = 0, **options: Any) -> None:
        """Produce keys and values: bytes as they are, None as null, everything else as JSON."""
        producer = Producer({**self._client, "linger.ms": 5, **options})
        for key, value in messages:
            producer.produce(self.name, encoded(value), encoded(key), partition=partition)
        assert producer.flush(PATIENCE) == 0

    def send_aborted(self, messages: Iterable[tuple[Any, Any]]) -> None:
        """Produce messages in an aborted transaction: they occupy offsets, and consumers do not see them."""
        producer = Producer({**self._client, "transactional.id": f"{self.name}-writer"})
        producer.init_transactions(PATIENCE)
        producer.begin_transaction()
        for key, value in messages:
            producer.produce(self.name, encoded(value), encoded(key), partition=0)
        assert producer.flush(PATIENCE) == 0
        producer.abort_transaction(PATIENCE)

    def add_partitions(self, count: int) -> None:
        """Increase the number of partitions."""
        admin = AdminClient(self._client)
        admin.create_partitions([NewPartitions(self.name, count)])[self.name].result(PATIENCE)

    def recreate(self) -> None:
        """Delete the topic and create it again, empty."""
        admin = AdminClient(self._client)
        admin.delete_topics([self.name])[self.name].result(PATIENCE)
        admin.create_topics([self._new_topic])[self.name].result(PATIENCE)

    def remove_before(self, partition: int, offset: int) -> None:
        """Delete the messages before an offset, as retention does."""
        admin = AdminClient(self._client)
        (removed,) = admin.delete_records([TopicPartition(self.name, partition, offset)]).values()
        removed.result(PATIENCE)


def encoded(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
