"""The topics of a sink: created with explicit settings or required to exist, and checked before the sink starts.

::

    ensure_topics(…)           missing and `create` ─▶ create ─▶ wait until each partition has a leader
                               missing otherwise    ─▶ DefiniteError, with the command that creates the topic
    ensure_positions_topic(…)  the topic of positions: one partition, compacted, or DefiniteError
    check_topics(…)            the same questions as findings; nothing is created

No request here creates a topic as a side effect, as requests of producers do at brokers with
``auto.create.topics.enable``. So all topics of a sink are ensured before its producer starts. An existing topic is
never altered.

The topic of positions has the last position of each sink. If a broker removed that message, the sink would start again
and write everything twice: its policy is ``compact``, and nothing else. A second partition would hide positions from
`TransactionWriter`, which reads the first one.

A topic counts as missing only after repeated requests: a broker that has just started does not know all topics yet.

`check_topics` asks the brokers which operations the user may perform, and has them validate the creation of missing
topics. It does not cover the transactional id: only a producer can be denied that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from penstock.changelog.kafka.clients import MISSING, cause_of
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.name_suggestions import nearest
from penstock.sinks.kafka.topic_names import check_topic_name
from penstock.sinks.words import CleanupPolicy
from penstock.sources.findings import Finding, error, warning

__all__ = ["TopicSettings", "check_topics", "ensure_positions_topic", "ensure_topics"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_CONNECTING = {"reconnect.backoff.max.ms": 1000, "log.connection.close": False}
_SECONDS = 30.0
_CERTAIN_SECONDS = 2.0
"""A topic counts as missing after this time."""
_AGAIN_SECONDS = 0.05
_BROKER_DEFAULT = -1
_POLICY = "cleanup.policy"
_LIMIT = 1 << 20

_LOGIN = "Check the login of the sink."
_HINTS: dict[int, str] = {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Grant the user CREATE on the cluster or on the topic.",
    KafkaError.SASL_AUTHENTICATION_FAILED: _LOGIN,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _LOGIN,
    KafkaError._AUTHENTICATION: _LOGIN,
    KafkaError._SSL: "Check the certificates of the sink, and the broker addresses.",
    KafkaError._INVALID_ARG: "Check the options of the sink.",
    KafkaError.POLICY_VIOLATION: "Ask the broker's operator which policy forbids this, or have them create the topic.",
    KafkaError.INVALID_REPLICATION_FACTOR: "Set the replication to at most the number of brokers.",
    KafkaError.INVALID_PARTITIONS: "Set the number of partitions to 1 or more.",
    KafkaError.INVALID_CONFIG: "Check the settings of the topic.",
    KafkaError.TOPIC_EXCEPTION: "Use another topic name.",
    KafkaError.UNSUPPORTED_VERSION: "Use Kafka 2.5 or later.",
    KafkaError._UNSUPPORTED_FEATURE: "Use Kafka 2.5 or later.",
}
"""Errors that a retry does not fix, and their hints."""
_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


@dataclass(frozen=True)
class TopicSettings:
    """The settings with which a missing topic is created."""

    create: bool = True
    """Whether it is created; otherwise it must exist."""
    partitions: int | None = None
    """The default of the brokers if None."""
    replication: int | None = None
    """The default of the brokers if None."""
    cleanup_policy: str | None = None
    """The default of the brokers if None. ENVELOPE UPSERT needs compact."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Other settings of the topic."""
    written: bool = False
    """Whether the sink has written to it before: if it is missing, its messages are lost, and it is not created."""

    def check(self) -> None:
        """Raise `UsageError` for a value that no topic can have."""
        for option, number in {"partitions": self.partitions, "replication": self.replication}.items():
            if number is not None and number < 1:
                message = f"invalid {option} of a topic: {number}"
                raise UsageError(message, "Use 1 or more.")
        known = tuple(policy.value for policy in CleanupPolicy)
        if self.cleanup_policy is not None and self.cleanup_policy not in known:
            message = f'unknown cleanup policy "{self.cleanup_policy}"'
            raise UsageError(message, nearest(self.cleanup_policy, known) or f"Use one of: {' | '.join(known)}.")
        if self.cleanup_policy is not None and _POLICY in self.configs:
            message = f"the cleanup policy of a topic and its setting {_POLICY} are both given"
            raise UsageError(message, "Remove one of them.")

    @property
    def config(self) -> dict[str, str]:
        """All settings of the topic that are given."""
        policy = {} if self.cleanup_policy is None else {_POLICY: self.cleanup_policy}
        return {**policy, **self.configs}

    def _new_topic(self, name: str) -> NewTopic:
        partitions, replication = (number or _BROKER_DEFAULT for number in (self.partitions, self.replication))
        return NewTopic(name, partitions, replication, config=self.config)

    def _command(self, name: str, brokers: str) -> str:
        """Return the command that creates the topic."""
        partitions = "" if self.partitions is None else f" --partitions {self.partitions}"
        replication = "" if self.replication is None else f" --replication-factor {self.replication}"
        configs = "".join(f" --config {key}={value}" for key, value in self.config.items())
        return f"kafka-topics.sh --bootstrap-server {brokers} --create --topic {name}{partitions}{replication}{configs}"


