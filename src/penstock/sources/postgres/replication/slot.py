"""Replication slots: the permanent slot that capture reads, and the temporary slots that export a snapshot.

The permanent slot is created once, with the source. A slot that was dropped, invalidated, or confirmed beyond the end
of the log is a permanent error. It is never recreated: the changes in between would be lost silently. A slot that
another session reads is not shared.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import pq, sql
from psycopg.errors import error_from_result

from penstock.errors import DefiniteError, InUseError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect, connect_replication, disable_timeouts
from penstock.sources.postgres.replication.old_transactions import TransactionWait

__all__ = [
    "ExportedSnapshot",
    "SlotFlags",
    "SlotInUseError",
    "SlotState",
    "check_slot",
    "create_slot",
    "drop_slot",
    "export_snapshot",
    "find_slot",
    "identify",
    "import_snapshot",
    "invalidation_reason",
    "slot_problem",
]

_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 5.0
_STATE = """
SELECT s.slot_type, s.plugin, s.database, s.active_pid, s.wal_status, s.confirmed_flush_lsn::text, s.restart_lsn::text,
       s.database = current_database(), s.temporary, s.two_phase, {failover}, {reason},
       a.application_name, host(a.client_addr)
  FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s
"""
_CONFLICT = "CASE WHEN s.conflicting THEN CASE WHEN pg_is_in_recovery() THEN 'conflict' ELSE 'wal_removed' END END"
"""Postgres 16 reports any invalidation as a conflict; a real conflict happens on standbys only."""
_RECREATE = "Drop the source with `penstock drop {source}` and capture it again, with a new snapshot of its tables."

_READ_ELSEWHERE = (
    "If another home reads this slot (a copy of this one, or its original), remove the source from this home only:"
    " penstock drop {source} --force. If none does, the slot was advanced by other means: run the same command and the"
    " statements that it prints, and capture the source again, with a new snapshot of its tables."
)


class SlotInUseError(InUseError):
    """Another session reads the slot: one that is about to end, or another Penstock process."""


@dataclass(frozen=True)
class SlotFlags:
    """The requested properties of a slot."""

    temporary: bool = False
    two_phase: bool = False
    failover: bool = False


@dataclass(frozen=True)
class SlotState:
    """A replication slot, from ``pg_replication_slots``."""

    name: str
    kind: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    wal_status: str | None
    confirmed: Lsn
    here: bool = True
    """Whether it belongs to the database of the connection."""
    flags: SlotFlags = SlotFlags()
    invalidated: str | None = None
    """Why Postgres invalidated it, if it did."""
    application: str | None = None
    """The application name of its reader, if our role can see it."""
    client: str | None = None
    """The address of its reader, if our role can see it."""

    def reader(self) -> str:
        """Describe the session that reads it, for messages."""
        seen = [f"pid {self.active_pid} on the server"]
        seen += [f"application {self.application}"] if self.application else []
        seen += [f"from {self.client}"] if self.client else []
        return ", ".join(seen)


@dataclass(frozen=True)
class ExportedSnapshot:
    """A snapshot that other sessions can import, and the exact position of its contents."""

    name: str
    lsn: Lsn


def identify(connection: psycopg.Connection[Any]) -> tuple[str, int]:
    """Return system identifier and timeline of the server, over a replication connection."""
    row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    if row is None:
        message = "Postgres returned no answer to IDENTIFY_SYSTEM"
        raise TransientError(message, "Penstock retries.")
    return str(row[0]), int(row[1])


def create_slot(
    connection: psycopg.Connection[Any],
    name: str,
    *,
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
) -> Lsn:
    """Create a slot over a replication connection; return the position after which it decodes every commit."""
    flags, version = SlotFlags(temporary, two_phase, failover), connection.info.server_version
    command = _create_by_function(name, flags) if version < 150000 else _create_command(name, flags)
    row = connection.execute(command).fetchone()
    if row is None:
        message = f'Postgres did not confirm the creation of replication slot "{name}"'
        raise TransientError(message, "Retry the command.")
    return Lsn.parse(row[1])


def _create_command(name: str, flags: SlotFlags) -> sql.Composed:
    """Return the replication command; since Postgres 15 it has options in parentheses."""
    kind = sql.SQL("TEMPORARY " if flags.temporary else "")
    options = "SNAPSHOT 'nothing'"
    options += ", TWO_PHASE true" if flags.two_phase else ""
    options += ", FAILOVER true" if flags.failover else ""
    command = sql.SQL("CREATE_REPLICATION_SLOT {} {}LOGICAL pgoutput ({})")
    return command.format(sql.Identifier(name), kind, sql.SQL(options))


def _create_by_function(name: str, flags: SlotFlags) -> sql.Composed:
    """Return the SQL function call for Postgres 14, whose replication command does not support two-phase slots."""
    function = sql.SQL("SELECT * FROM pg_create_logical_replication_slot({}, 'pgoutput', {}, {})")
    return function.format(sql.Literal(name), sql.Literal(flags.temporary), sql.Literal(flags.two_phase))


@contextmanager
def export_snapshot(
    conninfo: str,
    wait: timedelta = timedelta(hours=1),
    report: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Iterator[ExportedSnapshot]:
    """Export a snapshot and its position with a temporary slot, and keep it open for the duration of the context.

    Transactions whose commit ends at or before the position are in the snapshot; all later ones are not.

    The server exports it only after every currently running transaction has ended. `report` receives messages about the
    transaction that blocks. After `wait`, or when `stop` is set, the slot creation is cancelled with a `TransientError`
    that names the blocking transaction.
    """
    with connect_replication(conninfo, "penstock snapshot", patient=True) as connection:
        name = sql.Identifier(f"penstock_snapshot_{uuid4().hex[:16]}")
        command = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT").format(name)
        connection.pgconn.send_query(command.as_bytes(connection))
        try:
            _await_answer(connection, conninfo, TransactionWait(wait, report), stop or threading.Event())
        except BaseException:
            _cancel(connection)
            raise
        yield _exported(connection)


def _await_answer(
    connection: psycopg.Connection[Any], conninfo: str, transaction_wait: TransactionWait, stop: threading.Event
) -> None:
    """Wait for the server; after a while, look up the blocking transaction over a second connection."""
    with ExitStack() as opened:
        watch: psycopg.Connection[Any] | None = None
        while not _has_answered(connection):
            if stop.is_set():
                message = "snapshot export stopped while waiting for running transactions"
                raise TransientError(message, "Retry the command.")
            if transaction_wait.is_long:
                watch = watch or opened.enter_context(connect(conninfo, "penstock snapshot wait", patient=True))
                transaction_wait.check(watch)


def _has_answered(connection: psycopg.Connection[Any]) -> bool:
    ready, _, _ = select.select([connection.pgconn.socket], [], [], _POLL_SECONDS)
    if ready:
        connection.pgconn.consume_input()
    return not connection.pgconn.is_busy()


def _exported(connection: psycopg.Connection[Any]) -> ExportedSnapshot:
    result = connection.pgconn.get_result()
    if result is None or result.status != pq.ExecStatus.TUPLES_OK:
        raise error_from_result(result, "utf-8") if result else psycopg.OperationalError("the connection is lost")
    lsn, name = result.get_value(0, 1), result.get_value(0, 2)
    while connection.pgconn.get_result() is not None:
        continue
    if lsn is None or name is None:
        message = "Postgres returned no exported snapshot"
        raise TransientError(message, "Penstock retries.")
    return ExportedSnapshot(name.decode(), Lsn.parse(lsn.decode()))


def _cancel(connection: psycopg.Connection[Any]) -> None:
    """Cancel the slot creation: a server that waits for transactions does not notice a closed connection."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not _has_answered(connection) and time.monotonic() < deadline:
            continue


