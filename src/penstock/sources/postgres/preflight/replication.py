"""Check publication and slot, before capture begins or (`captured`) of an existing source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.findings import Finding, error
from penstock.sources.postgres.options import Ownership, Partitions, PostgresOptions
from penstock.sources.postgres.publication import Publication, check_publication
from penstock.sources.postgres.quoting import quoted, quoted_table
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
    """Check the publication: a managed one must not exist yet, a user's must exist and satisfy the rules."""
    managed = options.publication_ownership is Ownership.MANAGED
    if managed and not captured:
        return [_publication_taken(name)] if found is not None else []
    if found is None:
        return [_no_publication(name, tables, managed)]
    contract = check_publication(found, tables, options.rules, options.publication_ownership)
    return contract + _check_root(found, options)


def _check_root(found: Publication, options: PostgresOptions) -> list[Finding]:
    """Require `publish_via_partition_root` if partitions are captured as their root."""
    if options.partitions is Partitions.LEAVES or found.via_root:
        return []
    fix = f"ALTER PUBLICATION {quoted(found.name)} SET (publish_via_partition_root = true);"
    why = "publishes each partition as a separate table, but the option partitions = root requires the partition root"
    return [error(f"publication {found.name}", why, "Or omit partitions = root.", [fix])]


def _publication_taken(name: str) -> Finding:
    drop = f"DROP PUBLICATION {quoted(name)};"
    hint = f"If another Penstock source uses it, choose another source name (--name). If it is unused, run: {drop}"
    return error("publication", f'publication "{name}" already exists in this database', hint)


def _no_publication(name: str, tables: Sequence[TableName], managed: bool) -> Finding:
    if managed:
        why = f'publication "{name}" no longer exists: changes since it was dropped are lost'
        return error("publication", why, "Drop the source and capture it again.")
    listed = ", ".join(quoted_table(table) for table in tables)
    fix = f"CREATE PUBLICATION {quoted(name)} FOR {f'TABLE {listed}' if listed else 'ALL TABLES'};"
    return error("publication", f'publication "{name}" does not exist in this database', sql=[fix])


def check_slot_of(
    connection: psycopg.Connection[Any], name: str, options: PostgresOptions, *, captured: bool
) -> list[Finding]:
    """Check the slot: a managed one must not exist yet, a user's must exist, be readable and have no other reader."""
    state = find_slot(connection, name)
    managed = options.slot_ownership is Ownership.MANAGED
    if managed and not captured:
        return [_slot_taken(state)] if state is not None else []
    if state is None:
        return [_no_slot(name, managed)]
    problem = slot_problem(state, SlotFlags(options.slot_temporary, options.two_phase, options.failover))
    if problem is not None:
        hint = "Drop the source and capture it again." if captured else "Name another slot, or recreate this one."
        return [error("slot", problem, hint)]
    if state.active_pid is not None and not captured:
        why = f'replication slot "{name}" is in use by another session ({state.reader()})'
        return [error("slot", why, "Stop its reader, or name another slot.")]
    return []


def _slot_taken(state: SlotState) -> Finding:
    user = f", in use by {state.reader()}" if state.active_pid else ""
    drop = f"SELECT pg_drop_replication_slot('{state.name}');"
    hint = f"If another Penstock source reads it, choose another source name (--name). If it is unused, run: {drop}"
    return error("slot", f'replication slot "{state.name}" already exists{user}', hint)


def _no_slot(name: str, managed: bool) -> Finding:
    if managed:
        why = f'replication slot "{name}" no longer exists: changes since it was dropped are lost'
        return error("slot", why, "Drop the source and capture it again.")
    fix = f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
    return error("slot", f'replication slot "{name}" does not exist', "Create the publication before the slot.", [fix])