_POSITIONS = TopicSettings(partitions=1, cleanup_policy="compact", configs={"unclean.leader.election.enable": "false"})


def ensure_topics(
    settings: Mapping[str, Any], topics: Mapping[str, TopicSettings], seconds: float = _SECONDS
) -> list[str]:
    """Create the missing topics, and return their names; raise an error for those that must exist but do not.

    If one topic is missing that must exist, none is created. `settings` connect a client.
    """
    for name, wanted in topics.items():
        check_topic_name(name)
        wanted.check()
    with _Admin(settings, seconds) as admin:
        required = {name for name, wanted in topics.items() if wanted.written or not wanted.create}
        missing = admin.missing(topics, required)
        for name in sorted(missing & required):
            if topics[name].written:
                message = f"topic {name} was deleted, with the messages that the sink had written"
                raise DefiniteError(message, "Drop the sink and create it again: it then writes all rows again.")
            message = f"topic {name} does not exist"
            command = topics[name]._command(name, admin.brokers)
            raise DefiniteError(message, f"Run: {command}; or let the sink create it.")
        created = admin.create({name: topics[name] for name in topics if name in missing})
        admin.wait_for(missing)
    return created


def ensure_positions_topic(settings: Mapping[str, Any], name: str, seconds: float = _SECONDS) -> bool:
    """Create the topic of positions if it is missing, and return whether it was; reject one that may lose positions."""
    created = ensure_topics(settings, {name: _POSITIONS}, seconds)
    with _Admin(settings, seconds) as admin:
        for why, hint in _position_problems(admin, name, admin.topic(name), admin.settings(name)):
            raise DefiniteError(why, hint)
    return bool(created)


def check_topics(
    settings: Mapping[str, Any],
    topics: Mapping[str, TopicSettings],
    seconds: float = _SECONDS,
    *,
    upsert: bool = False,
    limit: int = _LIMIT,
    positions: str | None = None,
) -> list[Finding]:
    """Return what would keep a sink from writing to its topics, or its consumers from reading all rows.

    `upsert` is whether consumers need the last message of each key, and not all messages. `limit` is the size of the
    largest message. `positions` is the topic of positions.
    """
    every = {**topics, **({} if positions is None else {positions: _POSITIONS})}
    try:
        with _Admin(settings, seconds) as admin:
            found = admin.settled(every, {name for name, wanted in topics.items() if not wanted.create})
            checks = [_Check(admin, name, wanted, found[name]) for name, wanted in topics.items()]
            findings = [finding for check in checks for finding in check.findings(upsert, limit)]
            if positions is not None:
                findings += _Check(admin, positions, _POSITIONS, found[positions]).position_findings()
            return findings
    except PenstockError as failure:
        return [error(str(settings.get("bootstrap.servers", "")), failure.message, failure.hint)]


