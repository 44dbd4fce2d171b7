"""Publication and slot before capture begins, or (`captured`) of a source that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.findings import Finding, error
from penstock.sources.postgres.names import quoted, quoted_table
from penstock.sources.postgres.options import Ownership, Partitions, PostgresOptions
from penstock.sources.postgres.publication import Publication, check_publication
from penstock.sources.postgres.slot import SlotFlags, SlotState, find_slot, slot_problem

__all__ = ["check_publication_of", "check_slot_of"]


def check_publication_of(
    name: str,
    found: Publication | None,
    tables: Sequence[TableName],
    options: PostgresOptions,
    *,
    captured: bool,
) -> list[Finding]:
    """Ours must not be there yet, yours must be; and keep to the rules."""
    managed = options.publication_ownership is Ownership.MANAGED
    if managed and not captured:
        return [_publication_taken(name)] if found is not None else []
    if found is None:
        return [_no_publication(name, tables, managed)]
    contract = check_publication(found, tables, options.rules, options.publication_ownership)
    return contract + _check_root(found, options)


def _check_root(found: Publication, options: PostgresOptions) -> list[Finding]:
    """Partitions come as their root only from a publication that says so."""
    if options.partitions is Partitions.LEAVES or found.via_root:
        return []
    mend = f"ALTER PUBLICATION {quoted(found.name)} SET (publish_via_partition_root = true);"
    why = "it publishes partitions as tables of their own, and they shall be captured as their root"
    return [error(f"publication {found.name}", why, "Or leave out partitions = root.", [mend])]


def _publication_taken(name: str) -> Finding:
    drop = f"DROP PUBLICATION {quoted(name)};"
    hint = f"If another Penstock uses it, give this source another name (--name); if nobody does, run: {drop}"
    return error("publication", f"a publication {name} exists already in this database", hint)


def _no_publication(name: str, tables: Sequence[TableName], managed: bool) -> Finding:
    if managed:
        why = f"the publication {name} is gone: changes since then are lost"
        return error("publication", why, "Drop the source and capture it again.")
    listed = ", ".join(quoted_table(table) for table in tables)
    mend = f"CREATE PUBLICATION {quoted(name)} FOR {f'TABLE {listed}' if listed else 'ALL TABLES'};"
    return error("publication", f"there is no publication {name} in this database", sql=[mend])


def check_slot_of(
    connection: psycopg.Connection[Any], name: str, options: PostgresOptions, *, captured: bool
) -> list[Finding]:
    """Ours must not be there yet, yours must be, and be readable; nobody else may read it."""
    state = find_slot(connection, name)
    managed = options.slot_ownership is Ownership.MANAGED
    if managed and not captured:
        return [_slot_taken(state)] if state is not None else []
    if state is None:
        return [_no_slot(name, managed)]
    problem = slot_problem(state, SlotFlags(options.slot_temporary, options.two_phase, options.failover))
    if problem is not None:
        hint = "Drop the source and capture it again." if captured else "Name another slot, or make this one anew."
        return [error("slot", problem, hint)]
    if state.active_pid is not None and not captured:
        why = f"the replication slot {name} is in use by another session ({state.reader()})"
        return [error("slot", why, "Stop what reads it, or name another slot.")]
    return []


def _slot_taken(state: SlotState) -> Finding:
    user = f", in use by {state.reader()}" if state.active_pid else ""
    drop = f"SELECT pg_drop_replication_slot('{state.name}');"
    hint = f"If another Penstock reads it, give this source another name (--name); if nobody does, run: {drop}"
    return error("slot", f"a replication slot {state.name} exists already{user}", hint)


def _no_slot(name: str, managed: bool) -> Finding:
    if managed:
        why = f"the replication slot {name} is gone: changes since then are lost"
        return error("slot", why, "Drop the source and capture it again.")
    mend = f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
    return error("slot", f"there is no replication slot {name}", "Make the publication before the slot.", [mend])
