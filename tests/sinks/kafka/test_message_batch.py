"""Columns of messages in the queue of a producer: the same messages as with the client's own function."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.servers import SharedBroker, unique
from tests.topic_reader import read_topic

from penstock.sinks.kafka import message_batch
from penstock.sinks.kafka.message_batch import produce_columns
from penstock.testing.waiting import PATIENCE

PARTITIONS = 3
Message = tuple[bytes | None, bytes | None]


def created(broker: SharedBroker) -> str:
    topic = unique("batch")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE)
    return topic


def producer(broker: SharedBroker, **settings: Any) -> Producer:
    return Producer(
        {"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random", "log_level": 0, **settings}
    )


def read(broker: SharedBroker, topic: str) -> list[list[Message]]:
    """Return the messages of each partition."""
    found: list[list[Message]] = [[] for _ in range(PARTITIONS)]
    for message in read_topic(broker.bootstrap, topic):
        found[message.partition() or 0].append((message.key(), message.value()))
    return found


def columns(messages: Sequence[Message]) -> tuple[pa.Array, pa.Array]:
    """Return keys and values as slices, after a message that is not part of them."""
    keys, values = ([b"other", *(message[place] for message in messages)] for place in range(2))
    return pa.array(keys, pa.large_binary()).slice(1), pa.array(values, pa.large_binary()).slice(1)


def test_messages_are_those_of_the_client(broker: SharedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    values = [None, b"", b"a" * 100_000, *(rng.randbytes(rng.randrange(20)) for _ in range(997))]
    messages = [(rng.choice([b"", b"k", rng.randbytes(3)]), value) for value in values]
    ours, theirs = created(broker), created(broker)
    sender = producer(broker)
    assert message_batch._address(sender) is not None
    produce_columns(sender, ours, *columns(messages))
    monkeypatch.setattr(message_batch, "_VERSIONS", ())
    assert message_batch._address(sender) is None
    produce_columns(sender, theirs, *columns(messages))
    assert sender.flush(PATIENCE) == 0
    assert read(broker, ours) == read(broker, theirs)
    assert sum(map(len, read(broker, ours))) == len(messages)


def test_messages_without_keys_and_values(broker: SharedBroker) -> None:
    topic, sender = created(broker), producer(broker)
    produce_columns(sender, topic, None, pa.array([b"1", None, b""], pa.large_binary()))
    produce_columns(sender, topic, None, pa.array([], pa.large_binary()))
    produce_columns(sender, topic, pa.array([None, b""], pa.large_binary()), pa.array([b"", b""], pa.large_binary()))
    assert sender.flush(PATIENCE) == 0
    found = sorted((message for part in read(broker, topic) for message in part), key=str)
    assert found == sorted([(None, b"1"), (None, None), (None, b""), (None, b""), (b"", b"")], key=str)


@pytest.mark.parametrize("versions", [message_batch._VERSIONS, ()], ids=["columns", "dictionaries"])
def test_message_that_is_not_accepted(
    broker: SharedBroker, monkeypatch: pytest.MonkeyPatch, versions: tuple[str, ...]
) -> None:
    monkeypatch.setattr(message_batch, "_VERSIONS", versions)
    sender = producer(broker, **{"message.max.bytes": 1000})
    with pytest.raises(KafkaException) as caught:
        produce_columns(sender, created(broker), None, pa.array([b"a", b"a" * 2000], pa.large_binary()))
    assert caught.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    transactional = producer(broker, **{"transactional.id": unique("id")})
    with pytest.raises(KafkaException) as caught:
        produce_columns(transactional, "t", None, pa.array([b"a"], pa.large_binary()))
    assert caught.value.args[0].code() == KafkaError._STATE
