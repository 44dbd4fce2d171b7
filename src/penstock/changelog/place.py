"""Which change log a source has: the embedded one of its home, or the one that a URL names."""

from __future__ import annotations

from pathlib import Path

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.log import SqliteLog
from penstock.errors import UsageError
from penstock.layout import log_path

__all__ = ["check_log_url", "log_at"]


def log_at(home: Path, source: str, url: str | None) -> ChangeLog:
    """Return the log of a source; without a URL, the file in its home."""
    return SqliteLog(log_path(home, source).absolute()) if url is None else _named(url, source)


def check_log_url(url: str) -> str:
    """Refuse what does not name a log, or has a secret in it."""
    _named(url, "any")
    return url


def _named(url: str, source: str) -> ChangeLog:
    if not url.startswith("kafka://"):
        message = "a change log is named by a URL that begins with kafka://"
        raise UsageError(message, "Name one, like kafka://broker:9092; or leave it out, for one in the home.")
    from penstock.changelog.kafka.log import KafkaLog  # librdkafka: for those who use it

    return KafkaLog.parse(url, source)
