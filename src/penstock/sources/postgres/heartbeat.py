"""Heartbeats: a little WAL of our own, now and then, where that was asked for.

A stream moves on with what the server writes; keepalives tell it so even when nothing of it is captured. Only where
the server itself is idle does nothing move, and monitoring that watches the slot's age may want that it does.

``message`` writes a logical message, which needs no table and no right. ``table`` updates the one row of
``dblog_meta.heartbeats``, which was made with the source. Each carries a token that says whose it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

import psycopg

from penstock.errors import DefiniteError
from penstock.positions import Lsn
from penstock.sources.postgres.options import Heartbeat
from penstock.sources.postgres.tokens import MalformedToken, check_fields, read_token, write_token
from penstock.sources.postgres.wal import written

__all__ = ["Beat", "Pulse"]

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
        """Read a token; a text that `token` would not have written raises `MalformedToken`."""
        identity, number = read_token(text, "source", "beat")
        try:
            return cls(identity, number)
        except (ValueError, TypeError) as error:
            raise MalformedToken from error


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
