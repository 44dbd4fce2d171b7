"""Check the server: its version and settings, whether it is a standby, and the publication and the slot on it.

Publication and slot are checked before capture begins or, with `captured`, for an existing source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.findings import Finding, error, info, warning
from penstock.sources.postgres.options import Ownership, Partitions, PostgresOptions
from penstock.sources.postgres.quoting import quoted, quoted_table
from penstock.sources.postgres.replication.publication import Publication, check_publication
from penstock.sources.postgres.replication.slot import SlotFlags, SlotState, find_slot, slot_problem

__all__ = ["check_publication_of", "check_server", "check_slot_of", "check_version"]

_OLDEST, _TWO_PHASE, _STANDBYS, _FAILOVER, _IDLE_TIMEOUT = 140000, 150000, 160000, 170000, 180000
_ROOM = """
SELECT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_get_wal_senders())
"""
_SECONDS = "SELECT extract(epoch FROM current_setting(%s)::interval)::float8"
_LITTLE_WAL = 1 << 30
_SHORT_SECONDS = 5


def check_server(
    connection: psycopg.Connection[Any], options: PostgresOptions, *, captured: bool = False
) -> list[Finding]:
    """Check the settings that apply to the whole server."""
    version = connection.info.server_version
    return [
        *_check_wal_level(connection),
        *_check_room(connection, 1 if captured or options.slot_ownership is Ownership.USER else 2),
        *_check_flags(options, version),
        *_check_standby(connection, options, version),
        *_check_kept_wal(connection),
        *_check_timeouts(connection, version),
    ]


def check_version(version: int) -> list[Finding]:
    """Reject a server older than Postgres 14: the other checks need catalogs that it does not have."""
    if version >= _OLDEST:
        return []
    return [error("server", f"Postgres {version // 10000} is not supported", "Upgrade to Postgres 14 or later.")]


def _check_wal_level(connection: psycopg.Connection[Any]) -> list[Finding]:
    row = connection.execute("SHOW wal_level").fetchone()
    if row is not None and row[0] == "logical":
        return []
    why = f'set to "{row[0] if row else "unknown"}"; logical replication requires "logical"'
    fix = "ALTER SYSTEM SET wal_level = 'logical';"
    return [error("wal_level", why, "Then restart Postgres (for a standby, also restart its primary).", [fix])]


def _check_room(connection: psycopg.Connection[Any], slots_needed: int) -> list[Finding]:
    slots, senders = connection.execute(_ROOM).fetchone() or (0, 0)
    needed = {"max_replication_slots": (slots, slots_needed), "max_wal_senders": (senders, slots_needed)}
    found = []
    for setting, (free, wanted) in needed.items():
        if free < wanted:
            why = f"{free} of {setting} free; capture needs one, and a second one during the initial snapshot"
            hint = f"Run: ALTER SYSTEM SET {setting} = …; and restart Postgres, or drop unused slots."
            found.append(error(setting, why, hint))
    return found


def _check_flags(options: PostgresOptions, version: int) -> list[Finding]:
    found = []
    if options.failover and version < _FAILOVER:
        why = f"failover slots require Postgres 17 or later; this server is Postgres {version // 10000}"
        found.append(error("slot", why, "Omit the option failover."))
    if options.two_phase and version < _TWO_PHASE:
        why = f"decoding of prepared transactions requires Postgres 15 or later; this server is {version // 10000}"
        found.append(error("slot", why, "Omit the option two_phase: Postgres then sends them when they commit."))
    if options.slot_temporary:
        why = "temporary slots are not supported: Postgres drops them with the session, so every restart loses changes"
        found.append(error("slot", why, "Omit the option slot_temporary."))
    return found


def _check_standby(connection: psycopg.Connection[Any], options: PostgresOptions, version: int) -> list[Finding]:
    """Check a standby: logical decoding requires Postgres 16; publications can only be created on the primary."""
    row = connection.execute("SELECT pg_is_in_recovery(), current_setting('hot_standby_feedback')").fetchone()
    if row is None or not row[0]:
        return []
    if version < _STANDBYS:
        why = f"the server is a standby; Postgres {version // 10000} supports logical decoding on a primary only"
        return [error("server", why, "Connect to the primary.")]
    found = []
    if options.publication_ownership is Ownership.MANAGED:
        why = "a publication cannot be created on a standby"
        hint = (
            "Run on the primary: CREATE PUBLICATION … FOR TABLE …; then set the option publication to its name and"
            " publication_ownership = user."
        )
        found.append(error("publication", why, hint))
    if options.failover:
        found.append(error("slot", "a failover slot cannot be created on a standby", "Omit the option failover."))
    if row[1] != "on":
        why = "off on this standby: the primary may remove catalog rows that the slot needs"
        fix = ["ALTER SYSTEM SET hot_standby_feedback = on;", "SELECT pg_reload_conf();"]
        found.append(warning("hot_standby_feedback", why, sql=fix))
    why = "the server is a standby: slot creation waits until its primary logs its running transactions"
    found.append(info("server", why, "On an idle primary, run: SELECT pg_log_standby_snapshot();"))
    return found


def _check_kept_wal(connection: psycopg.Connection[Any]) -> list[Finding]:
    row = connection.execute("SELECT pg_size_bytes(current_setting('max_slot_wal_keep_size'))").fetchone()
    kept = int(row[0]) if row else -1
    about = "max_slot_wal_keep_size"
    if kept < 0:
        why = "no limit: while capture is stopped, the server retains WAL for the slot until the disk is full"
        return [info(about, why, "Set a limit that covers the longest expected pause, and monitor the lag.")]
    if kept >= _LITTLE_WAL:
        return []
    why = f"only {kept >> 20} MB of WAL are retained for a slot: a short pause of capture invalidates the slot"
    return [warning(about, why, sql=["ALTER SYSTEM SET max_slot_wal_keep_size = '10GB';", "SELECT pg_reload_conf();"])]


def _check_timeouts(connection: psycopg.Connection[Any], version: int) -> list[Finding]:
    found, reload = [], "SELECT pg_reload_conf();"
    sender = _seconds(connection, "wal_sender_timeout")
    fix = ["ALTER SYSTEM SET wal_sender_timeout = '60s';", reload]
    if sender == 0:
        why = "set to 0 (disabled): after a network failure the slot stays in use until TCP times out"
        found.append(warning("wal_sender_timeout", why, sql=fix))
    elif sender < _SHORT_SECONDS:
        why = f"set to {sender:g} s: the server closes the connection after a short pause, and capture reconnects"
        found.append(warning("wal_sender_timeout", why, sql=fix))
    idle = _seconds(connection, "idle_replication_slot_timeout") if version >= _IDLE_TIMEOUT else 0.0
    if idle:
        why = f"set to {idle:g} s: the server invalidates the slot if capture is stopped for longer than that"
        fix = ["ALTER SYSTEM SET idle_replication_slot_timeout = 0;", reload]
        found.append(warning("idle_replication_slot_timeout", why, sql=fix))
    return found


def _seconds(connection: psycopg.Connection[Any], setting: str) -> float:
    row = connection.execute(_SECONDS, (setting,)).fetchone()
    return float(row[0]) if row else 0.0


# -- publication -------------------------------------------------------------------------------------------------------


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


# -- slot --------------------------------------------------------------------------------------------------------------


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
