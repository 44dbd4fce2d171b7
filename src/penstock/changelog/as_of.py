"""Where a log is read as of a position or a moment, and what is said where it cannot be.

Moments as logs store them, and the words for history that is gone or never was: the same in every log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from penstock.changelog.interface import ChangeLogReader, Frontiers
from penstock.errors import DefiniteError, HistoryExpiredError, PenstockError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Asked", "exactly", "history_gone", "microseconds", "moment", "not_copied", "not_yet", "position_as_of"]

Asked = Lsn | datetime


def position_as_of(source: str, reader: ChangeLogReader, stands: Frontiers, asked: Asked) -> Lsn:
    """Return the position to read a log at; raise `HistoryExpiredError` where its history begins later."""
    if isinstance(asked, Lsn):
        if asked < stands.valid:
            raise _begins_later(source, asked, stands)
        return asked
    try:
        return reader.position_at(asked)
    except HistoryExpiredError as gone:
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


def _begins_later(source: str, asked: Asked, stands: Frontiers) -> HistoryExpiredError:
    begun = f"{stands.valid} ({_told(stands.valid_at)})"
    message = f"source {source} cannot be read as of {_told(asked)}: its history begins at {begun}"
    return HistoryExpiredError(message, "Ask for that or a later one. To keep more from now on, retain more history.")


def _told(asked: Asked) -> str:
    return asked.isoformat(sep=" ") if isinstance(asked, datetime) else str(asked)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """Return a moment as microseconds since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def exactly(at: int) -> datetime:
    """Return the moment of so many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=at)


def moment(at: int | None) -> datetime | None:
    """Do the same where there is one."""
    return None if at is None else exactly(at)


def not_copied(table: TableName, first: Lsn | None, at: Lsn) -> PenstockError:
    """Say that there is no copy of a table at or before a position; the first is at `first`, if there is one."""
    if first is None:
        return TransientError(f"{table} is still being copied", "It can be read when its first copy is whole.")
    message = f"{table} was copied at {first}: what it was at {at}, before that, is not known"
    return DefiniteError(message, f"Ask for {first}, the position of its copy, or a later one.")


def history_gone(what: TableName | str, after: Lsn | datetime, valid: Lsn) -> HistoryExpiredError:
    """Say that a range begins too early."""
    message = f"the log's history of {what} begins at {valid}: what came after {after} is no longer in it"
    return HistoryExpiredError(
        message, "Start from that position or a later one, or anew from a fresh copy (earliest)."
    )
