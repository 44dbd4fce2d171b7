"""Replication slots: the permanent one that capture reads, and the passing ones that export a snapshot.

A slot is made once, with the source. One that is gone, invalidated or ahead of what the log holds is a definite error,
never made anew: the changes in between would be lost without a word. One that somebody else reads is not shared.
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
from penstock.sources.postgres.connection import connect, connect_replication, forget_timeouts
from penstock.sources.postgres.old_transactions import Patience

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
    "slot_problem",
    "take_snapshot",
]

_LOOK_SECONDS = 0.1
_CANCEL_SECONDS = 5.0
_STATE = """
SELECT s.slot_type, s.plugin, s.database, s.active_pid, s.wal_status, s.confirmed_flush_lsn::text, s.restart_lsn::text,
       s.database = current_database(), s.temporary, s.two_phase, {failover}, {reason},
       a.application_name, host(a.client_addr)
  FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s
"""
_CONFLICT = "CASE WHEN s.conflicting THEN CASE WHEN pg_is_in_recovery() THEN 'conflict' ELSE 'wal_removed' END END"
"""On 16 any invalidation is called a conflict; a real one happens on standbys only."""
_AFRESH = "Drop the source with `penstock drop {source}` and capture it again: its tables are then copied afresh."

_READ_ELSEWHERE = (
    "Another home may read this slot: a copy of this one, or the one of which this is a copy. Then leave it to that"
    " home, and remove the source here alone: penstock drop {source} --force. If there is none, somebody moved the"
    " slot: do the same, run what it prints, and capture the source again: its tables are then copied afresh."
)


class SlotInUseError(InUseError):
    """Another session reads the slot: one that is about to end, or another Penstock."""


@dataclass(frozen=True)
class SlotFlags:
    """How a slot was asked to be."""

    temporary: bool = False
    two_phase: bool = False
    failover: bool = False


@dataclass(frozen=True)
class SlotState:
    """A replication slot as Postgres shows it."""

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
    """What its reader calls itself, where we may see that."""
    client: str | None = None
    """The address of its reader, where we may see that."""

    def reader(self) -> str:
        """Describe who reads it, as far as Postgres tells us."""
        seen = [f"pid {self.active_pid} on the server"]
        seen += [f"application {self.application}"] if self.application else []
        seen += [f"from {self.client}"] if self.client else []
        return ", ".join(seen)


@dataclass(frozen=True)
class ExportedSnapshot:
    """A snapshot that other sessions can take on, and the position that it shows exactly."""

    name: str
    lsn: Lsn


def identify(connection: psycopg.Connection[Any]) -> tuple[str, int]:
    """Return system identifier and timeline of the server, over a replication connection."""
    row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    if row is None:
        message = "Postgres did not say which system it is"
        raise TransientError(message, "It will be asked again.")
    return str(row[0]), int(row[1])


def create_slot(
    connection: psycopg.Connection[Any],
    name: str,
    *,
    temporary: bool = False,
    two_phase: bool = False,
    failover: bool = False,
) -> Lsn:
    """Make a slot over a replication connection; return the position from which on it sees all commits."""
    flags, version = SlotFlags(temporary, two_phase, failover), connection.info.server_version
    command = _create_by_function(name, flags) if version < 150000 else _create_command(name, flags)
    row = connection.execute(command).fetchone()
    if row is None:
        message = f"Postgres did not confirm the slot {name}"
        raise TransientError(message, "Start again.")
    return Lsn.parse(row[1])


def _create_command(name: str, flags: SlotFlags) -> sql.Composed:
    """Since 15 the command takes options in parentheses."""
    kind = sql.SQL("TEMPORARY " if flags.temporary else "")
    options = "SNAPSHOT 'nothing'"
    options += ", TWO_PHASE true" if flags.two_phase else ""
    options += ", FAILOVER true" if flags.failover else ""
    command = sql.SQL("CREATE_REPLICATION_SLOT {} {}LOGICAL pgoutput ({})")
    return command.format(sql.Identifier(name), kind, sql.SQL(options))


def _create_by_function(name: str, flags: SlotFlags) -> sql.Composed:
    """On 14 the command has no two-phase slots; the function has."""
    function = sql.SQL("SELECT * FROM pg_create_logical_replication_slot({}, 'pgoutput', {}, {})")
    return function.format(sql.Literal(name), sql.Literal(flags.temporary), sql.Literal(flags.two_phase))


@contextmanager
def export_snapshot(
    conninfo: str,
    wait: timedelta = timedelta(hours=1),
    tell: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Iterator[ExportedSnapshot]:
    """Hold a snapshot open, by a temporary slot, together with the position that it shows.

    Transactions whose commit ends at or before the position are in the snapshot, all later ones are not.

    The server makes none before every transaction has ended that is running now. `tell` hears which one is in the way;
    after `wait`, or when told to `stop`, the slot is given up, and a `TransientError` says for whom it waited.
    """
    with connect_replication(conninfo, "penstock snapshot", patient=True) as connection:
        name = sql.Identifier(f"penstock_snapshot_{uuid4().hex[:16]}")
        command = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT").format(name)
        connection.pgconn.send_query(command.as_bytes(connection))
        try:
            _await_answer(connection, conninfo, Patience(wait, tell), stop or threading.Event())
        except BaseException:
            _cancel(connection)
            raise
        yield _exported(connection)


def _await_answer(
    connection: psycopg.Connection[Any], conninfo: str, patience: Patience, stop: threading.Event
) -> None:
    """Wait for the server, and look at what it waits for over a connection of its own once it takes long."""
    with ExitStack() as opened:
        watch: psycopg.Connection[Any] | None = None
        while not _has_answered(connection):
            if stop.is_set():
                message = "the wait for a snapshot was stopped"
                raise TransientError(message, "Start again.")
            if patience.is_long:
                watch = watch or opened.enter_context(connect(conninfo, "penstock snapshot wait", patient=True))
                patience.look(watch)


def _has_answered(connection: psycopg.Connection[Any]) -> bool:
    ready, _, _ = select.select([connection.pgconn.socket], [], [], _LOOK_SECONDS)
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
        message = "Postgres exported no snapshot"
        raise TransientError(message, "It will be asked again.")
    return ExportedSnapshot(name.decode(), Lsn.parse(lsn.decode()))


def _cancel(connection: psycopg.Connection[Any]) -> None:
    """Let the server give up the slot: one that waits for transactions does not see that nobody listens any more."""
    with suppress(psycopg.Error):
        connection.cancel_safe(timeout=_CANCEL_SECONDS)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not _has_answered(connection) and time.monotonic() < deadline:
            continue


def take_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> None:
    """Begin a transaction that sees an exported snapshot; it is gone when the session that exported it is."""
    try:
        forget_timeouts(connection)
        connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        message = f"the copy has lost its snapshot: {said}"
        raise TransientError(message, "It will be tried again.") from error


def find_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """Look a slot up, and who reads it."""
    version = connection.info.server_version
    reason = "s.invalidation_reason" if version >= 170000 else _CONFLICT if version >= 160000 else "NULL"
    query = _STATE.format(failover="s.failover" if version >= 170000 else "false", reason=reason)
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return None
    kind, plugin, database, pid, wal_status, confirmed, restart, here, *flags, reason, application, client = row
    return SlotState(
        *(name, kind, plugin, database, pid, wal_status, Lsn.parse(confirmed or restart or "0/0")),
        *(bool(here), SlotFlags(*flags), reason, application, client),
    )


def slot_problem(state: SlotState, flags: SlotFlags | None = None) -> str | None:
    """Say what of the contract a slot breaks, whoever made it; None when it can be read."""
    if state.kind != "logical" or state.plugin != "pgoutput":
        return f"the replication slot {state.name} is not a logical slot of pgoutput"
    if not state.here:
        return f"the replication slot {state.name} belongs to another database, {state.database}"
    if state.invalidated is not None or state.wal_status == "lost":
        return f"Postgres has invalidated the slot {state.name} ({state.invalidated or 'its WAL is gone'})"
    for flag in ("temporary", "two_phase", "failover") if flags is not None else ():
        if getattr(state.flags, flag) != getattr(flags, flag):
            has = "has" if getattr(state.flags, flag) else "does not have"
            return f"the replication slot {state.name} {has} the flag {flag}, against what the source says"
    return None


def check_slot(
    state: SlotState | None, name: str, source: str, durable: Lsn, flags: SlotFlags | None = None
) -> SlotState:
    """Return a slot; refuse to go on with one from which changes are missing or that somebody else reads."""
    afresh = _AFRESH.format(source=source)
    if state is None:
        message = f"the replication slot {name} is gone: changes since {durable} are lost"
        raise DefiniteError(message, afresh)
    problem = slot_problem(state, flags)
    if problem is not None:
        message = f"{problem}: changes since {durable} are lost"
        raise DefiniteError(message, afresh)
    if state.confirmed > durable:
        message = (
            f"the slot {name} was confirmed up to {state.confirmed}, the change log ends at {durable}:"
            " what lies between is lost"
        )
        raise DefiniteError(message, _READ_ELSEWHERE.format(source=source))
    if state.active_pid is not None:
        message = f"the replication slot {name} is in use by another session ({state.reader()})"
        hint = "Stop the other Penstock that reads this slot, or give this source another name."
        raise SlotInUseError(message, hint)
    return state


def drop_slot(connection: psycopg.Connection[Any], name: str) -> bool:
    """Remove a slot if it is there, also one whose reader has just gone; say whether it was there."""
    state = find_slot(connection, name)
    if state is None:
        return False
    if state.active_pid is not None:
        message = f"the replication slot {name} is in use ({state.reader()})"
        raise SlotInUseError(
            message,
            f"Stop its reader, then run: SELECT pg_drop_replication_slot('{name}');",
        )
    connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return True
