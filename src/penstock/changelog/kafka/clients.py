"""Kafka clients of the change log: their settings, and what their errors and delivery reports mean.

A broker that restarts, moves or is slow is a `TransientError`: clients reconnect by themselves, and steps are repeated.
Errors that need an operator are `DefiniteError`, with a hint.

Users may set options for security and network, but none on which the log's guarantees depend. A secret is given by
reference (`penstock.secret`), so that settings can be stored, shown and sent to executors; any value may be a
reference, and is resolved right before a client is created.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.kafka_offsets import told_offset
from penstock.secret import check_reference, is_reference, resolve

__all__ = [
    "DEFINITE",
    "MISSING",
    "Delivery",
    "Place",
    "Settings",
    "admin",
    "cause_of",
    "checked",
    "consumer",
    "explained",
    "is_fenced",
    "missing",
    "pinning_producer",
    "resolved",
    "transactional_producer",
]

_Client = TypeVar("_Client", AdminClient, Consumer, Producer)
_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
"""Clients tell of every connection that was lost, also of those that they mend: for who asks for it."""
_CONNECTING = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
    "topic.metadata.refresh.interval.ms": 10_000,
    "log.connection.close": False,
}
_TRANSACTION_MS = 60_000

MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
"""A topic is not there. The last two are a client's own words, which it also has when no broker answers it."""
_FENCED = {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
_DENIED = "Grant the user read, write, create, alter, describe and delete on both topics, and its transactional id."
_LOGIN = "Check sasl.username, sasl.password, sasl.mechanism and security.protocol in the log's URL."
_OLD = "Use Kafka 2.5 or later."
DEFINITE: dict[int, str] = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: _DENIED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: "Grant the user describe on the group that has the log's name.",
    KafkaError.POLICY_VIOLATION: "Ask the broker's operator which policy forbids this, or let them make the topics.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: "Check ssl.ca.location, ssl.certificate.location and security.protocol in the log's URL.",
    KafkaError._INVALID_ARG: "Check the settings in the log's URL.",
    KafkaError.UNSUPPORTED_VERSION: _OLD,
    KafkaError._UNSUPPORTED_FEATURE: _OLD,
    KafkaError.MSG_SIZE_TOO_LARGE: "Set max.message.bytes of both topics to at least 1048588, and start again.",
}
"""What trying again does not mend, and what does."""


class Place:
    """Where a log is, as clients need it: the brokers, the name, the settings; and the last trouble they told of."""

    def __init__(self, brokers: str, name: str, settings: Settings) -> None:
        self.brokers = brokers
        self.name = name
        self.settings = settings
        self.index = f"{name}.index"
        self.data = f"{name}.data"
        self.trouble: KafkaError | None = None

    def common(self) -> dict[str, Any]:
        """Return what all clients have in common, secrets included: for a client alone."""
        given = {"client.id": "penstock", **resolved(self.settings)}
        own = {"bootstrap.servers": self.brokers, "error_cb": self._note, "logger": _LOG}
        return {**_CONNECTING, **given, **own}

    def _note(self, error: KafkaError) -> None:
        """Keep what tells most: that a login or handshake failed, and not that all brokers are out of reach since."""
        telling = error.code() != KafkaError._ALL_BROKERS_DOWN
        if self.trouble is None or (telling and self.trouble.code() not in DEFINITE):
            self.trouble = error


def admin(place: Place) -> AdminClient:
    """Make a client for topics."""
    return _made(place, AdminClient, place.common())


def consumer(place: Place, **settings: Any) -> Consumer:
    """Make a client that reads what it is told to, in no group: the group's name is asked for and not used."""
    fixed = {
        "group.id": place.name,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "fetch.error.backoff.ms": 50,
    }
    return _made(place, Consumer, {**place.common(), **fixed, **settings})


def transactional_producer(place: Place, limit: int) -> Producer:
    """Make the client of a writer; it is one only after `init_transactions`."""
    fixed = {
        "transactional.id": place.name,
        "transaction.timeout.ms": _TRANSACTION_MS,
        "acks": "all",
        "linger.ms": 0,
        "message.max.bytes": limit,
        "queue.buffering.max.kbytes": 256 << 10,
    }
    return _made(place, Producer, {"compression.type": "lz4", **place.common(), **fixed})


