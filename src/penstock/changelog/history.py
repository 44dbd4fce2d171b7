"""Moments as logs store them, and the word for history that is gone: the same in every log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.errors import HistoryGone
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["exactly", "history_gone", "microseconds", "moment"]

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


def history_gone(what: TableName | str, after: Lsn | datetime, valid: Lsn) -> HistoryGone:
    """Say that a range begins too early."""
    message = f"the log's history of {what} begins at {valid}: what came after {after} is no longer in it"
    return HistoryGone(message, "Start from that position or a later one, or anew from a fresh copy (earliest).")
