"""The current WAL positions of a server."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.positions import Lsn

__all__ = ["wal_flush_position", "wal_insert_position"]

_WRITTEN = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)::text
"""
_FLUSHED = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text
"""


def wal_insert_position(connection: psycopg.Connection[Any]) -> Lsn:
    """Return a position at or after everything that has committed."""
    return Lsn.parse(connection.execute(_WRITTEN).fetchall()[0][0])


def wal_flush_position(connection: psycopg.Connection[Any]) -> Lsn:
    """Return the position up to which the server can send the stream."""
    return Lsn.parse(connection.execute(_FLUSHED).fetchall()[0][0])
