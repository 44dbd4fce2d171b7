"""Recorded messages in a real broker: topics with unique names, and schema ids of a real registry."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.debezium.recording import TRANSACTION, Message, Recording, Topic, schema_id, with_schema_id

from penstock.testing.debezium import Converter

PAUSE = 20
"""Milliseconds without a message."""


class RegistryLike(Protocol):
    """The part of a registry that is needed here."""

    @property
    def url(self) -> str:
        """Its URL."""

    def register(self, subject: str, text: str) -> int:
        """Register a schema under a subject; return its id."""


class BrokerLike(Protocol):
    """The part of a broker that is needed here."""

    @property
    def bootstrap(self) -> str:
        """The bootstrap address."""


class Replay:
    """The topics of one converter, under a unique prefix; `write` writes them to a broker, in parts."""

    def __init__(self, recording: Recording, converter: Converter, registry: RegistryLike) -> None:
        self._prefix = f"replay{uuid.uuid4().hex[:12]}"  # all workers share the broker
        self.recording, self.converter = recording, converter
        self.schemas: dict[int, str] = {}
        """The schemas of Avro messages, by their ids in the registry."""
        self.topics = {table: self._registered(table, registry) for table in [*recording.tables, TRANSACTION]}
        """By table, with the ids of the registry."""
        self._remaining: list[tuple[str, Message]] = sorted(
            ((self.name(table), one) for table, topic in self.topics.items() for one in topic.messages),
            key=lambda named: named[1].at,
        )

    def name(self, table: str) -> str:
        """Return the name of a table's topic."""
        return f"{self._prefix}.{table}"

    @property
    def names(self) -> list[str]:
        """The topics of the tables."""
        return [self.name(table) for table in self.recording.tables]

    @property
    def metadata(self) -> str:
        """The topic with the metadata of transactions."""
        return self.name(TRANSACTION)

    @property
    def remaining(self) -> list[Message]:
        """The messages not yet written."""
        return [one for _, one in self._remaining]

    def create(self, broker: BrokerLike) -> None:
        """Create the topics, empty."""
        admin = AdminClient(_client(broker))
        wanted = [
            NewTopic(self.name(table), topic.partitions, 1, config={"retention.ms": "-1"})
            for table, topic in self.topics.items()
        ]
        for created in admin.create_topics(wanted).values():
            created.result(30)

    def write(self, broker: BrokerLike, count: int | None = None) -> None:
        """Write at least the next `count` messages, or all, in the order in which Debezium wrote them.

        Partitions receive separate requests of Debezium's producer, in any order. So a part ends at a pause of Debezium
        and not within such requests: messages that took a moment there would otherwise arrive seconds late.
        """
        count = len(self._remaining) if count is None else count
        while 0 < count < len(self._remaining) and self._pause_before(count) < PAUSE:
            count += 1
        now, self._remaining = self._remaining[:count], self._remaining[count:]
        producer = Producer({**_client(broker), "linger.ms": 5})
        for name, one in now:
            producer.produce(name, one.value, one.key, partition=one.partition)
        assert producer.flush(30) == 0

    def _pause_before(self, number: int) -> int:
        return self._remaining[number][1].at - self._remaining[number - 1][1].at

    def _registered(self, table: str, registry: RegistryLike) -> Topic:
        topic = self.recording.topics[self.converter, table]
        if self.converter is not Converter.AVRO:
            return topic
        keys = self._ids(f"{self.name(table)}-key", [one.key for one in topic.messages], registry)
        values = self._ids(f"{self.name(table)}-value", [one.value for one in topic.messages], registry)
        changed = (
            replace(one, key=_renumbered(one.key, keys), value=_renumbered(one.value, values)) for one in topic.messages
        )
        return Topic(topic.partitions, tuple(changed))

    def _ids(self, subject: str, parts: list[bytes | None], registry: RegistryLike) -> dict[int, int]:
        """Register the schemas of messages in order of first use; return their ids by recorded id."""
        used = dict.fromkeys(schema_id(part) for part in parts if part is not None)
        found = {number: registry.register(subject, self.recording.schemas[number]) for number in used}
        self.schemas |= {found[number]: self.recording.schemas[number] for number in used}
        return found


def _renumbered(part: bytes | None, ids: Mapping[int, int]) -> bytes | None:
    return None if part is None else with_schema_id(part, ids[schema_id(part)])


def _client(broker: BrokerLike) -> dict[str, Any]:
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0}
