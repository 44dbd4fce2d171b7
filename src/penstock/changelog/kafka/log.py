"""Where a log in Kafka is: brokers, a name, and settings for its clients.

It is written as a URL::

    kafka://b1:9092,b2:9092/prefix?security.protocol=SASL_SSL&sasl.username=u&sasl.password=env:KAFKA_PASSWORD

The name of a log is the prefix and the source, with a dot between; without a prefix it is ``penstock``.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from penstock.changelog.interface import ChangeLog
from penstock.changelog.kafka.clients import Place, Settings, checked
from penstock.changelog.kafka.reader import KafkaLogReader
from penstock.changelog.kafka.topics import delete_topics, is_begun, require_topics, topics_exist, write_beginning
from penstock.changelog.kafka.writer import KafkaLogWriter
from penstock.errors import UsageError
from penstock.positions import Lsn

__all__ = ["KafkaLog"]

_EXAMPLE = "Write it like kafka://broker1:9092,broker2:9092/prefix?security.protocol=SSL."
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
        """Refuse what cannot be a log, and secrets in clear."""
        if not all(_BROKERS.fullmatch(broker) for broker in self.brokers.split(",")):
            message = "the brokers of a change log are named by host and port, with commas between"
            raise UsageError(message, _EXAMPLE)
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST or self.name in (".", ".."):
            message = f"{self.name!r} cannot be the name of a Kafka topic"
            raise UsageError(message, f"Use letters, digits, dots, dashes and underscores; {_LONGEST} at most.")
        object.__setattr__(self, "settings", checked(self.settings))

    @classmethod
    def parse(cls, url: str, source: str) -> Self:
        """Read a URL; see the module. Nothing of it is repeated in an error but names."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != "kafka" or not parts.netloc or parts.fragment:
            message = "a change log in Kafka is named by a URL that begins with kafka://"
            raise UsageError(message, _EXAMPLE)
        if "@" in parts.netloc:
            message = "the URL of a change log has a user or password before its brokers"
            raise UsageError(message, "Give them as settings: ?sasl.username=…&sasl.password=env:NAME.")
        prefix = unquote(parts.path).strip("/") or _PREFIX
        return cls(parts.netloc, f"{prefix}.{source}", _query(parts.query))

    def url(self) -> str:
        """Return the URL that `parse` reads; it holds references, no secrets."""
        query = "&".join(f"{name}={quote(value, safe='/:,')}" for name, value in self.settings)
        prefix = self.name.rpartition(".")[0]
        return f"kafka://{self.brokers}/{prefix}{'?' if query else ''}{query}"

    def create(self, start: Lsn) -> None:
        """Make the topics, and the first record unless there is one."""
        place = self._place()
        require_topics(place)
        if not is_begun(place):
            write_beginning(place, start, time.time_ns() // 1000)

    def remove(self) -> None:
        """Delete the topics."""
        delete_topics(self._place())

    def exists(self) -> bool:
        """Say whether the topics are there and have been begun."""
        place = self._place()
        return topics_exist(place) and is_begun(place)

    def writer(self) -> KafkaLogWriter:
        """Become its writer: whoever was it before is fenced."""
        return KafkaLogWriter(self._place())

    def reader(self) -> KafkaLogReader:
        """Open it; nothing is connected before it is needed."""
        return KafkaLogReader(self._place())

    def __str__(self) -> str:
        """Brokers and name."""
        return f"kafka://{self.brokers} {self.name}"

    def _place(self) -> Place:
        return Place(self.brokers, self.name, self.settings)


def _query(text: str) -> Settings:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError:
        message = "the settings in the URL of a change log cannot be read"
        raise UsageError(message, "Write each as name=value, with & between.") from None
    if len({name for name, _ in pairs}) != len(pairs):
        message = "a setting comes twice in the URL of a change log"
        raise UsageError(message, "Give each setting once.")
    return tuple(pairs)
