"""The status of a server in one query: the end of its WAL, its clock, and the slot with the WAL that it retains."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from penstock.errors import PenstockError
from penstock.positions import Lsn
from penstock.sources.postgres.replication.slot import invalidation_reason
from penstock.sources.upstream_status import SlotStatus, UpstreamStatus

__all__ = ["ServerWatch", "server_status"]

_QUERY = """
SELECT w.flushed::text, extract(epoch FROM clock_timestamp())::float8, s.slot_name IS NOT NULL,
       coalesce(s.active, false), s.wal_status, pg_wal_lsn_diff(w.written, s.restart_lsn)::bigint, s.safe_wal_size,
       s.confirmed_flush_lsn::text, {reason}
  FROM (SELECT CASE WHEN r THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END AS flushed,
               CASE WHEN r THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END AS written
          FROM pg_is_in_recovery() r) w
  LEFT JOIN pg_replication_slots s ON s.slot_name = %s
"""


def server_status(connection: psycopg.Connection[Any], slot: str) -> UpstreamStatus:
    """Query the server; the clock is compared with the middle of the query, so its error is half the round trip."""
    query = _QUERY.format(reason=invalidation_reason(connection.info.server_version))
    asked = time.time()
    [(flushed, clock, exists, *found)] = connection.execute(query, (slot,)).fetchall()
    skew = clock - (asked + time.time()) / 2
    active, wal_status, retained, safe, confirmed, reason = found
    retained = None if retained is None else max(0, retained)  # the two positions are not of the same moment
    state = SlotStatus(slot, active, wal_status, retained, safe, confirmed, reason if exists else "it does not exist")
    return UpstreamStatus(Lsn.parse(flushed), round(skew * 1000, 1), state)


class ServerWatch:
    """Queries a server repeatedly over one connection, which is opened again when it was lost."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], slot: str) -> None:
        self._connect = connect
        self._slot = slot
        self._connection: psycopg.Connection[Any] | None = None

    def status(self) -> UpstreamStatus | None:
        """Return the status; None if the server does not answer."""
        if self._connection is not None:
            with suppress(PenstockError, psycopg.Error):
                return server_status(self._connection, self._slot)
        self.close()
        try:
            self._connection = self._connect()
            return server_status(self._connection, self._slot)
        except (PenstockError, psycopg.Error):
            self.close()
            return None

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
