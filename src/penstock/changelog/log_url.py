"""The change log of a source: the embedded log in its home, or the log at a URL."""

from __future__ import annotations

from pathlib import Path

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import UsageError
from penstock.layout import log_path

__all__ = ["check_log_url", "log_at"]


def log_at(home: Path, source: str, url: str | None) -> ChangeLog:
    """Return the log of a source: the log at `url`, or, without one, the file in the home."""
    return SqliteLog(log_path(home, source).absolute()) if url is None else _log_at_url(url, source)


def check_log_url(url: str) -> str:
    """Return the URL; raise `UsageError` if it does not identify a log or contains a secret."""
    _log_at_url(url, "any")
    return url


def _log_at_url(url: str, source: str) -> ChangeLog:
    if not url.startswith("kafka://"):
        message = "the URL of a change log must begin with kafka://"
        raise UsageError(message, "Use a URL like kafka://broker:9092, or omit it to keep the log in the home.")
    from penstock.changelog.kafka.log import KafkaLog  # loads librdkafka only if a log is in Kafka

    return KafkaLog.parse(url, source)
