"""Inspect topics: their ids and offsets, their settings, and the errors of Kafka clients that prevent it.

::

    describe topics ─▶ list first and last offsets ─▶ describe again: the same? ─▶ TopicState
         ▲                                                  │ no
         └──────────────────────────────────────────────────┘

If a topic has the same id and partitions before and after its offsets were listed, all offsets belong to that topic.
The end is the offset that a reader with the source's isolation level reaches: with ``read_committed``, it is before the
first message of the oldest open transaction.

If brokers stall, the client may report invalid offsets (`kafka_offsets`): then the request is retried, too.

A topic is reported as missing only after repeated requests: brokers that have just started do not know all topics yet.

The settings of a topic are checked against the needs of a source; each finding contains the command that fixes it.

===========================  ==================================================================================
``cleanup.policy``           DEBEZIUM needs every record. UPSERT needs the latest of each key, which ``delete`` removes
``message.timestamp.type``   if ``timestamp_type`` is broker
``unclean.leader.election``  messages that were already read may be lost
===========================  ==================================================================================

Errors of both Kafka clients are transient or permanent, with a hint. Errors of librdkafka have codes. Errors of the
Java client arrive as the text of a Spark exception with a stack of causes; the one that matters is found by its name.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from confluent_kafka import IsolationLevel as Isolation
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import EarliestSpec, LatestSpec, OffsetSpec

from penstock.envelopes.upstream_positions import reject_compacted
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.kafka_offsets import require_offset
from penstock.sources.findings import Finding, error, warning
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.with_options import IsolationLevel, KafkaWithOptions, TimestampType

__all__ = [
    "TopicAdmin",
    "TopicState",
    "broker_error",
    "needs_settings",
    "permanent_hint",
    "setting_findings",
    "spark_error",
]

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


# -- settings ----------------------------------------------------------------------------------------------------------

_BY_KEY = (EnvelopeKind.UPSERT, EnvelopeKind.DEBEZIUM_UPSERT)
_STAMPED = "LogAppendTime"
_FOR_EVER = "-1"


def needs_settings(what: KafkaSqlOptions, how: KafkaWithOptions) -> bool:
    """Return whether a source cannot be created without reading the settings of its topics."""
    return what.envelope.kind is EnvelopeKind.DEBEZIUM or how.timestamp_type is TimestampType.BROKER


def setting_findings(
    what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the problems with the settings of a topic."""
    policy = settings.get("cleanup.policy", "")
    if what.envelope.kind is EnvelopeKind.DEBEZIUM:
        try:
            reject_compacted(topic, policy)
        except UsageError as failure:
            yield error(topic, failure.message, f"{failure.hint[:1].upper()}{failure.hint[1:]}.")
    if how.timestamp_type is TimestampType.BROKER and settings.get("message.timestamp.type") != _STAMPED:
        why = f"timestamp_type is broker, but topic {topic} stores the timestamps of producers"
        yield error(topic, why, f"Run: {_command(what, topic, f'message.timestamp.type={_STAMPED}')}")
    if what.envelope.kind in _BY_KEY and "compact" not in policy and settings.get("retention.ms") != _FOR_EVER:
        why = f"topic {topic} deletes messages by age, including the latest message of a key"
        hint = "A source that reads the topic again misses these rows. Run: "
        yield warning(topic, why, f"{hint}{_command(what, topic, 'cleanup.policy=compact')}")
    if settings.get("unclean.leader.election.enable") == "true":
        why = f"topic {topic} may lose messages that were already read; the source must then be restarted"
        yield warning(topic, why, f"Run: {_command(what, topic, 'unclean.leader.election.enable=false')}")


def _command(what: KafkaSqlOptions, topic: str, setting: str) -> str:
    named = f"kafka-configs.sh --bootstrap-server {what.broker} --entity-type topics --entity-name {topic}"
    return f"{named} --alter --add-config {setting}"


# -- errors ------------------------------------------------------------------------------------------------------------

_LOGIN = "Check sasl_mechanisms, sasl_username, the secret that sasl_password refers to, and security_protocol."
_TLS = (
    "Check ssl_ca_location, ssl_certificate_location, ssl_key_location, the secret that ssl_key_password refers to, "
    "and the broker addresses."
)
_DENIED = "Grant the user READ and DESCRIBE on the topic."
_GROUPS = "Grant the user READ on groups that begin with group_id_prefix."
_MISSING = "Check the topic name, and that the user has DESCRIBE on the topic."
_CODES: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: _GROUPS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the user DESCRIBE on the cluster.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: _TLS,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _MISSING,
    KafkaError.TOPIC_EXCEPTION: _MISSING,
}
_SETTINGS = {
    "ssl.": _TLS,
    "mechanism GSSAPI": "Kerberos requires a librdkafka built with libsasl2, which the confluent-kafka wheel does not "
    "include. Install such a librdkafka, then run: pip install --no-binary confluent-kafka confluent-kafka",
}
"""Settings that a client rejects, by a part of its message, and the hint for each."""
_JAVA = {
    "PBES2 SecretKeyFactory not available": "This Java version cannot decrypt the key in ssl_key_location. Use a newer "
    "one, or re-encrypt the key: openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES.",
    "SaslAuthenticationException": _LOGIN,
    "UnsupportedSaslMechanismException": _LOGIN,
    "LoginException": _LOGIN,
    "SslAuthenticationException": _TLS,
    "Invalid PEM keystore configs": _TLS,
    "TopicAuthorizationException": _DENIED,
    "GroupAuthorizationException": _GROUPS,
    "UnknownTopicOrPartitionException": _MISSING,
}
"""Causes as the Java client names them, most specific first, and the hint for each."""
_HANDSHAKE_REJECTED = "SSL alert number"
"""The text of a broker that rejects a client certificate; the error code is that of a lost connection."""


def permanent_hint(error: KafkaError) -> str | None:
    """Return the hint for a permanent error; None if the error may be transient."""
    text = error.str()
    if error.code() == KafkaError._INVALID_ARG:
        found = (hint for words, hint in _SETTINGS.items() if words in text)
        return next(found, "Check the options of the source.")
    return _TLS if _HANDSHAKE_REJECTED in text else _CODES.get(error.code())


def broker_error(brokers: str, topic: str, reported: KafkaError, connection_error: KafkaError | None) -> PenstockError:
    """Return the Penstock error for a client error; `connection_error` is the last one reported."""
    for found in (reported, connection_error):
        if found is not None and (hint := permanent_hint(found)) is not None:
            return DefiniteError(f"could not read topic {topic} at {brokers}: {found.str()}", hint)
    connecting = f" ({connection_error.str()})" if connection_error is not None else ""
    message = f"could not read topic {topic} at {brokers}: {reported.str()}{connecting}"
    return TransientError(message, "Check that the brokers are running and reachable from this host.")


def spark_error(brokers: str, topic: str, text: str) -> DefiniteError | None:
    """Return the Penstock error for the text of a Spark exception; None if it names no known cause."""
    for cause, hint in _JAVA.items():
        for line in (line.strip() for line in text.splitlines() if cause in line):
            cause_line = line.removeprefix("Caused by: ")
            return DefiniteError(f"could not read topic {topic} at {brokers}: {cause_line}", hint)
    return None