def pinning_producer(place: Place) -> Producer:
    """Make a client that writes single records, each for itself; that one may be there twice does no harm."""
    return _made(place, Producer, {**place.common(), "acks": "all", "linger.ms": 0})


def _made(place: Place, kind: Callable[[dict[str, Any]], _Client], config: dict[str, Any]) -> _Client:
    try:
        return kind(config)
    except KafkaException as error:
        raise explained(place, "opened", cause_of(error)) from None


def is_fenced(error: KafkaError) -> bool:
    """Whether a broker says that there is a newer producer, or that it has given up on this one."""
    return error.code() in _FENCED


def cause_of(error: KafkaException) -> KafkaError:
    """Return what a client's exception is about."""
    cause = error.args[0]
    assert isinstance(cause, KafkaError)
    return cause


def missing(place: Place) -> DefiniteError:
    """Say that brokers answer, and have no such log."""
    message = f"the change log {place.name} is not at {place.brokers}"
    return DefiniteError(message, "Check brokers and prefix in its URL; or drop the source and add it afresh.")


def explained(place: Place, doing: str, cause: KafkaError) -> PenstockError:
    """Return our error for one of a client's: what was being done, why it failed, and what to do."""
    known = [e for e in (cause, place.trouble) if e is not None and e.code() in DEFINITE]
    if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return missing(place)
    if known:
        message = f"the change log {place.name} could not be {doing}: {known[0].str()}"
        return DefiniteError(message, DEFINITE[known[0].code()])
    connecting = f" ({place.trouble.str()})" if place.trouble is not None else ""
    message = f"the change log {place.name} could not be {doing}: {cause.str()}{connecting}"
    return TransientError(message, f"Check that the brokers at {place.brokers} are up and reached from here.")


Settings = tuple[tuple[str, str], ...]

_ALLOWED = re.compile(
    r"security\.protocol|sasl\.[a-z.]+|ssl\.[a-z.]+|enable\.ssl\.certificate\.verification|https\.ca\.location"
    r"|enable\.sasl\.oauthbearer\.unsecure\.jwt|broker\.address\.(family|ttl)|socket\.[a-z.]+|client\.(id|rack)"
    r"|compression\.(type|level)"
)
_SECRET = re.compile(r".*(password|secret|token|credential).*|sasl\.oauthbearer\.(config|extensions)")
_INLINE_KEY = re.compile(r"ssl\.(key|keystore)\.pem")


def checked(settings: Iterable[tuple[str, str]]) -> Settings:
    """Return settings in one order; refuse what is unknown, what would break the log, and secrets in clear."""
    return tuple(sorted((name, _value(name, value)) for name, value in settings))


def resolved(settings: Settings) -> dict[str, str]:
    """Read the secrets. Do this only right before a client is made."""
    return {name: resolve(value) if is_reference(value) else value for name, value in settings}


def _value(name: str, value: str) -> str:
    if _INLINE_KEY.fullmatch(name):
        message = f"the setting {name} holds a private key"
        raise UsageError(message, "Name a file that holds it instead: ssl.key.location or ssl.keystore.location.")
    if not _ALLOWED.fullmatch(name):
        message = f"{name!r} is not a setting of the Kafka change log"
        raise UsageError(message, "Settings for security and network can be given: security.protocol, sasl.*, ssl.*.")
    if is_reference(value):
        return check_reference(value)
    if _SECRET.fullmatch(name):
        message = f"the setting {name} was given in clear"
        raise UsageError(message, "Name where it is instead: env:NAME (an environment variable) or file:PATH.")
    return value


class Delivery:
    """Told once a message was delivered, or was not; give it to `produce`, then `flush`."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None
        self._offset: int | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Note it."""
        self._error, self._offset = error, message.offset()

    def offset(self) -> int:
        """Return where it is, or raise why that is not known: a broker may say of a message only that it has it."""
        if self._error is not None:
            raise KafkaException(self._error)
        if self._offset is None:
            raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT))
        return told_offset(self._offset)
