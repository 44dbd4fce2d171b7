"""Heartbeats: a little WAL of our own, now and then, where that was asked for.

A stream moves on with what the server writes; keepalives tell it so even when nothing of it is captured. Only where
the server itself is idle does nothing move, and monitoring that watches the slot's age may want that it does.

``message`` writes a logical message, which needs no table and no right. ``table`` updates the one row of
``dblog_meta.heartbeats``, which was made with the source. Each carries a token that says whose it is.

How capture learns that the server has passed a moment, also when nothing happens there.

::

    ask: the server's clock C, then the end W of its WAL ─▶ the log has come to W ─▶ everything before C is in it

A commit takes its time first and its place in the WAL a little later. So one that is dated before C may still lie
after W: `_MARGIN` makes that rare, and the change log lets it count as committed at C (see `changelog.interface`). It
ended after C in any case, so whoever saw it, and then wrote elsewhere, did so later than C.

The clock in a keepalive would not do: a server that is behind with decoding sends it as well.

When the server was last heard of, for others to see: the time of an empty file in the folder of the source.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psycopg

from penstock.changelog.as_of import microseconds
from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.options import Heartbeat
from penstock.sources.postgres.wal import written
from penstock.sources.postgres.watermark import MalformedTokenError, check_fields, read_token, write_token

__all__ = ["Beat", "Pulse", "ServerClock", "SignOfLife", "silent_since"]

_LOCK_TIMEOUT = "100ms"
_MESSAGE = "SELECT pg_logical_emit_message(false, 'penstock.heartbeat', %s::text)"
_UPDATE = "UPDATE dblog_meta.heartbeats SET token = %s WHERE id = 1"
_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege)


@dataclass(frozen=True)
class Beat:
    """One heartbeat of a source: the how many-th since its capture started."""

    identity: str
    number: int

    def __post_init__(self) -> None:
        """Hold the fields to what a token may have."""
        check_fields(self.number, self.identity)

    def token(self) -> str:
        """Return it as it stands in the stream."""
        return write_token({"source": self.identity, "beat": self.number})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a token; a text that `token` would not have written raises `MalformedTokenError`."""
        identity, number = read_token(text, "source", "beat")
        try:
            return cls(identity, number)
        except (ValueError, TypeError) as error:
            raise MalformedTokenError from error


class Pulse:
    """Beats at an interval, when asked to."""

    def __init__(self, kind: Heartbeat | None, seconds: float, identity: str) -> None:
        self._kind = kind
        self._seconds = seconds
        self._identity = identity
        self._number = 0
        self._next = 0.0
        self._missed: Lsn | None = None
        """Where the server was when the row was first found to be gone."""

    def due(self) -> bool:
        """Say whether it is time to beat."""
        return self._kind is not None and time.monotonic() >= self._next

    def beat(self, connection: psycopg.Connection[Any], durable: Lsn) -> None:
        """Write a little WAL; `durable` is how far the log is."""
        self._next = time.monotonic() + self._seconds
        self._number += 1
        token = Beat(self._identity, self._number).token()
        if self._kind is Heartbeat.MESSAGE:
            connection.execute(_MESSAGE, (token,))
        elif not self._update(connection, token):
            self._miss(connection, durable)

    def _update(self, connection: psycopg.Connection[Any], token: str) -> bool:
        """Replace the token in the one row; a row that somebody holds costs a beat, and holds up nothing."""
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                return connection.execute(_UPDATE, (token,)).rowcount == 1
        except psycopg.errors.LockNotAvailable:
            return True
        except _GONE:
            return False

    def _miss(self, connection: psycopg.Connection[Any], durable: Lsn) -> None:
        """The stream tells who removed the row. If it has come this far without a word, it never will."""
        if self._missed is None:
            self._missed = written(connection)
        elif durable >= self._missed:
            message = "the row of dblog_meta.heartbeats is gone, or Penstock may not update it any more"
            raise DefiniteError(message, "Find out who did that; then drop the source and capture it again.")


_SECONDS = 2.0
_MARGIN = timedelta(seconds=1)
_ASK = """
SELECT clock_timestamp(), pg_current_wal_insert_lsn()::text, current_setting('wal_block_size')::int
WHERE NOT pg_is_in_recovery()
"""
"""A standby does not know what time it is where transactions commit."""
_PAGE_HEADERS = (24, 40)


class ServerClock:
    """Asks now and then, and remembers until the log has come that far."""

    def __init__(self) -> None:
        self._next = 0.0
        self._asked: tuple[int, Lsn] | None = None

    def due(self) -> bool:
        """Say whether it is time to ask."""
        return self._asked is None and time.monotonic() >= self._next

    def ask(self, connection: psycopg.Connection[Any]) -> None:
        """Ask the server where it is."""
        self._next = time.monotonic() + _SECONDS
        for clock, end, page in connection.execute(_ASK).fetchall():
            self._asked = (microseconds(clock - _MARGIN), _end(Lsn.parse(end), page))

    def passed(self, durable: Lsn) -> int | None:
        """Return the moment that is settled by a log which has come to `durable`, if that is news."""
        if self._asked is None or durable < self._asked[1]:
            return None
        moment, self._asked = self._asked[0], None
        return moment


def _end(insert: Lsn, page: int) -> Lsn:
    """Return where the last record ends: at the end of a page, the next one begins behind the header of another."""
    offset = insert % page
    return Lsn(insert - offset) if offset in _PAGE_HEADERS else insert


_FILE = "heard"
_EACH_SECONDS = 1.0
_SILENT_SECONDS = 5.0
"""Capture asks for an answer every second."""


class SignOfLife:
    """Notes that the server was heard of; without a folder, nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._noted = 0.0

    def note(self, heard: float) -> None:
        """Take note of when that was, by the monotonic clock; a full disk is told by others."""
        if self._folder is None or heard - self._noted < _EACH_SECONDS:
            return
        self._noted = heard
        at = time.time() - (time.monotonic() - heard)
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._folder / _FILE
            path.touch(mode=0o600)
            os.utime(path, (at, at))


def silent_since(folder: Path) -> datetime | None:
    """Return since when nothing was heard, if that is longer than it should be; None also where nothing ever was."""
    with suppress(OSError):
        heard = (folder / _FILE).stat().st_mtime
        if time.time() - heard > _SILENT_SECONDS:
            return datetime.fromtimestamp(heard, UTC)
    return None
