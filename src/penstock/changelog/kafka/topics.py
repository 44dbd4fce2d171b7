"""The topics of a log: how they are made, and what is refused of those that are there.

Kafka's own retention and compaction would remove history that the log promises, and several partitions have no order.
So the settings that matter are given in full, whatever the brokers' defaults are; and a topic that somebody else has
made, or changed, is looked at before it is written to.
"""

from __future__ import annotations

import time
from concurrent.futures import Future

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock.changelog.kafka.clients import MISSING, Place, admin, cause_of, explained
from penstock.errors import DefiniteError, TransientError

__all__ = ["delete_topics", "message_limit", "require_topics", "topics_exist"]

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
    client = admin(place)
    try:
        copies = min(_COPIES, len(client.list_topics(timeout=_PATIENCE).brokers))
        wanted = [_new_topic(name, copies) for name in (place.index, place.data)]
        made = client.create_topics(wanted, request_timeout=_PATIENCE)
        _await(made, {KafkaError.TOPIC_ALREADY_EXISTS})
        _await_found(client, place, 2)
    except KafkaException as error:
        raise explained(place, "made", cause_of(error)) from error
    message_limit(place)


def topics_exist(place: Place) -> bool:
    """Say whether both topics are there."""
    try:
        return len(_found(admin(place), place)) == 2
    except KafkaException as error:
        raise explained(place, "found", cause_of(error)) from error


def delete_topics(place: Place) -> None:
    """Delete those that are there, and return when they are gone."""
    client = admin(place)
    try:
        deleted = client.delete_topics([place.index, place.data], request_timeout=_PATIENCE)
        _await(deleted, {KafkaError.UNKNOWN_TOPIC_OR_PART})
        _await_found(client, place, 0)
    except KafkaException as error:
        raise explained(place, "removed", cause_of(error)) from error


def message_limit(place: Place) -> int:
    """Check both topics, and return how many bytes a message may have in either."""
    client = admin(place)
    try:
        for name, partitions in _found(client, place).items():
            _check_partitions(name, partitions)
        return min(_checked_limit(name, _settings(client, name)) for name in (place.index, place.data))
    except KafkaException as error:
        raise explained(place, "opened", cause_of(error)) from error


def _new_topic(name: str, copies: int) -> NewTopic:
    segment = _SEGMENTS[name.rpartition(".")[2]]
    config = {**_MADE_WITH, "segment.bytes": segment, "min.insync.replicas": str(max(1, copies - 1))}
    return NewTopic(name, num_partitions=1, replication_factor=copies, config=config)


def _await(asked: dict[str, Future[None]], tolerated: set[int]) -> None:
    """Wait for answers; let those pass that say that there is nothing to do."""
    for answer in asked.values():
        try:
            answer.result(_PATIENCE)
        except KafkaException as error:
            if cause_of(error).code() not in tolerated:
                raise


def _found(client: AdminClient, place: Place) -> dict[str, int]:
    """Return the topics that are there, with their number of partitions."""
    found: dict[str, int] = {}
    asked = client.describe_topics(TopicCollection([place.index, place.data]), request_timeout=_PATIENCE)
    for name, answer in asked.items():
        try:
            found[name] = len(answer.result(_PATIENCE).partitions)
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
    return {key: str(entry.value) for key, entry in answer.result(_PATIENCE).items()}


def _check_partitions(name: str, partitions: int) -> None:
    if partitions != 1:
        message = f"the topic {name} has {partitions} partitions, and there is no order between them"
        raise DefiniteError(message, "Delete it, or name another prefix in the log's URL.")


def _checked_limit(name: str, settings: dict[str, str]) -> int:
    for key, wanted in _KEEPING.items():
        if settings[key] != wanted:
            message = f"the topic {name} has {key}={settings[key]}: the brokers would remove what the log has to keep"
            remedy = f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {key}={wanted}"
            raise DefiniteError(message, f"Set it: {remedy}")
    limit = int(settings["max.message.bytes"])
    if limit < _SMALLEST_LIMIT:
        message = f"the topic {name} takes messages of {limit} bytes at most"
        remedy = f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config max.message.bytes="
        raise DefiniteError(message, f"Set it higher: {remedy}1048588")
    return limit
