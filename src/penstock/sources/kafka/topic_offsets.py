"""A look at topics: which ones they are, and from where to where each of their partitions can be read.

::

    the topics described ─▶ starts and ends of their partitions ─▶ described again: the same? ─▶ Observed
         ▲                                                              │ no
         └──────────────────────────────────────────────────────────────┘

A topic that has the same id and partitions before and after its offsets were asked for was that topic all the while.
The end is where a reader of the source's isolation level gets to: with ``read_committed``, before the first message of
the oldest transaction that is still open.

Brokers that stall make the client tell offsets that are none (`kafka_offsets`): then it is asked again, too.

A topic that is not there is told as such only after it was looked for again and again: brokers that have just started
do not know everything yet.
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
from penstock.kafka_offsets import told_offset
from penstock.sources.kafka.broker_errors import refusal, way_out
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.with_options import IsolationLevel, KafkaWithOptions

__all__ = ["Observed", "TopicsClient"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_REQUEST_SECONDS = 5.0
_AGAIN_SECONDS = 0.1
_CERTAIN_SECONDS = 2.0
"""For so long a topic has to be missing."""
_LATE_SECONDS = 5.0
_NO_ID = Uuid(0, 0)
_EARLIEST: OffsetSpec = EarliestSpec()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = LatestSpec()  # type: ignore[no-untyped-call]
_CONSUMERS = {"group.id", "isolation.level", "enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset"}
"""Settings of clients that read."""
_CONNECTING = {"reconnect.backoff.max.ms": 1000, "log.connection.close": False}


@dataclass(frozen=True)
class Observed:
    """A topic as it was at one moment, by partition."""

    id: str | None
    """Another one where the topic was deleted and made again; None where brokers do not tell."""
    starts: tuple[int, ...]
    """The first offset that is still there."""
    ends: tuple[int, ...]
    """The offset that the next message gets, or the first one of a transaction that is still open."""


class TopicsClient:
    """Looks at topics of one set of brokers; as a context manager it lets go of them at the end."""

    def __init__(
        self,
        what: KafkaSqlOptions,
        how: KafkaWithOptions,
        source: str,
        *,
        patience: float = 5.0,
        statistics: Callable[[str], None] | None = None,
    ) -> None:
        """Make it; `statistics` is told what the client counts (JSON), as often as the options say, while it looks."""
        self._what = what
        self._patience = patience
        self._seconds = min(patience, _REQUEST_SECONDS)
        self._trouble: KafkaError | None = None
        committed = how.isolation_level is IsolationLevel.READ_COMMITTED
        self._isolation = Isolation.READ_COMMITTED if committed else Isolation.READ_UNCOMMITTED
        given = librdkafka_settings(what, how, source)
        settings: dict[str, Any] = {name: value for name, value in given.items() if name not in _CONSUMERS}
        settings |= {**_CONNECTING, "error_cb": self._note, "logger": _LOG}
        settings |= {"stats_cb": statistics} if statistics is not None else {}
        try:
            self._admin = AdminClient(settings)
        except KafkaException as error:
            raise self._explained(error.args[0]) from None

    def look(self, topics: Sequence[str]) -> dict[str, Observed | None]:
        """Look at topics; None for one that is not there."""
        begun = time.monotonic()
        self._admin.poll(0)  # statistics are told in here
        while True:
            found: dict[str, Observed | None] | None = None
            told: KafkaError | None = None
            try:
                found = self._looked(topics)
            except KafkaException as error:
                self._admin.poll(0)  # the callback is called in here, and nowhere else
                told = error.args[0]
            waited = time.monotonic() - begun
            if found is not None and (waited >= _CERTAIN_SECONDS or None not in found.values()):
                self._trouble = None
                return found
            if found is None and (waited >= self._patience or self._is_certain(told)):
                raise self._explained(told)
            time.sleep(_AGAIN_SECONDS)

    def settings(self, topic: str) -> dict[str, str]:
        """Return the settings of a topic, such as cleanup.policy, as they hold for it."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (asked,) = self._admin.describe_configs([resource], request_timeout=self._seconds).values()
        try:
            return {name: str(entry.value) for name, entry in self._answer(asked).items()}
        except KafkaException as error:
            told: KafkaError = error.args[0]
            if told.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                message = f"the settings of the topic {topic} may not be seen: {told.str()}"
                raise DefiniteError(message, "Grant the user describe configs on the topic.") from None
            raise self._explained(told) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admin.__exit__(kind, error, trace)

    def _looked(self, topics: Sequence[str]) -> dict[str, Observed | None] | None:
        """Look once; None where the topics became others meanwhile."""
        before = self._described(topics)
        asked = {topic: found[1] for topic, found in before.items() if found is not None}
        try:
            starts, ends = self._listed(asked, _EARLIEST), self._listed(asked, _LATEST)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # it was there a moment ago
                return None
            raise
        if self._described(topics) != before:
            return None
        return {
            topic: None if found is None else Observed(found[0], starts[topic], ends[topic])
            for topic, found in before.items()
        }

    def _listed(self, asked: Mapping[str, int], which: OffsetSpec) -> dict[str, tuple[int, ...]]:
        places = [TopicPartition(topic, number) for topic, count in asked.items() for number in range(count)]
        answers: dict[TopicPartition, Future[Any]] = {}
        if places:
            answers = self._admin.list_offsets(
                dict.fromkeys(places, which), isolation_level=self._isolation, request_timeout=self._seconds
            )
        offsets = {(at.topic, at.partition): told_offset(self._answer(answer).offset) for at, answer in answers.items()}
        return {topic: tuple(offsets[topic, number] for number in range(count)) for topic, count in asked.items()}

    def _described(self, topics: Sequence[str]) -> dict[str, tuple[str | None, int] | None]:
        """Return id and number of partitions of each topic; None for one that brokers do not know."""
        found: dict[str, tuple[str | None, int] | None] = {}
        asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self._seconds)
        for topic, answer in asked.items():
            try:
                told = self._answer(answer)
                found[topic] = (_identity(told.topic_id), len(told.partitions))
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                found[topic] = None
        return found

    def _answer(self, asked: Future[Any]) -> Any:
        """Wait for an answer; not for one that cannot come any more, as the client cannot log in."""
        late = time.monotonic() + self._seconds + _LATE_SECONDS
        while True:
            try:
                return asked.result(_AGAIN_SECONDS)
            except TimeoutError:
                self._admin.poll(0)
                if self._is_certain(None) or time.monotonic() > late:
                    raise KafkaException(self._trouble or KafkaError(KafkaError._TIMED_OUT)) from None

    def _is_certain(self, told: KafkaError | None) -> bool:
        return any(error is not None and way_out(error) is not None for error in (told, self._trouble))

    def _explained(self, told: KafkaError | None) -> PenstockError:
        if told is None:
            message = f"the brokers {self._what.broker} do not agree on which partitions there are"
            return TransientError(message, "Try again when they are in order.")
        return refusal(self._what.broker, ", ".join(self._what.names()), told, self._trouble)

    def _note(self, error: KafkaError) -> None:
        """Keep what tells most: that a login or handshake failed, and not that all brokers are out of reach since."""
        telling = error.code() != KafkaError._ALL_BROKERS_DOWN
        if self._trouble is None or (telling and way_out(self._trouble) is None):
            self._trouble = error


def _identity(told: Uuid | None) -> str | None:
    return None if told is None or told == _NO_ID else str(told)
