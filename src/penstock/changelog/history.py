"""Moments as logs store them, and the words for history that is gone or never was: the same in every log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.errors import DefiniteError, HistoryGone, PenstockError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["exactly", "history_gone", "microseconds", "moment", "not_copied"]

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


def history_gone(what: TableName | str, after: Lsn | datetime, valid: Lsn) -> HistoryGone:
    """Say that a range begins too early."""
    message = f"the log's history of {what} begins at {valid}: what came after {after} is no longer in it"
    return HistoryGone(message, "Start from that position or a later one, or anew from a fresh copy (earliest).")
