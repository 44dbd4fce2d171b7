"""When the catalog shows what a transaction did: later than the stream does.

A transaction is sent as soon as its commit is on disk. For others it still runs then, for a moment, or, where a
standby has to confirm it first, until that has happened: what it changed in the catalog cannot be seen yet.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from penstock.errors import TransientError

__all__ = ["wait_until_visible"]

_EPOCH = 1 << 32
_LOOK_SECONDS = 0.005
_PATIENCE_SECONDS = 10.0


def wait_until_visible(connection: psycopg.Connection[Any], xid: int) -> None:
    """Wait until a transaction that was sent as committed has ended for everybody."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not _is_visible(connection, xid):
        if time.monotonic() > give_up:
            message = f"transaction {xid} has committed, and cannot be seen yet: it may wait for a standby"
            raise TransientError(message, "It will be sent again.")
        time.sleep(_LOOK_SECONDS)


def _is_visible(connection: psycopg.Connection[Any], xid: int) -> bool:
    """Hold a transaction against those that are over in a snapshot of now."""
    (snapshot,) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()[0]
    _, end, running = snapshot.split(":")
    coming = int(end)
    whole = coming + (xid - coming + _EPOCH // 2) % _EPOCH - _EPOCH // 2  # of those with these 32 bits, the nearest
    return whole < coming and str(whole) not in running.split(",")
