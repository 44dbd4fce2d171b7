"""The topics of a log: created, validated, and truncated.

Kafka's own retention and compaction would remove history that the log guarantees, and several partitions have no order.
So all settings that matter are given explicitly, whatever the brokers' defaults are, and an existing topic is validated
before it is written to.

A log begins with its first record; if two processes write one at the same time, the first counts.

To remove history, the ``state`` record that moves `valid` is written first, then the topics are truncated
(DeleteRecords): a reader in between finds more than was promised, never less. A truncation that fails is repeated with
the next one. Brokers free whole segments, so disk space follows later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock.changelog.kafka.clients import (
    DEFINITE,
    MISSING,
    Delivery,
    Place,
    admin,
    cause_of,
    consumer,
    explained,
    pinning_producer,
)
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.moments import position_at
from penstock.changelog.kafka.payloads import Payloads
from penstock.changelog.kafka.records import Created, messages
from penstock.errors import DefiniteError, TransientError
from penstock.kafka_offsets import told_watermarks
from penstock.positions import Lsn

__all__ = [
    "Cutter",
    "delete_topics",
    "is_begun",
    "message_limit",
    "next_valid",
    "require_topics",
    "topics_exist",
    "write_beginning",
]

_PATIENCE = 30.0
_COPIES = 3
_SMALLEST_LIMIT = 64 << 10
_KEEPING = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Without these, history is lost."""
_MADE_WITH = {
    **_KEEPING,
    "max.message.bytes": "1048588",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "compression.type": "producer",
}
_SEGMENTS = {"index": str(32 << 20), "data": str(128 << 20)}
"""Space is freed by the segment."""


def require_topics(place: Place) -> None:
    """Make the topics that are not there; refuse those that are there and would lose history."""
    with _asking(place, "made") as client:
        copies = min(_COPIES, len(client.list_topics(timeout=_PATIENCE).brokers))
        wanted = [_new_topic(name, copies) for name in (place.index, place.data)]
        made = client.create_topics(wanted, request_timeout=_PATIENCE)
        _await(made, {KafkaError.TOPIC_ALREADY_EXISTS})
        _await_found(client, place, 2)
    message_limit(place)


def topics_exist(place: Place, patience: float | None = None) -> bool:
    """Say whether both topics are there."""
    with _asking(place, "found") as client:
        return len(_found(client, place, patience)) == 2


def delete_topics(place: Place) -> None:
    """Delete those that are there, and return when they are gone."""
    with _asking(place, "removed") as client:
        deleted = client.delete_topics([place.index, place.data], request_timeout=_PATIENCE)
        _await(deleted, {KafkaError.UNKNOWN_TOPIC_OR_PART})
        _await_found(client, place, 0)


def message_limit(place: Place) -> int:
    """Check both topics, and return how many bytes a message may have in either."""
    with _asking(place, "opened") as client:
        for name, partitions in _found(client, place).items():
            _check_partitions(name, partitions)
        return min(_checked_limit(name, _settings(client, name)) for name in (place.index, place.data))


@contextmanager
def _asking(place: Place, doing: str) -> Iterator[AdminClient]:
    """Give a client, and turn its errors into ours."""
    client = admin(place)
    try:
        yield client
    except KafkaException as error:
        client.poll(0)  # what it has to say of its connections
        raise explained(place, doing, cause_of(error)) from error


def _new_topic(name: str, copies: int) -> NewTopic:
    segment = _SEGMENTS[name.rpartition(".")[2]]
    config = {**_MADE_WITH, "segment.bytes": segment, "min.insync.replicas": str(max(1, copies - 1))}
    return NewTopic(name, num_partitions=1, replication_factor=copies, config=config)


def _await(asked: dict[str, Future[None]], tolerated: set[int]) -> None:
    """Wait for answers; let those pass that say that there is nothing to do."""
    for answer in asked.values():
        try:
            answer.result()
        except KafkaException as error:
            if cause_of(error).code() not in tolerated:
                raise


