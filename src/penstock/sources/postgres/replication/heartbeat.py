"""Heartbeats, the server's clock, and the time of the last contact with the server.

**Heartbeats** write a small WAL record at an interval, if the option is set. The stream advances with every write on
the server; keepalives report that even if none of the writes is captured. Only on an idle server nothing advances, and
monitoring of the slot's age may require that it does. ``message`` writes a logical message, which needs no table and no
privilege. ``table`` updates the one row of ``dblog_meta.heartbeats``, which is created with the source. Each heartbeat
has a token that identifies its source.

**The server's clock** lets `ServerClock` prove that the log is complete up to a time, also on an idle server::

    read the server's clock C, then the end W of its WAL ─▶ the log has reached W ─▶ it contains all commits before C

A commit takes its timestamp first and its position in the WAL a little later. So a commit with a timestamp before C may
still lie after W: `_MARGIN` makes that rare, and the change log then counts it as committed at C (see
`changelog.interface`). It ended after C in any case, so a session that saw it, and then wrote elsewhere, did so after
C. The clock in a keepalive is not usable: a server whose decoding lags sends it as well.

**The last contact** with the server is the modification time of an empty file in the folder of the source, so that
other processes can read it.
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
from penstock.private_file import create_folder
from penstock.sources.postgres.options import Heartbeat
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.sources.postgres.replication.watermark import MalformedTokenError, check_fields, read_token, write_token

__all__ = ["Beat", "HeartbeatWriter", "LastContact", "ServerClock", "silent_since"]

_LOCK_TIMEOUT = "100ms"
_MESSAGE = "SELECT pg_logical_emit_message(false, 'penstock.heartbeat', %s::text)"
_UPDATE = "UPDATE dblog_meta.heartbeats SET token = %s WHERE id = 1"
_ROW_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InsufficientPrivilege)


@dataclass(frozen=True)
class Beat:
    """One heartbeat of a source, numbered since its capture started."""

    identity: str
    number: int

    def __post_init__(self) -> None:
        """Validate the fields of the token."""
        check_fields(self.number, self.identity)

    def token(self) -> str:
        """Return the token that is written to the stream."""
        return write_token({"source": self.identity, "beat": self.number})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a token; raise `MalformedTokenError` for a text that `token` would not return."""
        identity, number = read_token(text, "source", "beat")
        try:
            return cls(identity, number)
        except (ValueError, TypeError) as error:
            raise MalformedTokenError from error


class HeartbeatWriter:
    """Writes heartbeats at an interval, if the option is set."""

    def __init__(self, kind: Heartbeat | None, seconds: float, identity: str) -> None:
        self._kind = kind
        self._seconds = seconds
        self._identity = identity
        self._number = 0
        self._next = 0.0
        self._missing_since: Lsn | None = None
        """The end of the WAL when the row was first found missing."""

    def is_due(self) -> bool:
        """Return whether the next heartbeat is due."""
        return self._kind is not None and time.monotonic() >= self._next

    def write(self, connection: psycopg.Connection[Any], durable: Lsn) -> None:
        """Write one heartbeat; `durable` is the end of the log."""
        self._next = time.monotonic() + self._seconds
        self._number += 1
        token = Beat(self._identity, self._number).token()
        if self._kind is Heartbeat.MESSAGE:
            connection.execute(_MESSAGE, (token,))
        elif not self._update(connection, token):
            self._check_missing(connection, durable)

    def _update(self, connection: psycopg.Connection[Any], token: str) -> bool:
        """Replace the token in the row; skip this heartbeat if another session has locked the row.

        Return False if the row is missing or not writable.
        """
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")
                return connection.execute(_UPDATE, (token,)).rowcount == 1
        except psycopg.errors.LockNotAvailable:
            return True
        except _ROW_MISSING:
            return False

    def _check_missing(self, connection: psycopg.Connection[Any], durable: Lsn) -> None:
        """Raise if the row is missing and the stream has passed that position without reporting its removal."""
        if self._missing_since is None:
            self._missing_since = wal_insert_position(connection)
        elif durable >= self._missing_since:
            message = "the row of dblog_meta.heartbeats is missing, or the role can no longer update it"
            raise DefiniteError(message, "Find the cause, then drop the source and capture it again.")


_SECONDS = 2.0
_MARGIN = timedelta(seconds=1)
_READ_CLOCK = """
SELECT clock_timestamp(), pg_current_wal_insert_lsn()::text, current_setting('wal_block_size')::int
WHERE NOT pg_is_in_recovery()
"""
"""Not on a standby: its clock is not the one that dates the commits."""
_PAGE_HEADERS = (24, 40)


class ServerClock:
    """Reads the server's clock periodically, and keeps it until the log has reached that position."""

    def __init__(self) -> None:
        self._next = 0.0
        self._pending: tuple[int, Lsn] | None = None

    def is_due(self) -> bool:
        """Return whether the next read is due."""
        return self._pending is None and time.monotonic() >= self._next

    def read(self, connection: psycopg.Connection[Any]) -> None:
        """Read the clock and the end of the WAL."""
        self._next = time.monotonic() + _SECONDS
        for clock, end, page in connection.execute(_READ_CLOCK).fetchall():
            self._pending = (microseconds(clock - _MARGIN), _end(Lsn.parse(end), page))

    def complete_until(self, durable: Lsn) -> int | None:
        """Return the time up to which a log that ends at `durable` is complete; None if there is no new one."""
        if self._pending is None or durable < self._pending[1]:
            return None
        moment, self._pending = self._pending[0], None
        return moment


def _end(insert: Lsn, page: int) -> Lsn:
    """Return the end of the last record; after a full page the insert position follows the header of the next page."""
    offset = insert % page
    return Lsn(insert - offset) if offset in _PAGE_HEADERS else insert


_FILE = "heard"
_EACH_SECONDS = 1.0
_SILENT_SECONDS = 5.0
"""Capture requests a reply every second."""


class LastContact:
    """Records the time of the last message from the server; does nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._recorded = 0.0

    def record(self, heard: float) -> None:
        """Record a time of the monotonic clock; ignore I/O errors, as other writers report a full disk."""
        if self._folder is None or heard - self._recorded < _EACH_SECONDS:
            return
        self._recorded = heard
        at = time.time() - (time.monotonic() - heard)
        with suppress(OSError):
            create_folder(self._folder)
            path = self._folder / _FILE
            path.touch(mode=0o600)
            os.utime(path, (at, at))


def silent_since(folder: Path) -> datetime | None:
    """Return the time of the last contact if it is too long ago; None otherwise, or if there was no contact yet."""
    with suppress(OSError):
        heard = (folder / _FILE).stat().st_mtime
        if time.time() - heard > _SILENT_SECONDS:
            return datetime.fromtimestamp(heard, UTC)
    return None