# -- findings ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Topic:
    """A topic that exists."""

    partitions: int
    has_leaders: bool
    operations: frozenset[AclOperation] | None
    """What the user may do; None if the broker does not report it."""


@dataclass(frozen=True)
class _Check:
    """The check of one topic."""

    admin: _Admin
    name: str
    wanted: TopicSettings
    found: _Topic | KafkaError

    def findings(self, upsert: bool, limit: int) -> Iterator[Finding]:
        """Yield the findings of a topic of messages."""
        if isinstance(self.found, KafkaError):
            yield from self._unavailable(self.found)
            if upsert and self.wanted.config.get(_POLICY) != "compact":
                why = f"topic {self.name} is created without {_POLICY}=compact and may lose the last message of a key"
                yield warning(self.name, why, "Set the cleanup policy of the topic to compact.")
            return
        yield from self._operations(self.found, AclOperation.WRITE)
        if self.wanted.partitions is not None and self.found.partitions != self.wanted.partitions:
            why = f"topic {self.name} has {self.found.partitions} partitions, not {self.wanted.partitions}"
            yield warning(self.name, why, "An existing topic is not altered; change the option of the sink.")
        try:
            settings = self.admin.settings(self.name)
        except DefiniteError as failure:
            yield warning(self.name, failure.message, failure.hint)
            return
        yield from self._retention(settings, upsert)
        accepted = int(settings.get("max.message.bytes", limit))
        if accepted < limit:
            why = f"topic {self.name} accepts messages of at most {accepted} bytes, but the sink may write {limit}"
            yield warning(self.name, why, f"Run: {_alter(self.admin, self.name, f'max.message.bytes={limit}')}")

    def position_findings(self) -> Iterator[Finding]:
        """Yield the findings of the topic of positions."""
        if isinstance(self.found, KafkaError):
            yield from self._unavailable(self.found)
            return
        yield from self._operations(self.found, AclOperation.WRITE, AclOperation.READ)
        try:
            for why, hint in _position_problems(self.admin, self.name, self.found, self.admin.settings(self.name)):
                yield error(self.name, why, hint)
        except DefiniteError as failure:
            yield error(self.name, failure.message, failure.hint)

    def _unavailable(self, reported: KafkaError) -> Iterator[Finding]:
        """Yield why a topic cannot be used, unless it is missing and can be created."""
        command = self.wanted._command(self.name, self.admin.brokers)
        if reported.code() == _DENIED:
            why = f"permission denied for topic {self.name}"
            yield error(self.name, why, "Grant the user DESCRIBE and WRITE on the topic.")
        elif not self.wanted.create:
            yield error(self.name, f"topic {self.name} does not exist", f"Run: {command}; or let the sink create it.")
        else:
            try:
                self.admin.create({self.name: self.wanted}, validate_only=True)
            except DefiniteError as failure:
                yield error(self.name, failure.message, failure.hint)

    def _operations(self, found: _Topic, *needed: AclOperation) -> Iterator[Finding]:
        denied = [each.name for each in needed if found.operations is not None and each not in found.operations]
        if denied:
            why = f"the user lacks {' and '.join(denied)} on topic {self.name}"
            yield error(self.name, why, f"Grant the user {' and '.join(denied)} on the topic.")

    def _retention(self, settings: Mapping[str, str], upsert: bool) -> Iterator[Finding]:
        policy = settings.get(_POLICY, "")
        is_limited = any(settings.get(name, "-1") != "-1" for name in ("retention.ms", "retention.bytes"))
        wanted = "compact" if upsert else "delete"
        run = f"Run: {_alter(self.admin, self.name, f'{_POLICY}={wanted}')}"
        if upsert and "delete" in policy and is_limited:
            why = f"topic {self.name} has {_POLICY}={policy} and deletes the last message of a key by age or size"
            yield warning(self.name, why, f"Consumers that read the topic again miss these rows. {run}")
        if not upsert and "compact" in policy:
            why = f"topic {self.name} has {_POLICY}={policy} and removes all changes of a key but the last"
            yield warning(self.name, why, f"Consumers that read the topic again miss these changes. {run}")


