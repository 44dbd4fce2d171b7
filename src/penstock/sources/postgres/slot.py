"""Replication slots: the permanent one that capture reads, and the passing ones that export a snapshot.

A slot is made once, with the source. One that is gone, invalidated or ahead of what the log holds is a definite error,
never made anew: the changes in between would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connect_replication

__all__ = [
    "ExportedSnapshot",
    "SlotInUse",
    "SlotState",
    "check_slot",
    "create_slot",
    "drop_slot",
    "export_snapshot",
    "find_slot",
    "identify",
]

_STATE = """
SELECT slot_type, plugin, database, active_pid, wal_status, confirmed_flush_lsn::text, restart_lsn::text
  FROM pg_replication_slots WHERE slot_name = %s
"""
_AFRESH = "Drop the source with `penstock drop {source}` and capture it again: its tables are then copied afresh."


class SlotInUse(TransientError):
    """Another session reads the slot: one that is about to end, or another Penstock."""


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


def create_slot(connection: psycopg.Connection[Any], name: str) -> Lsn:
    """Make the permanent slot over a replication connection; return the position from which on it sees all commits."""
    command = sql.SQL("CREATE_REPLICATION_SLOT {} LOGICAL pgoutput NOEXPORT_SNAPSHOT").format(sql.Identifier(name))
    row = connection.execute(command).fetchone()
    if row is None:
        message = f"Postgres did not confirm the slot {name}"
        raise TransientError(message, "Start again.")
    return Lsn.parse(row[1])


@contextmanager
def export_snapshot(conninfo: str) -> Iterator[ExportedSnapshot]:
    """Hold a snapshot open, by a temporary slot, together with the position that it shows.

    Transactions whose commit ends at or before the position are in the snapshot, all later ones are not.
    """
    with connect_replication(conninfo, "penstock snapshot") as connection:
        name = sql.Identifier(f"penstock_snapshot_{uuid4().hex[:16]}")
        command = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT").format(name)
        row = connection.execute(command).fetchone()
        if row is None:
            message = "Postgres exported no snapshot"
            raise TransientError(message, "It will be asked again.")
        yield ExportedSnapshot(row[2], Lsn.parse(row[1]))


def find_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """Look a slot up."""
    row = connection.execute(_STATE, (name,)).fetchone()
    if row is None:
        return None
    kind, plugin, database, pid, wal_status, confirmed, restart = row
    return SlotState(name, kind, plugin, database, pid, wal_status, Lsn.parse(confirmed or restart or "0/0"))


def check_slot(state: SlotState | None, name: str, source: str, durable: Lsn) -> None:
    """Refuse to go on with a slot from which changes are missing or that somebody else reads."""
    afresh = _AFRESH.format(source=source)
    if state is None:
        message = f"the replication slot {name} is gone: changes since {durable} are lost"
        raise DefiniteError(message, afresh)
    if state.kind != "logical" or state.plugin != "pgoutput":
        message = f"the replication slot {name} is not a logical slot of pgoutput"
        raise DefiniteError(message, afresh)
    if state.wal_status == "lost":
        message = f"Postgres has invalidated the slot {name}: changes since {durable} are lost"
        raise DefiniteError(message, afresh)
    if state.confirmed > durable:
        message = (
            f"the slot {name} was confirmed up to {state.confirmed}, the change log ends at {durable}:"
            " what lies between is lost"
        )
        raise DefiniteError(
            message,
            afresh,
        )
    if state.active_pid is not None:
        message = f"the replication slot {name} is in use by another session (pid {state.active_pid} on the server)"
        raise SlotInUse(
            message,
            "Stop the other Penstock that reads this slot, or give this source another name.",
        )


def drop_slot(connection: psycopg.Connection[Any], name: str) -> bool:
    """Remove a slot if it is there, also one whose reader has just gone; say whether it was there."""
    state = find_slot(connection, name)
    if state is None:
        return False
    if state.active_pid is not None:
        message = f"the replication slot {name} is in use (pid {state.active_pid} on the server)"
        raise SlotInUse(
            message,
            f"Stop its reader, then run: SELECT pg_drop_replication_slot('{name}');",
        )
    connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return True