def import_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> None:
    """Begin a transaction with an exported snapshot, which is valid only while the exporting session lasts."""
    try:
        disable_timeouts(connection)
        connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        message = f"cannot import the exported snapshot: {text}"
        raise TransientError(message, "Penstock retries.") from error


def find_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """Return a slot and its reader; None if it does not exist."""
    version = connection.info.server_version
    failover = "s.failover" if version >= 170000 else "false"
    query = _STATE.format(failover=failover, reason=invalidation_reason(version))
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return None
    kind, plugin, database, pid, wal_status, confirmed, restart, here, *flags, reason, application, client = row
    return SlotState(
        *(name, kind, plugin, database, pid, wal_status, Lsn.parse(confirmed or restart or "0/0")),
        *(bool(here), SlotFlags(*flags), reason, application, client),
    )


def invalidation_reason(version: int) -> str:
    """Return the SQL expression for why the slot `s` was invalidated, in this version of the server."""
    return "s.invalidation_reason" if version >= 170000 else _CONFLICT if version >= 160000 else "NULL"


def slot_problem(state: SlotState, flags: SlotFlags | None = None) -> str | None:
    """Return why a slot cannot be used; None if it can."""
    if state.kind != "logical" or state.plugin != "pgoutput":
        return f'replication slot "{state.name}" is not a logical slot with plugin pgoutput'
    if not state.here:
        return f'replication slot "{state.name}" belongs to another database, "{state.database}"'
    if state.invalidated is not None or state.wal_status == "lost":
        return f'Postgres invalidated replication slot "{state.name}" ({state.invalidated or "its WAL was removed"})'
    for flag in ("temporary", "two_phase", "failover") if flags is not None else ():
        if getattr(state.flags, flag) != getattr(flags, flag):
            has = "has" if getattr(state.flags, flag) else "does not have"
            return (
                f'replication slot "{state.name}" {has} the property {flag}, in conflict with the options of the source'
            )
    return None


def check_slot(
    state: SlotState | None, name: str, source: str, durable: Lsn, flags: SlotFlags | None = None
) -> SlotState:
    """Return the slot if capture can resume with it; raise if changes are missing or another session reads it."""
    recreate = _RECREATE.format(source=source)
    if state is None:
        message = f'replication slot "{name}" no longer exists: changes since {durable} are lost'
        raise DefiniteError(message, recreate)
    problem = slot_problem(state, flags)
    if problem is not None:
        message = f"{problem}: changes since {durable} are lost"
        raise DefiniteError(message, recreate)
    if state.confirmed > durable:
        message = (
            f'replication slot "{name}" is confirmed up to {state.confirmed}, but the change log ends at {durable}:'
            " the changes in between are lost"
        )
        raise DefiniteError(message, _READ_ELSEWHERE.format(source=source))
    if state.active_pid is not None:
        message = f'replication slot "{name}" is in use by another session ({state.reader()})'
        hint = "Stop the other Penstock process that reads this slot, or choose another name for this source."
        raise SlotInUseError(message, hint)
    return state


def drop_slot(connection: psycopg.Connection[Any], name: str) -> bool:
    """Drop a slot if it exists; return whether it existed, raise `SlotInUseError` if a session reads it."""
    state = find_slot(connection, name)
    if state is None:
        return False
    if state.active_pid is not None:
        message = f'replication slot "{name}" is in use ({state.reader()})'
        raise SlotInUseError(
            message,
            f"Stop its reader, then run: SELECT pg_drop_replication_slot('{name}');",
        )
    connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return True
