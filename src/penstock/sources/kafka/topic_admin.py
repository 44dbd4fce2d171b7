"""Describe topics: their ids, and the first and last offsets of their partitions.

::

    describe topics ─▶ list first and last offsets ─▶ describe again: the same? ─▶ TopicState
         ▲                                                  │ no
         └──────────────────────────────────────────────────┘

If a topic has the same id and partitions before and after its offsets were listed, all offsets belong to that topic.
The end is the offset that a reader with the source's isolation level reaches: with ``read_committed``, it is before the
first message of the oldest open transaction.

If brokers stall, the client may report invalid offsets (`kafka_offsets`): then the request is retried, too.

A topic is reported as missing only after repeated requests: brokers that have just started do not know all topics yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import IsolationLevel as Isolation
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec

from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.kafka_offsets import require_offset
from penstock.sources.kafka.broker_errors import broker_error, permanent_hint
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import IsolationLevel, KafkaWithOptions

__all__ = ["TopicAdmin", "TopicState"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_REQUEST_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
_CERTAIN_SECONDS = 2.0
"""A topic counts as missing after this time."""
_LATE_SECONDS = 5.0
_NO_ID = Uuid(0, 0)
_EARLIEST: OffsetSpec = EarliestSpec()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = LatestSpec()  # type: ignore[no-untyped-call]
_CONSUMER_SETTINGS = {
    "group.id",
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
}
"""Settings that only consumers accept."""
_CONNECTING = {"reconnect.backoff.max.ms": 1000, "log.connection.close": False}


@dataclass(frozen=True)
class TopicState:
    """A topic at one moment; offsets are by partition."""

    id: str | None
    """Changes if the topic is deleted and recreated; None if brokers do not report it."""
    starts: tuple[int, ...]
    """The first available offset."""
    ends: tuple[int, ...]
    """The offset of the next message, or of the first message of an open transaction."""


class TopicAdmin:
    """Describes topics of one cluster; as a context manager it closes its connections."""

    def __init__(
        self,
        what: KafkaSqlOptions,
        how: KafkaWithOptions,
        source: str,
        *,
        patience: float = 5.0,
        statistics: Callable[[str], None] | None = None,
    ) -> None:
        """Create the client.

        While the client polls, `statistics` receives client statistics (JSON) at the interval in the options.
        """
        self._what = what
        self._patience = patience
        self._seconds = min(patience, _REQUEST_SECONDS)
        self._connection_error: KafkaError | None = None
        committed = how.isolation_level is IsolationLevel.READ_COMMITTED
        self._isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        given = librdkafka_settings(what, how, source)
        settings: dict[str, Any] = {name: value for name, value in given.items() if name not in _CONSUMER_SETTINGS}
        settings |= {**_CONNECTING, "error_cb": self._store_error, "logger": _LOG}
        settings |= {"stats_cb": statistics} if statistics is not None else {}
        try:
            self._admin = AdminClient(settings)
        except KafkaException as error:
            raise self._to_penstock_error(error.args[0]) from None

    def describe(self, topics: Sequence[str]) -> dict[str, TopicState | None]:
        """Describe topics; return None for a topic that does not exist."""
        begun = time.monotonic()
        self._admin.poll(0)  # the statistics callback runs here
        while True:
            found: dict[str, TopicState | None] | None = None
            reported: KafkaError | None = None
            try:
                found = self._describe_once(topics)
            except KafkaException as error:
                self._admin.poll(0)  # the error callback runs only in poll
                reported = error.args[0]
            waited = time.monotonic() - begun
            if found is not None and (waited >= _CERTAIN_SECONDS or None not in found.values()):
                self._connection_error = None
                return found
            if found is None and (waited >= self._patience or self._is_certain(reported)):
                raise self._to_penstock_error(reported)
            time.sleep(_AGAIN_SECONDS)

    def settings(self, topic: str) -> dict[str, str]:
        """Return the effective settings of a topic, such as cleanup.policy."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (asked,) = self._admin.describe_configs([resource], request_timeout=self._seconds).values()
        try:
            return {name: str(entry.value) for name, entry in self._answer(asked).items()}
        except KafkaException as error:
            reported: KafkaError = error.args[0]
            if reported.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                message = f"permission denied for the settings of topic {topic}: {reported.str()}"
                raise DefiniteError(message, "Grant the user DESCRIBE_CONFIGS on the topic.") from None
            raise self._to_penstock_error(reported) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.__exit__(kind, error, trace)

    def _describe_once(self, topics: Sequence[str]) -> dict[str, TopicState | None] | None:
        """Describe topics once; return None if they changed meanwhile."""
        before = self._describe_topics(topics)
        asked = {topic: found[1] for topic, found in before.items() if found is not None}
        try:
            starts, ends = self._list_offsets(asked, _EARLIEST), self._list_offsets(asked, _LATEST)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # it was deleted after it was described
                return None
            raise
        if self._describe_topics(topics) != before:
            return None
        return {
            topic: None if found is None else TopicState(found[0], starts[topic], ends[topic])
            for topic, found in before.items()
        }

    def _list_offsets(self, asked: Mapping[str, int], which: OffsetSpec) -> dict[str, tuple[int, ...]]:
        places = [TopicPartition(topic, number) for topic, count in asked.items() for number in range(count)]
        answers: dict[TopicPartition, Future[Any]] = {}
        if places:
            answers = self._admin.list_offsets(
                dict.fromkeys(places, which), isolation_level=self._isolation, request_timeout=self._seconds
            )
        offsets = {
            (at.topic, at.partition): require_offset(self._answer(answer).offset) for at, answer in answers.items()
        }
        return {topic: tuple(offsets[topic, number] for number in range(count)) for topic, count in asked.items()}

    def _describe_topics(self, topics: Sequence[str]) -> dict[str, tuple[str | None, int] | None]:
        """Return id and number of partitions of each topic; None for one that brokers do not know."""
        found: dict[str, tuple[str | None, int] | None] = {}
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._seconds)
        for topic, answer in asked.items():
            try:
                description = self._answer(answer)
                found[topic] = (_identity(description.topic_id), len(description.partitions))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                found[topic] = None
        return found

    def _answer(self, asked: Future[Any]) -> Any:
        """Wait for an answer; stop waiting if the client cannot log in."""
        late = time.monotonic() + self._seconds + _LATE_SECONDS
        while True:
            try:
                return asked.result(_AGAIN_SECONDS)
            except TimeoutError:
                self._admin.poll(0)
                if self._is_certain(None) or time.monotonic() > late:
                    raise KafkaException(self._connection_error or KafkaError(KafkaError._TIMED_OUT)) from None

    def _is_certain(self, reported: KafkaError | None) -> bool:
        return any(
            error is not None and permanent_hint(error) is not None for error in (reported, self._connection_error)
        )

    def _to_penstock_error(self, reported: KafkaError | None) -> PenstockError:
        if reported is None:
            message = f"brokers {self._what.broker} report inconsistent partitions"
            return TransientError(message, "Retry when the cluster is stable.")
        return broker_error(self._what.broker, ", ".join(self._what.names()), reported, self._connection_error)

    def _store_error(self, error: KafkaError) -> None:
        """Store the most specific error: a failed login or handshake, not the unreachable brokers that follow."""
        telling = error.code() != KafkaError._ALL_BROKERS_DOWN
        if self._connection_error is None or (telling and permanent_hint(self._connection_error) is None):
            self._connection_error = error


def _identity(topic_id: Uuid | None) -> str | None:
    return None if topic_id is None or topic_id == _NO_ID else str(topic_id)
