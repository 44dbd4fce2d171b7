"""Kafka clients of the change log: their settings, and the meaning of their errors and delivery reports.

A broker that restarts, moves or is slow is a `TransientError`: clients reconnect automatically, and steps are repeated.
Errors that require an operator are `DefiniteError`, with a hint.

Users may set options for security and network, but none on which the log's guarantees depend. Secrets are given by
reference (`penstock.secret`), so that settings can be stored, displayed and sent to executors; any value may be a
reference, which is resolved immediately before a client is created.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.kafka_offsets import require_offset
from penstock.secret import check_reference, is_reference, resolve

__all__ = [
    "DEFINITE",
    "MISSING",
    "Delivery",
    "LogLocation",
    "Settings",
    "admin",
    "cause_of",
    "checked_settings",
    "consumer",
    "is_fenced",
    "log_not_found",
    "lost_end_hint",
    "plain_producer",
    "resolved_settings",
    "transactional_producer",
    "translated_error",
]

_Client = TypeVar("_Client", AdminClient, Consumer, Producer)
_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
"""Clients log every lost connection, even if they reconnect; an application that wants this adds a handler."""
_CONNECTING = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 10_000,
    "log.connection.close": False,
}
_TRANSACTION_MS = 60_000

MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
"""The topic does not exist. The last two codes come from the client, which also uses them if no broker answers."""
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_DENIED = (
    "Grant the user READ, WRITE, CREATE, ALTER, DESCRIBE and DELETE on both topics, and WRITE on its transactional id."
)
_LOGIN = "Check sasl.username, sasl.password, sasl.mechanism and security.protocol in the log's URL."
_OLD = "Use Kafka 2.5 or later."
DEFINITE: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Grant the user DESCRIBE on the group that has the log's name.",
    KafkaError.POLICY_VIOLATION: "Ask the broker's operator which policy forbids this, or have them create the topics.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: "Check ssl.ca.location, ssl.certificate.location and security.protocol in the log's URL.",
    KafkaError._INVALID_ARG: "Check the settings in the log's URL.",
    KafkaError.UNSUPPORTED_VERSION: _OLD,
    KafkaError._UNSUPPORTED_FEATURE: _OLD,
    KafkaError.MSG_SIZE_TOO_LARGE: "Set max.message.bytes of both topics to at least 1048588, then restart.",
}
"""Errors that a retry does not fix, and their hints."""


class LogLocation:
    """The location of a log for its clients: brokers, name and settings; and the last error that a client reported."""

    def __init__(self, brokers: str, name: str, settings: Settings) -> None:
        self.brokers = brokers
        self.name = name
        self.settings = settings
        self.index = f"{name}.index"
        self.data = f"{name}.data"
        self.last_error: KafkaError | None = None

    def common(self) -> dict[str, Any]:
        """Return the settings that all clients share, including secrets: only for creating a client."""
        user = {"client.id": "penstock", **resolved_settings(self.settings)}
        own = {"bootstrap.servers": self.brokers, "error_cb": self._record_error, "logger": _LOG}
        return {**_CONNECTING, **user, **own}

    def _record_error(self, error: KafkaError) -> None:
        """Keep the most specific error: a failed login or handshake, not the unreachable brokers that it causes."""
        is_specific = error.code() != KafkaError._ALL_BROKERS_DOWN
        if self.last_error is None or (is_specific and self.last_error.code() not in DEFINITE):
            self.last_error = error


def admin(location: LogLocation) -> AdminClient:
    """Create an admin client."""
    return _create(location, AdminClient, location.common())


def consumer(location: LogLocation, **settings: Any) -> Consumer:
    """Create a consumer for assigned partitions; librdkafka requires a group name, but no group is used."""
    fixed = {
        "group.id": location.name,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.error.backoff.ms": 50,
    }
    return _create(location, Consumer, {**location.common(), **fixed, **settings})


def transactional_producer(location: LogLocation, limit: int) -> Producer:
    """Create the producer of a writer; `init_transactions` then fences earlier ones."""
    fixed = {
        "transactional.id": location.name,
        "transaction.timeout.ms": _TRANSACTION_MS,
        "acks": "all",
        "linger.ms": 0,
        "message.max.bytes": limit,
        "queue.buffering.max.kbytes": 256 << 10,
    }
    return _create(location, Producer, {"compression.type": "lz4", **location.common(), **fixed})


def plain_producer(location: LogLocation) -> Producer:
    """Create a producer without transactions for single records; a duplicate of such a record is harmless."""
    return _create(location, Producer, {**location.common(), "acks": "all", "linger.ms": 0})


def _create(location: LogLocation, kind: Callable[[dict[str, Any]], _Client], config: dict[str, Any]) -> _Client:
    try:
        return kind(config)
    except KafkaException as error:
        raise translated_error(location, "opened", cause_of(error)) from None


def is_fenced(error: KafkaError) -> bool:
    """Return whether a broker reports a newer producer, or has aborted the transaction of this one."""
    return error.code() in _FENCED


def cause_of(error: KafkaException) -> KafkaError:
    """Return the error that a client's exception contains."""
    cause = error.args[0]
    assert isinstance(cause, KafkaError)
    return cause


