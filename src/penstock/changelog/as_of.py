"""Where a log is read as of a position or a moment, and what is said where it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from penstock.changelog.interface import ChangeLogReader, Frontiers
from penstock.errors import HistoryGone, TransientError
from penstock.positions import Lsn

__all__ = ["Asked", "not_yet", "position_as_of"]

Asked = Lsn | datetime


def position_as_of(source: str, reader: ChangeLogReader, stands: Frontiers, asked: Asked) -> Lsn:
    """Return the position that is meant, of a log that has come that far; `HistoryGone` where it begins later."""
    if isinstance(asked, Lsn):
        if asked < stands.valid:
            raise _begins_later(source, asked, stands)
        return asked
    try:
        return reader.position_at(asked)
    except HistoryGone as gone:
        raise _begins_later(source, asked, reader.frontiers()) from gone


def not_yet(behind: Mapping[str, tuple[Frontiers, Asked]]) -> TransientError:
    """Say how far each of these sources has come, and what was asked of it."""
    told = (
        f"source {source} has come to {_told(stands.durable if isinstance(asked, Lsn) else stands.passed)},"
        f" not to {_told(asked)}"
        for source, (stands, asked) in behind.items()
    )
    message = f"that is not known yet: {'; '.join(told)}"
    return TransientError(message, "Wait for it (in Python `wait`), ask for an earlier one, or see `penstock status`.")


def _begins_later(source: str, asked: Asked, stands: Frontiers) -> HistoryGone:
    begun = f"{stands.valid} ({_told(stands.valid_at)})"
    message = f"source {source} cannot be read as of {_told(asked)}: its history begins at {begun}"
    return HistoryGone(message, "Ask for that or a later one. To keep more from now on, retain more history.")


def _told(asked: Asked) -> str:
    return asked.isoformat(sep=" ") if isinstance(asked, datetime) else str(asked)