def _found(client: AdminClient, place: Place, patience: float | None = None) -> dict[str, int]:
    """Return the topics that are there, with their number of partitions."""
    found: dict[str, int] = {}
    asked = client.describe_topics(TopicCollection([place.index, place.data]), request_timeout=patience or _PATIENCE)
    for name, answer in asked.items():
        try:
            found[name] = len(answer.result().partitions)
        except KafkaException as error:
            if cause_of(error).code() not in MISSING:
                raise
    return found


def _await_found(client: AdminClient, place: Place, count: int) -> None:
    """Wait until brokers know what the controller has decided; a topic that is known has a leader."""
    deadline = time.monotonic() + _PATIENCE
    while len(found := _found(client, place)) != count or 0 in found.values():
        if time.monotonic() > deadline:
            message = f"the topics of {place.name} were asked for, and the brokers do not agree on them"
            raise TransientError(message, "Try again when the brokers are in order.")
        time.sleep(0.02)


def _settings(client: AdminClient, name: str) -> dict[str, str]:
    [answer] = client.describe_configs([ConfigResource(ResourceType.TOPIC, name)], request_timeout=_PATIENCE).values()
    return {key: str(entry.value) for key, entry in answer.result().items()}


def _check_partitions(name: str, partitions: int) -> None:
    if partitions != 1:
        message = f"the topic {name} has {partitions} partitions, and there is no order between them"
        raise DefiniteError(message, "Delete it, or name another prefix in the log's URL.")


def _checked_limit(name: str, settings: dict[str, str]) -> int:
    for key, wanted in _KEEPING.items():
        if settings[key] != wanted:
            message = f"the topic {name} has {key}={settings[key]}: the brokers would remove what the log has to keep"
            hint = f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {key}={wanted}"
            raise DefiniteError(message, f"Set it: {hint}")
    limit = int(settings["max.message.bytes"])
    if limit < _SMALLEST_LIMIT:
        message = f"the topic {name} takes messages of {limit} bytes at most"
        hint = f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config max.message.bytes="
        raise DefiniteError(message, f"Set it higher: {hint}1048588")
    return limit


_LIMIT = 1000


def is_begun(place: Place) -> bool:
    """Say whether there is a first record, or was one: an index that was cut is not empty either."""
    deadline = time.monotonic() + _PATIENCE
    with closing(consumer(place)) as client:
        while True:
            try:
                return told_watermarks(client.get_watermark_offsets(TopicPartition(place.index, 0), timeout=5))[1] > 0
            except KafkaException as error:  # a topic that was just made is known before it has a leader
                told = explained(place, "found", cause_of(error))
                if time.monotonic() > deadline or isinstance(told, DefiniteError):
                    raise told from error
                time.sleep(0.05)


def write_beginning(place: Place, start: Lsn, now: int) -> None:
    """Write the first record of a log whose history begins after `start`."""
    client, told = pinning_producer(place), Delivery()
    [value] = messages(Created(0, start, now), _LIMIT)
    try:
        client.produce(place.index, value, partition=0, on_delivery=told)
        client.flush(_PATIENCE)
        told.offset()
    except KafkaException as error:
        raise explained(place, "made", cause_of(error)) from error


def next_valid(index: Index, payloads: Payloads, since: int, now: int) -> int:
    """Return how far `valid` may move: to a time, and not beyond a pin."""
    wanted = position_at(index, payloads, since)
    if wanted is None:
        return index.valid
    return max(index.valid, min(wanted, *(pin.at for pin in index.pins(now)), index.durable))


class Cutter:
    """Removes what lies before given offsets of index and data; once for each."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: AdminClient | None = None
        self._cut = (0, 0)

    def cut(self, index: int, data: int) -> None:
        """Let both topics begin at these offsets."""
        if (index, data) == self._cut:
            return
        if self._client is None:
            self._client = admin(self._place)
        wanted = [TopicPartition(self._place.index, 0, index), TopicPartition(self._place.data, 0, data)]
        try:
            for done in self._client.delete_records(wanted, request_timeout=_PATIENCE).values():
                done.result()
            self._cut = (index, data)
        except KafkaException as error:
            if cause_of(error).code() in DEFINITE:
                raise explained(self._place, "shortened", cause_of(error)) from error
