"""Wait for older transactions to end, and report the transaction that blocks.

::

    exported snapshot: the server waits for all running transactions     ─┐
    chunked snapshot: we wait until xmin reaches the next id as of LOW   ─┴─▶ `TransactionWait`: reports, times out

It is sufficient to look at the oldest transaction with an id. The wait is for at least one transaction that was running
at some moment M. The oldest one now is not younger than that one, so it also had its id before M, and it is still
running: it blocks, too. Transactions of other databases count, as their ids come from the same counter; read-only
transactions have no id and do not block.

"All transactions that have begun" are those before `next_transaction`, not before the xmax of a snapshot: xmax is the
first id after the last *completed* transaction, and running ones may have a higher id.

Postgres shows every role the pid, user and application of a session, and prepared transactions; only members of
``pg_read_all_stats`` see when a transaction of another role began. The query of a session is never read.

A transaction that the stream has sent as committed may still be running for other sessions: Postgres sends it as soon
as its commit record is flushed, but its catalog changes are visible a moment later or, with synchronous replication,
when a standby has confirmed it. `wait_until_visible` waits for that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import sql

from penstock.errors import TransientError

__all__ = [
    "OldTransaction",
    "TransactionWait",
    "next_transaction",
    "oldest_transaction",
    "wait_for_transactions_before",
    "wait_until_visible",
]

_POLL_SECONDS = 0.25
_QUIET_SECONDS = 1.0
"""A wait as short as this is not reported."""
_REPEAT_SECONDS = 60.0
_OLDEST = """
SELECT pid, gid, application, username, database, extract(epoch FROM clock_timestamp() - began)::float8
  FROM (SELECT pid, NULL AS gid, application_name AS application, usename AS username, datname AS database,
               xact_start AS began, backend_xid AS xid
          FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
         UNION ALL
        SELECT NULL, gid, NULL, owner, database, prepared, transaction FROM pg_prepared_xacts) AS running
 WHERE %(before)s::text IS NULL OR age(xid) > age(%(before)s::text::xid)
 ORDER BY age(xid) DESC LIMIT 1