def lost_end_hint(brokers: str, topic: str, offset: int) -> str:
    """Return the hint for a transaction in partition 0 of a topic, from an offset on, that does not end."""
    tool = f"kafka-transactions.sh --bootstrap-server {brokers}"
    return (
        "Brokers end an open transaction after a minute. If this error stays, they have lost its end; run: "
        f"{tool} abort --topic {topic} --partition 0 --start-offset {offset}; and the same for other partitions that "
        f"are found with: {tool} find-hanging --broker-id ID"
    )


def log_not_found(location: LogLocation) -> DefiniteError:
    """Return the error for brokers that answer but do not have the log."""
    message = f"the change log {location.name} does not exist at {location.brokers}"
    return DefiniteError(
        message, "Check the brokers and the prefix in its URL, or drop the source and create it again."
    )


def translated_error(location: LogLocation, doing: str, cause: KafkaError) -> PenstockError:
    """Return the Penstock error for a client's error: the failed operation, the cause, and a hint."""
    known = [e for e in (cause, location.last_error) if e is not None and e.code() in DEFINITE]
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return log_not_found(location)
    if known:
        message = f"the change log {location.name} could not be {doing}: {known[0].str()}"
        return DefiniteError(message, DEFINITE[known[0].code()])
    connecting = f" ({location.last_error.str()})" if location.last_error is not None else ""
    message = f"the change log {location.name} could not be {doing}: {cause.str()}{connecting}"
    return TransientError(
        message, f"Check that the brokers at {location.brokers} are running and reachable from this host."
    )


Settings = tuple[tuple[str, str], ...]

_ALLOWED = re.compile(
    r"security\.protocol|sasl\.[a-z.]+|ssl\.[a-z.]+|enable\.ssl\.certificate\.verification|https\.ca\.location"
    r"|enable\.sasl\.oauthbearer\.unsecure\.jwt|broker\.address\.(family|ttl)|socket\.[a-z.]+|client\.(id|rack)"
    r"|compression\.(type|level)"
)
_SECRET = re.compile(r".*(password|secret|token|credential).*|sasl\.oauthbearer\.(config|extensions)")
_INLINE_KEY = re.compile(r"ssl\.(key|keystore)\.pem")


def checked_settings(settings: Iterable[tuple[str, str]]) -> Settings:
    """Return settings in canonical order; reject unknown or unsafe ones and plain-text secrets."""
    return tuple(sorted((name, _value(name, value)) for name, value in settings))


def resolved_settings(settings: Settings) -> dict[str, str]:
    """Resolve secrets; call this only immediately before a client is created."""
    return {name: resolve(value) if is_reference(value) else value for name, value in settings}


def _value(name: str, value: str) -> str:
    if _INLINE_KEY.fullmatch(name):
        message = f"the setting {name} contains a private key"
        raise UsageError(message, "Use a file instead: ssl.key.location or ssl.keystore.location.")
    if not _ALLOWED.fullmatch(name):
        message = f"{name!r} is not a setting of the Kafka change log"
        raise UsageError(message, "Use settings for security and network: security.protocol, sasl.*, ssl.*.")
    if is_reference(value):
        return check_reference(value)
    if _SECRET.fullmatch(name):
        message = f"the setting {name} is a plain-text secret"
        raise UsageError(message, "Use a reference instead: env:NAME (an environment variable) or file:PATH.")
    return value


class Delivery:
    """The delivery report of a message: pass it to `produce`, then call `flush`."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._offset: int | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Store the report."""
        self._error, self._offset = error, message.offset()

    def offset(self) -> int:
        """Return the offset; raise if it is not known, because a broker may confirm a message without reporting it."""
        if self._error is not None:
            raise KafkaException(self._error)
        if self._offset is None:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
        return require_offset(self._offset)
