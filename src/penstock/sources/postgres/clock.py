"""How capture learns that the server has passed a moment, also when nothing happens there.

::

    ask: the server's clock C, then the end W of its WAL ─▶ the log has come to W ─▶ everything before C is in it

A commit takes its time first and its place in the WAL a little later. So one that is dated before C may still lie
after W: `_MARGIN` makes that rare, and the change log lets it count as committed at C (see `changelog.interface`). It
ended after C in any case, so whoever saw it, and then wrote elsewhere, did so later than C.

The clock in a keepalive would not do: a server that is behind with decoding sends it as well.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg

from penstock.changelog.history import microseconds
from penstock.positions import Lsn

__all__ = ["ServerClock"]

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