def _position_problems(
    admin: _Admin, name: str, found: _Topic, settings: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield why a topic cannot have the positions of sinks, with a hint."""
    if found.partitions != 1:
        why = f"the topic of positions {name} has {found.partitions} partitions, but must have one"
        yield why, "Delete the topic if no sink has used it, or set another topic of positions."
    policy = settings.get(_POLICY, "")
    if policy != "compact":
        why = f"the topic of positions {name} has {_POLICY}={policy}: brokers would delete the positions of sinks"
        yield why, f"Run: {_alter(admin, name, f'{_POLICY}=compact')}"


def _alter(admin: _Admin, name: str, setting: str) -> str:
    named = f"kafka-configs.sh --bootstrap-server {admin.brokers} --entity-type topics --entity-name {name}"
    return f"{named} --alter --add-config {setting}"


# -- requests ----------------------------------------------------------------------------------------------------------


class _Admin:
    """An admin client with a deadline for all its requests; its errors are those of Penstock."""

    def __init__(self, settings: Mapping[str, Any], seconds: float) -> None:
        self.brokers = str(settings.get("bootstrap.servers", ""))
        self._deadline = time.monotonic() + seconds
        self._connection_error: KafkaError | None = None
        own: dict[str, Any] = {**_CONNECTING, "error_cb": self._store_error, "logger": _LOG}
        try:
            self._client = AdminClient({**settings, **own})
        except KafkaException as failure:
            what = "the topics of the sink could not be accessed"
            raise self._error(what, cause_of(failure)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.__exit__(kind, failure, trace)

    def describe(self, names: Iterable[str]) -> dict[str, _Topic | KafkaError]:
        """Return topics, or the error of those that are missing or that the user may not describe."""
        found: dict[str, _Topic | KafkaError] = {}
        wanted = TopicCollection(list(names))
        if not wanted.topic_names:
            return found
        asked = self._client.describe_topics(
            wanted, include_authorized_operations=True, request_timeout=self._seconds()
        )
        for name, answer in asked.items():
            try:
                description = self._answer(answer)
            except KafkaException as failure:
                cause = cause_of(failure)
                if cause.code() not in {*MISSING, _DENIED}:
                    what = f"topic {name} could not be described"
                    raise self._error(what, cause) from None
                found[name] = cause
                continue
            operations = description.authorized_operations
            found[name] = _Topic(
                len(description.partitions),
                all(partition.leader is not None for partition in description.partitions),
                None if operations is None else frozenset(operations),
            )
        return found

    def topic(self, name: str) -> _Topic:
        """Return a topic that exists."""
        [found] = self.describe([name]).values()
        if isinstance(found, KafkaError):
            raise self._denied_or_missing(name, found)
        return found

    def settled(self, names: Iterable[str], required: set[str]) -> dict[str, _Topic | KafkaError]:
        """Describe topics; repeat it for a time while a required one is missing."""
        certain = min(time.monotonic() + _CERTAIN_SECONDS, self._deadline)
        while True:
            found = self.describe(names)
            is_missing = any(isinstance(found[name], KafkaError) for name in required)
            if not is_missing or time.monotonic() >= certain:
                return found
            time.sleep(_AGAIN_SECONDS)

    def missing(self, names: Iterable[str], required: set[str]) -> set[str]:
        """Return the topics that do not exist; raise an error for one that the user may not describe."""
        found = {name: one for name, one in self.settled(names, required).items() if isinstance(one, KafkaError)}
        for name, reported in found.items():
            if reported.code() == _DENIED:
                raise self._denied_or_missing(name, reported)
        return set(found)

    def create(self, topics: Mapping[str, TopicSettings], *, validate_only: bool = False) -> list[str]:
        """Create topics; return those that did not exist meanwhile."""
        created: list[str] = []
        if not topics:
            return created
        asked = self._client.create_topics(
            [wanted._new_topic(name) for name, wanted in topics.items()],
            validate_only=validate_only,
            request_timeout=self._seconds(),
        )
        for name, answer in asked.items():
            try:
                self._answer(answer)
                created.append(name)
            except KafkaException as failure:
                cause = cause_of(failure)
                if cause.code() == _DENIED:
                    message = f"permission denied to create topic {name}"
                    command = topics[name]._command(name, self.brokers)
                    raise DefiniteError(message, f"Grant the user CREATE on the topic, or run: {command}") from None
                if cause.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    what = f"topic {name} could not be created"
                    raise self._error(what, cause) from None
        return created

    def wait_for(self, names: set[str]) -> None:
        """Wait until all brokers that are asked know the topics, and their partitions have leaders."""
        while not all(isinstance(one, _Topic) and one.has_leaders for one in self.describe(sorted(names)).values()):
            if time.monotonic() > self._deadline:
                message = f"timeout while waiting for the brokers to create the topics {', '.join(sorted(names))}"
                raise TransientError(message, "Check that all brokers are running.")
            time.sleep(_AGAIN_SECONDS)

    def settings(self, name: str) -> dict[str, str]:
        """Return the effective settings of a topic."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        [asked] = self._client.describe_configs([resource], request_timeout=self._seconds()).values()
        try:
            return {key: str(entry.value) for key, entry in self._answer(asked).items()}
        except KafkaException as failure:
            cause = cause_of(failure)
            if cause.code() == _DENIED:
                message = f"permission denied for the settings of topic {name}"
                raise DefiniteError(message, "Grant the user DESCRIBE_CONFIGS on the topic.") from None
            what = f"the settings of topic {name} could not be read"
            raise self._error(what, cause) from None

    def _seconds(self) -> float:
        return max(self._deadline - time.monotonic(), _AGAIN_SECONDS)

    def _answer(self, asked: Future[Any]) -> Any:
        """Wait for an answer, but not for a client that cannot log in."""
        while True:
            try:
                return asked.result(_AGAIN_SECONDS)
            except TimeoutError:
                self._client.poll(0)
                known = self._connection_error
                if known is not None and known.code() in _HINTS:
                    raise KafkaException(known) from None
                if time.monotonic() > self._deadline + _SECONDS:
                    raise KafkaException(known or KafkaError(KafkaError._TIMED_OUT)) from None

    def _store_error(self, reported: KafkaError) -> None:
        """Keep the most specific error: a failed login, not the unreachable brokers that it causes."""
        is_specific = reported.code() != KafkaError._ALL_BROKERS_DOWN
        known = self._connection_error
        if known is None or (is_specific and known.code() not in _HINTS):
            self._connection_error = reported

    def _denied_or_missing(self, name: str, cause: KafkaError) -> DefiniteError:
        if cause.code() == _DENIED:
            message = f"permission denied for topic {name}"
            return DefiniteError(message, "Grant the user DESCRIBE and WRITE on the topic.")
        return DefiniteError(f"topic {name} does not exist", "Create the topic, or let the sink create it.")

    def _error(self, what: str, cause: KafkaError) -> PenstockError:
        for known in (cause, self._connection_error):
            if known is not None and known.code() in _HINTS:
                return DefiniteError(f"{what}: {known.str()}", _HINTS[known.code()])
        connecting = f" ({self._connection_error.str()})" if self._connection_error is not None else ""
        hint = f"Check that the brokers at {self.brokers} are running and reachable from this host."
        return TransientError(f"{what}: {cause.str()}{connecting}", hint)
