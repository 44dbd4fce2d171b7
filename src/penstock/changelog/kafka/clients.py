"""How clients of a broker are made, and what their errors mean to us.

A broker that restarts, moves or is slow is `TransientError`: clients connect again by themselves, and steps are
repeated. What nobody but a person can mend is `DefiniteError`, with the way out.
"""

from __future__ import annotations

import logging
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from penstock.changelog.kafka.settings import Settings, resolved
from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = [
    "DEFINITE",
    "MISSING",
    "Place",
    "admin",
    "cause_of",
    "consumer",
    "explained",
    "is_fenced",
    "pinning_producer",
    "transactional_producer",
]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
"""Clients tell of every connection that was lost, also of those that they mend: for who asks for it."""
_CONNECTING = {"reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 1000, "log.connection.close": False}
TRANSACTION_MS = 60_000

MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
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
        self.trouble = error


def admin(place: Place) -> AdminClient:
    """Make a client for topics."""
    return AdminClient(place.common())


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
    return Consumer({**place.common(), **fixed, **settings})


def transactional_producer(place: Place, limit: int) -> Producer:
    """Make the client of a writer; it is one only after `init_transactions`."""
    fixed = {
        "transactional.id": place.name,
        "transaction.timeout.ms": TRANSACTION_MS,
        "acks": "all",
        "linger.ms": 0,
        "message.max.bytes": limit,
        "queue.buffering.max.kbytes": 256 << 10,
    }
    return Producer({"compression.type": "lz4", **place.common(), **fixed})


def pinning_producer(place: Place) -> Producer:
    """Make a client that writes single records, each for itself; that one may be there twice does no harm."""
    return Producer({**place.common(), "acks": "all", "linger.ms": 0})


def is_fenced(error: KafkaError) -> bool:
    """Whether a broker says that there is a newer producer, or that it has given up on this one."""
    return error.code() in _FENCED


def cause_of(error: KafkaException) -> KafkaError:
    """Return what a client's exception is about."""
    cause = error.args[0]
    assert isinstance(cause, KafkaError)
    return cause


def explained(place: Place, doing: str, cause: KafkaError) -> PenstockError:
    """Return our error for one of a client's: what was being done, why it failed, and what to do."""
    known = [e for e in (cause, place.trouble) if e is not None and e.code() in DEFINITE]
    if cause.code() in MISSING:
        message = f"the change log {place.name} could not be {doing}: it is not at {place.brokers}"
        return DefiniteError(message, "Check brokers and prefix in its URL; or drop the source and add it afresh.")
    if known:
        message = f"the change log {place.name} could not be {doing}: {known[0].str()}"
        return DefiniteError(message, DEFINITE[known[0].code()])
    message = f"the change log {place.name} could not be {doing}: {cause.str()}"
    return TransientError(message, f"Check that the brokers at {place.brokers} are up and reached from here.")
