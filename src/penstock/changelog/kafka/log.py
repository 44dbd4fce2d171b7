"""The location of a log in Kafka: brokers, a name, and client settings.

It is written as a URL::

    kafka://b1:9092,b2:9092/prefix?security.protocol=SASL_SSL&sasl.username=u&sasl.password=env:KAFKA_PASSWORD

The name of a log is ``<prefix>.<source>``; the default prefix is ``penstock``.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.changelog.interface import ChangeLog
from penstock.changelog.kafka.clients import LogLocation, Settings, checked_settings
from penstock.changelog.kafka.reader import KafkaLogReader
from penstock.changelog.kafka.topics import (
    delete_topics,
    has_first_record,
    require_topics,
    topics_exist,
    write_first_record,
)
from penstock.changelog.kafka.writer import KafkaLogWriter
from penstock.errors import UsageError
from penstock.positions import Lsn

__all__ = ["KafkaLog"]

_EXAMPLE = "Use a URL like kafka://broker1:9092,broker2:9092/prefix?security.protocol=SSL."
_PREFIX = "penstock"
_BROKERS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST = 249 - len(".index")


@dataclass(frozen=True)
class KafkaLog(ChangeLog):
    """The log in the topics ``<name>.index`` and ``<name>.data``."""

    brokers: str
    name: str
    settings: Settings = ()

    def __post_init__(self) -> None:
        """Reject invalid brokers, names and settings, and plain-text secrets."""
        if not all(_BROKERS.fullmatch(broker) for broker in self.brokers.split(",")):
            message = "the brokers of a change log must be a comma-separated list of host and port"
            raise UsageError(message, _EXAMPLE)
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST or self.name in (".", ".."):
            message = f"{self.name!r} is not a valid name of a Kafka topic"
            raise UsageError(message, f"Use at most {_LONGEST} letters, digits, dots, dashes and underscores.")
        object.__setattr__(self, "settings", checked_settings(self.settings))

    @classmethod
    def parse(cls, url: str, source: str) -> Self:
        """Parse a URL, see the module docstring; errors repeat only names from it."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != "kafka" or not parts.netloc or parts.fragment:
            message = "the URL of a change log in Kafka must begin with kafka:// and name the brokers"
            raise UsageError(message, _EXAMPLE)
        if "@" in parts.netloc:
            message = "the URL of a change log must not have a user or password before its brokers"
            raise UsageError(message, "Use settings instead: ?sasl.username=…&sasl.password=env:NAME.")
        prefix = unquote(parts.path).strip("/") or _PREFIX
        return cls(parts.netloc, f"{prefix}.{source}", _query(parts.query))

    def url(self) -> str:
        """Return the URL that `parse` reads; it contains references, no secrets."""
        query = "&".join(f"{name}={quote(value, safe='/:,')}" for name, value in self.settings)
        prefix = self.name.rpartition(".")[0]
        return f"kafka://{self.brokers}/{prefix}{'?' if query else ''}{query}"

    def create(self, start: Lsn) -> None:
        """Create the topics, and the first record unless it exists."""
        location = self._location()
        require_topics(location)
        if not has_first_record(location):
            write_first_record(location, start, time.time_ns() // 1000)

    def remove(self) -> None:
        """Delete the topics."""
        delete_topics(self._location())

    def exists(self) -> bool:
        """Return whether the topics exist and have a first record."""
        location = self._location()
        return topics_exist(location) and has_first_record(location)

    def writer(self) -> KafkaLogWriter:
        """Open the log for writing; this fences an earlier writer."""
        return KafkaLogWriter(self._location())

    def reader(self) -> KafkaLogReader:
        """Open the log for reading; clients connect when they are first needed."""
        return KafkaLogReader(self._location())

    def __str__(self) -> str:
        """Return brokers and name."""
        return f"kafka://{self.brokers} {self.name}"

    def _location(self) -> LogLocation:
        return LogLocation(self.brokers, self.name, self.settings)


def _query(text: str) -> Settings:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError:
        message = "the settings in the URL of a change log cannot be parsed"
        raise UsageError(message, "Write each as name=value, separated by &.") from None
    if len({name for name, _ in pairs}) != len(pairs):
        message = "the URL of a change log contains the same setting twice"
        raise UsageError(message, "Specify each setting once.")
    return tuple(pairs)
