"""Which transaction is in the way of one who has to wait for those that began earlier; and the waiting.

::

    an exported snapshot: the server waits for all that was running    ─┐
    a chunked copy: we wait until xmin reaches what was next at LOW     ─┴─▶ `Patience`: says for whom, and gives up

It is enough to look at the oldest transaction that has an id. Whoever waits, waits for at least one that was running
at some moment M. The oldest of today is not younger than that one, so it had its id before M as well, and it still
runs: it is in the way, too. Transactions of other databases count, as their ids come from the same counter; those that
have only read have no id and are in nobody's way.

"All that have begun by now" is `next_transaction`, not the xmax of a snapshot: that one is the first id behind the
last transaction to have *ended*, and some that run may have a higher one.

Postgres shows everybody the pid, user and application of a session, and prepared transactions; since when somebody
else's transaction is open is for members of ``pg_read_all_stats``. What a session runs is never asked for.
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

__all__ = ["OldTransaction", "Patience", "next_transaction", "oldest_transaction", "wait_for_transactions_before"]

_LOOK_SECONDS = 0.25
_QUIET_SECONDS = 1.0
"""Nobody needs to be told of a wait as short as this."""
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
_LONGER = "or let the copy wait longer (the option snapshot_wait)"
_UNSEEN = "transactions that this server does not show; of a standby, those of its primary"


@dataclass(frozen=True)
class OldTransaction:
    """A transaction that others wait for, as far as Postgres shows it to us."""

    pid: int | None
    gid: str | None
    """The name under which it was prepared; it then belongs to no session."""
    application: str | None
    user: str | None
    database: str | None
    seconds: float | None
    """For how long it is open; None where we may not see that."""

    def __str__(self) -> str:
        """Say whose it is, and how old."""
        known = {"application": self.application, "user": self.user, "database": self.database}
        whose = ", ".join(f"{what} {name}" for what, name in known.items() if name)
        which = f"the prepared transaction {self.gid!r}" if self.pid is None else f"the transaction of pid {self.pid}"
        age = "open for a time that only pg_read_all_stats may see" if self.seconds is None else f"open for {self.age}"
        return f"{which} ({whose}), {age}" if whose else f"{which}, {age}"

    @property
    def age(self) -> str:
        """For how long it is open, in words."""
        seconds = max(0, round(self.seconds or 0.0))
        for name, unit in (("days", 86400), ("hours", 3600), ("minutes", 60)):
            if seconds >= 2 * unit:
                return f"{seconds // unit} {name}"
        return f"{seconds} seconds"

    def hint(self, connection: psycopg.Connection[Any]) -> str:
        """Say what ends it."""
        if self.pid is not None:
            return f"End it, for example by SELECT pg_terminate_backend({self.pid});, {_LONGER}."
        gid = sql.Literal(self.gid).as_string(connection).strip()
        return f"End it, in its database, by COMMIT PREPARED {gid}; or ROLLBACK PREPARED {gid};, {_LONGER}."


def next_transaction(connection: psycopg.Connection[Any]) -> int:
    """Return the first transaction id that nobody has been given yet, without taking one.

    Asked for by a statement of its own: within a transaction Postgres repeats its first answer.
    """
    row = connection.execute(_NEXT).fetchone()
    assert row is not None
    ended, following = row
    return int(ended + (following - ended) % _WRAP)


def oldest_transaction(connection: psycopg.Connection[Any], before: int | None = None) -> OldTransaction | None:
    """Return the oldest transaction that has an id, of any database; or the oldest whose id lies before this one."""
    wrapped = None if before is None else str(before % _WRAP)
    row = connection.execute(_OLDEST, {"before": wrapped}).fetchone()
    return None if row is None else OldTransaction(*row)


class Patience:
    """Waits for transactions no longer than it may, and tells for which."""

    def __init__(self, wait: timedelta, tell: Callable[[str], None]) -> None:
        self._wait = wait
        self._tell = tell
        self._began = time.monotonic()
        self._told: tuple[int | None, str | None] | None = None
        self._told_at = 0.0

    @property
    def is_long(self) -> bool:
        """Whether it has waited so long that somebody should be told; before that, nobody needs to look."""
        waited = time.monotonic() - self._began
        return waited >= _QUIET_SECONDS or self._is_over(waited)

    def _is_over(self, waited: float) -> bool:
        return waited >= self._wait.total_seconds()

    def look(self, connection: psycopg.Connection[Any], before: int | None = None) -> None:
        """Look what is in the way: say so, when it is something else than before; raise, when it was long enough."""
        if not self.is_long:
            return
        now, found = time.monotonic(), oldest_transaction(connection, before)
        if self._is_over(now - self._began):
            raise self._gave_up(connection, found)
        which = (found.pid, found.gid) if found else (None, None)
        if which != self._told or now - self._told_at >= _REPEAT_SECONDS:
            self._tell(f"waiting for {found or _UNSEEN}")
            self._told, self._told_at = which, now

    def _gave_up(self, connection: psycopg.Connection[Any], found: OldTransaction | None) -> TransientError:
        message = f"waited {self._wait} in vain for {found or _UNSEEN}"
        return TransientError(message, found.hint(connection) if found else f"End them, {_LONGER}.")


def wait_for_transactions_before(
    connection: psycopg.Connection[Any], xmax: int, wait: timedelta, tell: Callable[[str], None], stop: threading.Event
) -> None:
    """Return when every transaction with an id before `xmax` has ended, or when told to stop.

    The connection must be in autocommit mode and outside of a transaction. After `wait`, a `TransientError` names the
    transaction that is in the way.
    """
    patience = Patience(wait, tell)
    while not stop.is_set():
        row = connection.execute(_XMIN).fetchone()
        if row is not None and int(row[0]) >= xmax:
            return
        patience.look(connection, xmax)
        stop.wait(_LOOK_SECONDS)
