"""The server: its version, its settings, and whether it is a standby."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.sources.findings import Finding, error, info, warning
from penstock.sources.postgres.options import Ownership, PostgresOptions

__all__ = ["check_server", "check_version"]

_OLDEST, _TWO_PHASE, _STANDBYS, _FAILOVER, _IDLE_TIMEOUT = 140000, 150000, 160000, 170000, 180000
_ROOM = """
SELECT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_get_wal_senders())
"""
_PATIENCE = "SELECT extract(epoch FROM current_setting(%s)::interval)::float8"
_LITTLE_WAL = 1 << 30
_SHORT_SECONDS = 5


def check_server(
    connection: psycopg.Connection[Any], options: PostgresOptions, *, captured: bool = False
) -> list[Finding]:
    """Look at what holds for the whole server."""
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
    """Refuse a server whose catalogs are too old to be looked at any further."""
    if version >= _OLDEST:
        return []
    return [error("server", f"it is Postgres {version // 10000}", "Upgrade it to Postgres 14 or later.")]


def _check_wal_level(connection: psycopg.Connection[Any]) -> list[Finding]:
    row = connection.execute("SHOW wal_level").fetchone()
    if row is not None and row[0] == "logical":
        return []
    why = f"wal_level is {row[0] if row else 'unknown'}; capture reads logical changes"
    mend = "ALTER SYSTEM SET wal_level = 'logical';"
    return [error("wal_level", why, "then restart Postgres (a standby: the primary as well).", [mend])]


def _check_room(connection: psycopg.Connection[Any], slots_needed: int) -> list[Finding]:
    slots, senders = connection.execute(_ROOM).fetchone() or (0, 0)
    needed = {"max_replication_slots": (slots, slots_needed), "max_wal_senders": (senders, slots_needed)}
    found = []
    for setting, (free, wanted) in needed.items():
        if free < wanted:
            why = f"{free} left of {setting}; capture needs one, and another one during the first copy"
            hint = f"Raise {setting} (ALTER SYSTEM SET {setting} = …) and restart Postgres, or drop what is not used."
            found.append(error(setting, why, hint))
    return found


def _check_flags(options: PostgresOptions, version: int) -> list[Finding]:
    found = []
    if options.failover and version < _FAILOVER:
        why = f"slots are kept on standbys from Postgres 17 on; this is {version // 10000}"
        found.append(error("slot", why, "Leave out the option failover."))
    if options.two_phase and version < _TWO_PHASE:
        why = f"prepared transactions are streamed from Postgres 15 on; this is {version // 10000}"
        found.append(error("slot", why, "Leave out the option two_phase: they then come when they commit."))
    if options.slot_temporary:
        why = "a temporary slot ends with its session: every restart would lose changes, so capture does not use one"
        found.append(error("slot", why, "Leave out the option slot_temporary."))
    return found


def _check_standby(connection: psycopg.Connection[Any], options: PostgresOptions, version: int) -> list[Finding]:
    """Logical decoding on a standby: allowed from 16 on; publications can only be made on the primary."""
    row = connection.execute("SELECT pg_is_in_recovery(), current_setting('hot_standby_feedback')").fetchone()
    if row is None or not row[0]:
        return []
    if version < _STANDBYS:
        why = f"it is a standby, and Postgres {version // 10000} decodes on primaries only"
        return [error("server", why, "Connect to the primary.")]
    found = []
    if options.publication_ownership is Ownership.MANAGED:
        why = "it is a standby, on which no publication can be made"
        hint = (
            "Make one on the primary (CREATE PUBLICATION … FOR TABLE …;), and give its name as a publication of yours."
        )
        found.append(error("publication", why, hint))
    if options.failover:
        found.append(error("slot", "it is a standby, on which no failover slot can be made", "Leave out failover."))
    if row[1] != "on":
        why = "hot_standby_feedback is off on this standby: the primary may remove rows that the slot needs"
        mend = ["ALTER SYSTEM SET hot_standby_feedback = on;", "SELECT pg_reload_conf();"]
        found.append(warning("hot_standby_feedback", why, sql=mend))
    why = "it is a standby: making a slot waits until its primary has logged what runs there"
    found.append(info("server", why, "On an idle primary, run: SELECT pg_log_standby_snapshot();"))
    return found


def _check_kept_wal(connection: psycopg.Connection[Any]) -> list[Finding]:
    row = connection.execute("SELECT pg_size_bytes(current_setting('max_slot_wal_keep_size'))").fetchone()
    kept = int(row[0]) if row else -1
    about = "max_slot_wal_keep_size"
    if kept < 0:
        why = "WAL that the slot still needs is kept without a limit: while capture is stopped, the disk may fill up"
        return [info(about, why, "Set a limit that covers your longest pause, and watch the lag.")]
    if kept >= _LITTLE_WAL:
        return []
    why = f"only {kept >> 20} MB of WAL are kept for a slot: a short pause of capture would end the source"
    return [warning(about, why, sql=["ALTER SYSTEM SET max_slot_wal_keep_size = '10GB';", "SELECT pg_reload_conf();"])]


def _check_timeouts(connection: psycopg.Connection[Any], version: int) -> list[Finding]:
    found, reload = [], "SELECT pg_reload_conf();"
    sender = _seconds(connection, "wal_sender_timeout")
    mend = ["ALTER SYSTEM SET wal_sender_timeout = '60s';", reload]
    if sender == 0:
        why = "it is 0: a capture that lost its network keeps the slot in use until TCP gives up"
        found.append(warning("wal_sender_timeout", why, sql=mend))
    elif sender < _SHORT_SECONDS:
        why = f"it is {sender:g} s: a short pause ends the connection, and capture starts over"
        found.append(warning("wal_sender_timeout", why, sql=mend))
    idle = _seconds(connection, "idle_replication_slot_timeout") if version >= _IDLE_TIMEOUT else 0.0
    if idle:
        why = f"a slot that nobody reads for {idle:g} s is invalidated: such a pause of capture ends the source"
        mend = ["ALTER SYSTEM SET idle_replication_slot_timeout = 0;", reload]
        found.append(warning("idle_replication_slot_timeout", why, sql=mend))
    return found


def _seconds(connection: psycopg.Connection[Any], setting: str) -> float:
    row = connection.execute(_PATIENCE, (setting,)).fetchone()
    return float(row[0]) if row else 0.0
