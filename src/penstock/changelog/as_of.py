"""Resolve the position or timestamp of an AS OF read against a log.

Also converts the timestamps that logs store, and defines the errors for history that has expired, is not captured yet,
or precedes the snapshot, which are the same for every log.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from penstock.changelog.interface import ChangeLogReader, Frontiers
from penstock.errors import DefiniteError, HistoryExpiredError, PenstockError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = [
    "PositionOrTime",
    "from_microseconds",
    "history_expired",
    "microseconds",
    "no_snapshot_at",
    "not_yet_captured",
    "optional_from_microseconds",
    "position_as_of",
]

PositionOrTime = Lsn | datetime


def position_as_of(source: str, reader: ChangeLogReader, frontiers: Frontiers, target: PositionOrTime) -> Lsn:
    """Return the position at which to read a log; raise `HistoryExpiredError` if its history begins later."""
    if isinstance(target, Lsn):
        if target < frontiers.valid:
            raise _begins_later(source, target, frontiers)
        return target
    try:
        return reader.position_at(target)
    except HistoryExpiredError as expired:
        raise _begins_later(source, target, reader.frontiers()) from expired


def not_yet_captured(lagging: Mapping[str, tuple[Frontiers, PositionOrTime]]) -> TransientError:
    """Return the error for positions or timestamps that these sources have not reached yet."""
    progress = (
        f"source {source} has reached {_formatted(frontiers.durable if isinstance(target, Lsn) else frontiers.passed)},"
        f" not {_formatted(target)}"
        for source, (frontiers, target) in lagging.items()
    )
    message = f"not captured yet: {'; '.join(progress)}"
    return TransientError(
        message, "Wait (`wait` in Python), use an earlier position or time, or run `penstock status`."
    )


def _begins_later(source: str, target: PositionOrTime, frontiers: Frontiers) -> HistoryExpiredError:
    start = f"{frontiers.valid} ({_formatted(frontiers.valid_at)})"
    message = f"source {source} cannot be read as of {_formatted(target)}: its history begins at {start}"
    return HistoryExpiredError(
        message, "Use that position or a later one. To keep more from now on, retain more history."
    )


def _formatted(target: PositionOrTime) -> str:
    return target.isoformat(sep=" ") if isinstance(target, datetime) else str(target)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(at: datetime) -> int:
    """Return a timestamp as microseconds since 1970, exactly."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def from_microseconds(at: int) -> datetime:
    """Return the timestamp that is `at` microseconds after 1970."""
    return _EPOCH + timedelta(microseconds=at)


def optional_from_microseconds(at: int | None) -> datetime | None:
    """Return the timestamp that is `at` microseconds after 1970, or None for None."""
    return None if at is None else from_microseconds(at)


def no_snapshot_at(table: TableName, first: Lsn | None, at: Lsn) -> PenstockError:
    """Return the error for a table without a snapshot at or before `at`; its first snapshot, if any, is at `first`."""
    if first is None:
        return TransientError(f"the initial snapshot of {table} is not complete", "Wait, or run `penstock status`.")
    message = f"the snapshot of {table} is at {first}: it cannot be read as of {at}, before that"
    return DefiniteError(message, f"Use {first}, the position of the snapshot, or a later one.")


def history_expired(what: TableName | str, after: Lsn | datetime, valid: Lsn) -> HistoryExpiredError:
    """Return the error for a range that begins before `valid`."""
    message = f"the log's history of {what} begins at {valid}: changes after {after} were removed"
    return HistoryExpiredError(
        message, "Start from that position or a later one, or from a new snapshot (startingPosition earliest)."
    )
