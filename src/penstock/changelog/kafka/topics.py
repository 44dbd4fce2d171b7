"""The topics of a log: created, validated, and truncated.

Kafka's own retention and compaction would remove history that the log guarantees, and several partitions have no order.
All relevant settings are therefore explicit, independent of the brokers' defaults, and an existing topic is validated
before it is written to.

A log begins with its first record; if two processes write one at the same time, the first counts.

To remove history, the writer first writes the ``state`` record that advances `valid`, then truncates the topics
(DeleteRecords): a reader in between finds more than is guaranteed, never less. A truncation that fails is repeated with
the next one. Brokers free whole segments, so disk space is released later.
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
    LogLocation,
    admin,
    cause_of,
    consumer,
    plain_producer,
    translated_error,
)
from penstock.changelog.kafka.commit_times import position_at
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import Created, Payloads, messages
from penstock.errors import DefiniteError, TransientError
from penstock.kafka_offsets import require_watermarks
from penstock.positions import Lsn

__all__ = [
    "TopicTruncator",
    "delete_topics",
    "has_first_record",
    "message_limit",
    "next_valid",
    "require_topics",
    "topics_exist",
    "write_first_record",
]

_TIMEOUT = 30.0
_REPLICAS = 3
_SMALLEST_LIMIT = 64 << 10
_RETENTION = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Other values would lose history."""
_TOPIC_CONFIG = {
    **_RETENTION,
    "max.message.bytes": "1048588",
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
    "compression.type": "producer",
}
_SEGMENTS = {"index": str(32 << 20), "data": str(128 << 20)}
"""Brokers free space by whole segments."""


def require_topics(location: LogLocation) -> None:
    """Create the missing topics; reject existing ones that would lose history."""
    with _admin_client(location, "created") as client:
        replicas = min(_REPLICAS, len(client.list_topics(timeout=_TIMEOUT).brokers))
        wanted = [_new_topic(name, replicas) for name in (location.index, location.data)]
        created = client.create_topics(wanted, request_timeout=_TIMEOUT)
        _await_results(created, {KafkaError.TOPIC_ALREADY_EXISTS})
        _await_topics(client, location, 2)
    message_limit(location)


def topics_exist(location: LogLocation, timeout: float | None = None) -> bool:
    """Return whether both topics exist."""
    with _admin_client(location, "found") as client:
        return len(_find_topics(client, location, timeout)) == 2


def delete_topics(location: LogLocation) -> None:
    """Delete the topics that exist, and wait until they are gone."""
    with _admin_client(location, "removed") as client:
        deleted = client.delete_topics([location.index, location.data], request_timeout=_TIMEOUT)
        _await_results(deleted, {KafkaError.UNKNOWN_TOPIC_OR_PART})
        _await_topics(client, location, 0)


def message_limit(location: LogLocation) -> int:
    """Validate both topics, and return the largest message size in bytes that both accept."""
    with _admin_client(location, "opened") as client:
        for name, partitions in _find_topics(client, location).items():
            _check_partitions(name, partitions)
        return min(_checked_limit(name, _settings(client, name)) for name in (location.index, location.data))


@contextmanager
def _admin_client(location: LogLocation, doing: str) -> Iterator[AdminClient]:
    """Provide an admin client and translate its errors."""
    client = admin(location)
    try:
        yield client
    except KafkaException as error:
        client.poll(0)  # delivers its connection errors
        raise translated_error(location, doing, cause_of(error)) from error


def _new_topic(name: str, replicas: int) -> NewTopic:
    segment = _SEGMENTS[name.rpartition(".")[2]]
    config = {**_TOPIC_CONFIG, "segment.bytes": segment, "min.insync.replicas": str(max(1, replicas - 1))}
    return NewTopic(name, num_partitions=1, replication_factor=replicas, config=config)


def _await_results(results: dict[str, Future[None]], tolerated: set[int]) -> None:
    """Wait for all results; ignore tolerated errors, which mean that nothing was left to do."""
    for result in results.values():
        try:
            result.result()
        except KafkaException as error:
            if cause_of(error).code() not in tolerated:
                raise


def _find_topics(client: AdminClient, location: LogLocation, timeout: float | None = None) -> dict[str, int]:
    """Return the topics that exist, with their number of partitions."""
    found: dict[str, int] = {}
    results = client.describe_topics(
        TopicCollection([location.index, location.data]), request_timeout=timeout or _TIMEOUT
    )
    for name, answer in results.items():
        try:
            found[name] = len(answer.result().partitions)
        except KafkaException as error:
            if cause_of(error).code() not in MISSING:
                raise
    return found


