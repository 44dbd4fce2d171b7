"""Heartbeats: a little WAL of our own, now and then, where that was asked for.

A stream moves on with what the server writes; keepalives tell it so even when nothing of it is captured. Only where
the server itself is idle does nothing move, and monitoring that watches the slot's age may want that it does.

``message`` writes a logical message, which needs no table and no right. ``table`` updates the one row of
``dblog_meta.heartbeats``, made here if it is not there.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from penstock.sources.postgres.options import Heartbeat

__all__ = ["Pulse"]

_MESSAGE = "SELECT pg_logical_emit_message(false, 'penstock.heartbeat', '')"
_MAKE = """
CREATE SCHEMA IF NOT EXISTS dblog_meta;
CREATE TABLE IF NOT EXISTS dblog_meta.heartbeats (
    id integer PRIMARY KEY CHECK (id = 1), beaten_at timestamptz NOT NULL DEFAULT now())
"""
_BEAT = """
INSERT INTO dblog_meta.heartbeats (id) VALUES (1)
    ON CONFLICT (id) DO UPDATE SET beaten_at = excluded.beaten_at
"""


class Pulse:
    """Beats at an interval, when asked to."""

    def __init__(self, kind: Heartbeat | None, seconds: float) -> None:
        self._kind = kind
        self._seconds = seconds
        self._next = 0.0
        self._made = False

    def due(self) -> bool:
        """Say whether it is time to beat."""
        return self._kind is not None and time.monotonic() >= self._next

    def beat(self, connection: psycopg.Connection[Any]) -> None:
        """Write a little WAL."""
        self._next = time.monotonic() + self._seconds
        if self._kind is Heartbeat.MESSAGE:
            connection.execute(_MESSAGE)
            return
        if not self._made and connection.execute("SELECT to_regclass('dblog_meta.heartbeats')").fetchone() == (None,):
            connection.execute(_MAKE)
        self._made = True
        connection.execute(_BEAT)
