"""Reads a topic from its beginning to its present end, as tests do repeatedly until they find what they wait for.

A consumer waits by default: `consume` until it has all requested messages or its timeout is over, and the broker half a
second for further messages before it reports the end of a partition. Both together made one read take a second.
"""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from penstock.testing.waiting import PATIENCE

__all__ = ["read_topic"]

_SETTINGS = {
    "group.id": "unused",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 10,
    "log_level": 0,
}


def read_topic(broker: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Return the messages of a topic by partition, each in order; none if the topic does not exist."""
    found: list[Message] = []
    with closing(Consumer({**_SETTINGS, "bootstrap.servers": broker, "isolation.level": isolation})) as reader:
        topics = reader.list_topics(timeout=PATIENCE).topics
        left = set(topics[topic].partitions) if topic in topics else set()
        reader.assign([TopicPartition(topic, partition, 0) for partition in left])
        while left:
            if (message := reader.poll(1.0)) is None:
                continue
            if (error := message.error()) is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
    return sorted(found, key=lambda message: message.partition() or 0)