"""
_XMIN = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, age('3'::xid)::bigint + 3"
"""The age of an id is its distance from the next one."""
_WRAP = 1 << 32
_LONGER = "or increase the option snapshot_wait"
_UNSEEN = "transactions that this server does not show (on a standby, those of its primary)"


@dataclass(frozen=True)
class OldTransaction:
    """A transaction that blocks others, as far as Postgres shows it to our role."""

    pid: int | None
    gid: str | None
    """The identifier of a prepared transaction, which belongs to no session."""
    application: str | None
    user: str | None
    database: str | None
    seconds: float | None
    """How long it has been open; None if our role cannot see that."""

    def __str__(self) -> str:
        """Return pid or gid, session and age, for messages."""
        known = {"application": self.application, "user": self.user, "database": self.database}
        session = ", ".join(f"{what} {name}" for what, name in known.items() if name)
        which = f"prepared transaction {self.gid!r}" if self.pid is None else f"the transaction of pid {self.pid}"
        age = "age visible to pg_read_all_stats only" if self.seconds is None else f"open for {self.age}"
        return f"{which} ({session}), {age}" if session else f"{which}, {age}"

    @property
    def age(self) -> str:
        """How long it has been open, for messages."""
        seconds = max(0, round(self.seconds or 0.0))
        for name, unit in (("days", 86400), ("hours", 3600), ("minutes", 60)):
            if seconds >= 2 * unit:
                return f"{seconds // unit} {name}"
        return f"{seconds} seconds"

    def hint(self, connection: psycopg.Connection[Any]) -> str:
        """Return how to end it."""
        if self.pid is not None:
            return f"End it, for example with SELECT pg_terminate_backend({self.pid});, {_LONGER}."
        gid = sql.Literal(self.gid).as_string(connection).strip()
        return f"End it, in its database, with COMMIT PREPARED {gid}; or ROLLBACK PREPARED {gid};, {_LONGER}."


def next_transaction(connection: psycopg.Connection[Any]) -> int:
    """Return the next transaction id to be assigned, without consuming it.

    Call it outside of a transaction, in which Postgres would repeat its first answer.
    """
    row = connection.execute(_NEXT).fetchone()
    assert row is not None
    ended, following = row
    return int(ended + (following - ended) % _WRAP)


def oldest_transaction(connection: psycopg.Connection[Any], before: int | None = None) -> OldTransaction | None:
    """Return the oldest transaction with an id, in any database; with `before`, only if its id is lower than that."""
    wrapped = None if before is None else str(before % _WRAP)
    row = connection.execute(_OLDEST, {"before": wrapped}).fetchone()
    return None if row is None else OldTransaction(*row)


class TransactionWait:
    """Limits the wait for older transactions, and reports the one that blocks."""

    def __init__(self, wait: timedelta, report: Callable[[str], None]) -> None:
        self._wait = wait
        self._report = report
        self._began = time.monotonic()
        self._reported: tuple[int | None, str | None] | None = None
        self._reported_at = 0.0

    @property
    def is_long(self) -> bool:
        """Whether the wait is long enough to look for the blocking transaction and report it."""
        waited = time.monotonic() - self._began
        return waited >= _QUIET_SECONDS or self._is_over(waited)

    def _is_over(self, waited: float) -> bool:
        return waited >= self._wait.total_seconds()

    def check(self, connection: psycopg.Connection[Any], before: int | None = None) -> None:
        """Report the blocking transaction if it is another one than before; raise after the maximum wait."""
        if not self.is_long:
            return
        now, found = time.monotonic(), oldest_transaction(connection, before)
        if self._is_over(now - self._began):
            raise self._gave_up(connection, found)
        which = (found.pid, found.gid) if found else (None, None)
        if which != self._reported or now - self._reported_at >= _REPEAT_SECONDS:
            self._report(f"waiting for {found or _UNSEEN}")
            self._reported, self._reported_at = which, now

    def _gave_up(self, connection: psycopg.Connection[Any], found: OldTransaction | None) -> TransientError:
        message = f"timed out after {self._wait} waiting for {found or _UNSEEN}"
        return TransientError(message, found.hint(connection) if found else f"End them, {_LONGER}.")


def wait_for_transactions_before(
    connection: psycopg.Connection[Any],
    xmax: int,
    wait: timedelta,
    report: Callable[[str], None],
    stop: threading.Event,
) -> None:
    """Return when every transaction with an id before `xmax` has ended, or when `stop` is set.

    The connection must be in autocommit mode and outside of a transaction. After `wait`, raise a `TransientError` that
    names the blocking transaction.
    """
    transaction_wait = TransactionWait(wait, report)
    while not stop.is_set():
        row = connection.execute(_XMIN).fetchone()
        if row is not None and int(row[0]) >= xmax:
            return
        transaction_wait.check(connection, xmax)
        stop.wait(_POLL_SECONDS)


# -- visibility of committed transactions ------------------------------------------------------------------------------

_EPOCH = 1 << 32
_VISIBLE_POLL_SECONDS = 0.005
_PATIENCE_SECONDS = 10.0


def wait_until_visible(connection: psycopg.Connection[Any], xid: int) -> None:
    """Wait until a transaction that was sent as committed is visible to other sessions."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while not _is_visible(connection, xid):
        if time.monotonic() > give_up:
            message = f"transaction {xid} has committed but is not visible yet: it may be waiting for a standby"
            raise TransientError(message, "Penstock retries.")
        time.sleep(_VISIBLE_POLL_SECONDS)


def _is_visible(connection: psycopg.Connection[Any], xid: int) -> bool:
    """Return whether a transaction has ended in a current snapshot."""
    (snapshot,) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()[0]
    _, end, running = snapshot.split(":")
    coming = int(end)
    whole = coming + (xid - coming + _EPOCH // 2) % _EPOCH - _EPOCH // 2  # the nearest 64-bit id with these 32 bits
    return whole < coming and str(whole) not in running.split(",")
