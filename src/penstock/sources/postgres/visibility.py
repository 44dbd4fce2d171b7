"""Wait until the catalog shows the changes of a transaction, which the stream sends earlier.

Postgres sends a transaction as soon as its commit record is flushed. For other sessions it is still running for a
moment, or, with synchronous replication, until a standby has confirmed it: its catalog changes are not visible yet.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from penstock.errors import TransientError

__all__ = ["wait_until_visible"]

_EPOCH = 1 << 32
_POLL_SECONDS = 0.005
_PATIENCE_SECONDS = 10.0


def wait_until_visible(connection: psycopg.Connection[Any], xid: int) -> None:
    """Wait until a transaction that was sent as committed is visible to other sessions."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not _is_visible(connection, xid):
        if time.monotonic() > give_up:
            message = f"transaction {xid} has committed but is not visible yet: it may be waiting for a standby"
            raise TransientError(message, "Penstock retries.")
        time.sleep(_POLL_SECONDS)


def _is_visible(connection: psycopg.Connection[Any], xid: int) -> bool:
    """Return whether a transaction has ended in a current snapshot."""
    (snapshot,) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()[0]
    _, end, running = snapshot.split(":")
    coming = int(end)
    whole = coming + (xid - coming + _EPOCH // 2) % _EPOCH - _EPOCH // 2  # the nearest 64-bit id with these 32 bits
    return whole < coming and str(whole) not in running.split(",")