def _await_topics(client: AdminClient, location: LogLocation, count: int) -> None:
    """Wait until the brokers have applied the controller's decision and each topic has a leader."""
    deadline = time.monotonic() + _TIMEOUT
    while len(found := _find_topics(client, location)) != count or 0 in found.values():
        if time.monotonic() > deadline:
            message = f"timeout while waiting for the brokers to create or delete the topics of {location.name}"
            raise TransientError(message, "Check that all brokers are running, then retry.")
        time.sleep(0.02)


def _settings(client: AdminClient, name: str) -> dict[str, str]:
    [answer] = client.describe_configs([ConfigResource(ResourceType.TOPIC, name)], request_timeout=_TIMEOUT).values()
    return {key: str(entry.value) for key, entry in answer.result().items()}


def _check_partitions(name: str, partitions: int) -> None:
    if partitions != 1:
        message = f"the topic {name} has {partitions} partitions, but a change log requires exactly one"
        raise DefiniteError(message, "Delete the topic, or use another prefix in the log's URL.")


def _checked_limit(name: str, settings: dict[str, str]) -> int:
    for key, wanted in _RETENTION.items():
        if settings[key] != wanted:
            message = f"the topic {name} has {key}={settings[key]}: the brokers would remove history that the log needs"
            raise DefiniteError(message, _set_config(name, f"{key}={wanted}"))
    limit = int(settings["max.message.bytes"])
    if limit < _SMALLEST_LIMIT:
        message = f"the topic {name} accepts messages of at most {limit} bytes, which is too small for a change log"
        raise DefiniteError(message, _set_config(name, "max.message.bytes=1048588"))
    return limit


def _set_config(topic: str, setting: str) -> str:
    return (
        f"Run: kafka-configs.sh --bootstrap-server BROKER --alter --entity-type topics --entity-name {topic}"
        f" --add-config {setting}"
    )


_LIMIT = 1000


def has_first_record(location: LogLocation) -> bool:
    """Return whether the log has, or had, a first record: the end offset of a truncated index is not 0 either."""
    deadline = time.monotonic() + _TIMEOUT
    with closing(consumer(location)) as client:
        while True:
            try:
                return (
                    require_watermarks(client.get_watermark_offsets(TopicPartition(location.index, 0), timeout=5))[1]
                    > 0
                )
            except KafkaException as error:  # a new topic is known before it has a leader
                translated = translated_error(location, "found", cause_of(error))
                if time.monotonic() > deadline or isinstance(translated, DefiniteError):
                    raise translated from error
                time.sleep(0.05)


def write_first_record(location: LogLocation, start: Lsn, now: int) -> None:
    """Write the first record of a log whose history begins after `start`."""
    client, delivery = plain_producer(location), Delivery()
    [value] = messages(Created(0, start, now), _LIMIT)
    try:
        client.produce(location.index, value, partition=0, on_delivery=delivery)
        client.flush(_TIMEOUT)
        delivery.offset()
    except KafkaException as error:
        raise translated_error(location, "created", cause_of(error)) from error


def next_valid(index: Index, payloads: Payloads, since: int, now: int) -> int:
    """Return the position to which `valid` may advance: up to a time, but not past a lease."""
    wanted = position_at(index, payloads, since)
    if wanted is None:
        return index.valid
    return max(index.valid, min(wanted, *(lease.at for lease in index.leases(now)), index.durable))


class TopicTruncator:
    """Truncates the index and data topics; a repeated call with the same offsets does nothing."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._client: AdminClient | None = None
        self._truncated_to = (0, 0)

    def truncate(self, index: int, data: int) -> None:
        """Delete the records before these offsets."""
        if (index, data) == self._truncated_to:
            return
        if self._client is None:
            self._client = admin(self._location)
        wanted = [TopicPartition(self._location.index, 0, index), TopicPartition(self._location.data, 0, data)]
        try:
            for done in self._client.delete_records(wanted, request_timeout=_TIMEOUT).values():
                done.result()
            self._truncated_to = (index, data)
        except KafkaException as error:
            if cause_of(error).code() in DEFINITE:
                raise translated_error(self._location, "truncated", cause_of(error)) from error
