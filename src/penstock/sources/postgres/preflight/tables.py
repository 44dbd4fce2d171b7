"""Preflight: everything that would keep capture from working, found before anything is made upstream.

Each finding has a level, an object, the reason and the SQL (or the setting) that mends it. An error of the server keeps
the source from being created; an error of a table keeps that table out, and the others are captured.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from penstock.errors import DefiniteError
from penstock.model import RESERVED, TableName
from penstock.sources.postgres.introspect import UpstreamTable, find_tables
from penstock.sources.postgres.publication import find_publication
from penstock.sources.postgres.slot import find_slot

__all__ = ["Finding", "Level", "Preflight", "examine"]

_OLDEST = 140000
_ROLE = """
SELECT current_user, rolsuper, rolsuper OR rolreplication
       OR EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname = 'rds_replication' AND pg_has_role(r.oid, 'USAGE')),
       rolsuper OR has_database_privilege(current_database(), 'CREATE')
  FROM pg_roles WHERE rolname = current_user
"""
_ROOM = """
SELECT current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int - (SELECT count(*) FROM pg_stat_get_wal_senders())
"""


class Level(enum.StrEnum):
    """How much a finding matters."""

    ERROR = "error"
    """Capture cannot start, or not for this table."""
    WARNING = "warning"
    """Capture works, but somebody should know."""


@dataclass(frozen=True)
class Finding:
    """One thing that preflight found, and what mends it."""

    level: Level
    object: str
    why: str
    remedy: str


@dataclass(frozen=True)
class Preflight:
    """What was found of the server and of each table."""

    server: tuple[Finding, ...]
    tables: tuple[tuple[UpstreamTable, tuple[Finding, ...]], ...]

    def capturable(self) -> list[UpstreamTable]:
        """Return the tables that can be captured."""
        return [table for table, findings in self.tables if not _errors(findings)]

    def refused(self) -> dict[TableName, Finding]:
        """Return the first error of each table that cannot."""
        return {table.name: _errors(findings)[0] for table, findings in self.tables if _errors(findings)}

    def require(self) -> None:
        """Raise unless there is something to capture."""
        errors = _errors(self.server) or ([] if self.capturable() else list(self.refused().values()))
        if errors:
            said = "\n".join(f"{finding.object}: {finding.why}" for finding in errors)
            raise DefiniteError(said, "\n".join(dict.fromkeys(finding.remedy for finding in errors)))
        if not self.tables:
            message = "there is no table to capture in this database"
            raise DefiniteError(message, "Create one, or name another database.")


def examine(
    connection: psycopg.Connection[Any], publication: str, slot: str, schemas: Sequence[str] | None = None
) -> Preflight:
    """Look at everything that capture will need; change nothing."""
    tables = find_tables(connection, schemas)
    wanted = [table for table in tables if table.kind != "p"]
    superuser, role_findings = _role(connection)
    server = [
        *_version(connection),
        *role_findings,
        *_settings(connection),
        *_names_taken(connection, publication, slot),
    ]
    return Preflight(tuple(server), tuple((table, tuple(_table(table, superuser))) for table in wanted))


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is Level.ERROR]


def _version(connection: psycopg.Connection[Any]) -> list[Finding]:
    version = connection.info.server_version
    if version >= _OLDEST:
        return []
    return [Finding(Level.ERROR, "server", f"it is Postgres {version // 10000}", "Upgrade it to Postgres 14 or later.")]


def _role(connection: psycopg.Connection[Any]) -> tuple[bool, list[Finding]]:
    row = connection.execute(_ROLE).fetchone()
    if row is None:
        return False, []
    user, superuser, replicates, creates = row
    findings = []
    name, database = sql.Identifier(user).as_string(connection), connection.info.dbname
    if not replicates:
        why = f"role {user} has no REPLICATION attribute"
        findings.append(Finding(Level.ERROR, "role", why, f"As an administrator, run: ALTER ROLE {name} REPLICATION;"))
    if not creates:
        grant = f"GRANT CREATE ON DATABASE {sql.Identifier(database).as_string(connection)} TO {name};"
        why = f"role {user} may not create a publication in database {database}"
        findings.append(Finding(Level.ERROR, "role", why, f"As an administrator, run: {grant}"))
    return superuser, findings


def _settings(connection: psycopg.Connection[Any]) -> list[Finding]:
    findings = []
    wal_level = connection.execute("SHOW wal_level").fetchone()
    if wal_level is None or wal_level[0] != "logical":
        why = f"wal_level is {wal_level[0] if wal_level else 'unknown'}; capture reads logical changes"
        remedy = "Run: ALTER SYSTEM SET wal_level = 'logical'; then restart Postgres."
        findings.append(Finding(Level.ERROR, "wal_level", why, remedy))
    slots, senders = connection.execute(_ROOM).fetchone() or (0, 0)
    for setting, free in (("max_replication_slots", slots), ("max_wal_senders", senders)):
        if free < 2:
            why = f"{free} left of {setting}; capture needs one, and another one during the first copy"
            remedy = f"Raise {setting} (ALTER SYSTEM SET {setting} = …) and restart Postgres, or drop what is not used."
            findings.append(Finding(Level.ERROR, setting, why, remedy))
    return findings


def _names_taken(connection: psycopg.Connection[Any], publication: str, slot: str) -> list[Finding]:
    findings = []
    state = find_slot(connection, slot)
    if state is not None:
        user = f", in use by pid {state.active_pid} on the server" if state.active_pid else ""
        remedy = (
            "If another Penstock reads it, give this source another name (--name);"
            f" if nobody does, run: SELECT pg_drop_replication_slot('{slot}');"
        )
        findings.append(Finding(Level.ERROR, "slot", f"a replication slot {slot} exists already{user}", remedy))
    if find_publication(connection, publication):
        drop = sql.SQL("DROP PUBLICATION {};").format(sql.Identifier(publication)).as_string(connection)
        remedy = f"If another Penstock uses it, give this source another name (--name); if nobody does, run: {drop}"
        why = f"a publication {publication} exists already in this database"
        findings.append(Finding(Level.ERROR, "publication", why, remedy))
    return findings


def _table(table: UpstreamTable, superuser: bool) -> list[Finding]:
    name = sql.Identifier(table.name.schema, table.name.name).as_string(None)
    found: list[tuple[str, str]] = []
    if table.persistence == "u":
        found.append(("it is unlogged: its changes are not in the WAL", f"Run: ALTER TABLE {name} SET LOGGED;"))
    if not table.readable:
        found.append(("it may not be read", f"Run: GRANT SELECT ON {name} TO the role that captures;"))
    if not table.owned and not superuser:
        found.append(("only its owner may publish it", f"Run: ALTER TABLE {name} OWNER TO the role that captures;"))
    if not table.key:
        found.append(("it has no primary key", f"Run: ALTER TABLE {name} ADD PRIMARY KEY (…);"))
    if table.replica_identity not in "df":
        why = "its replica identity is NOTHING or an index: updates cannot be followed by primary key"
        found.append((why, f"Run: ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"))
    found += _writes_refused(table, name)
    if table.row_security:
        why = "row-level security would hide rows from the copy"
        found.append((why, "Give the role that captures BYPASSRLS."))
    found += [(f"column {column}: {why}", "This type is not supported yet.") for column, why in table.refused_columns()]
    found += _names(table)
    return [Finding(Level.ERROR, str(table.name), why, remedy) for why, remedy in found]


def _writes_refused(table: UpstreamTable, name: str) -> list[tuple[str, str]]:
    """Postgres refuses UPDATE and DELETE of a published table whose replica identity cannot be published."""
    found = []
    full = table.replica_identity == "f"
    if table.deferrable_key and not full:
        remedy = f"Run: ALTER TABLE {name} REPLICA IDENTITY FULL; or make the key NOT DEFERRABLE."
        found.append(("its primary key is deferrable, so it does not identify rows in the stream", remedy))
    for column in (column.name for column in table.columns if column.generated):
        if column in table.key:
            why = f"its primary key has the generated column {column}, which is not published"
            found.append((why, f"Drop the key, then run: ALTER TABLE {name} ADD PRIMARY KEY (…);"))
        elif full:
            why = f"its replica identity FULL has the generated column {column}, which is not published"
            found.append((why, f"Run: ALTER TABLE {name} REPLICA IDENTITY DEFAULT;"))
    return found


def _names(table: UpstreamTable) -> list[tuple[str, str]]:
    """Spark does not tell names apart by case; in our catalog a schema ends at the first dot; some are ours."""
    found = [("its schema has a dot in its name", "Rename the schema.")] if "." in table.name.schema else []
    names = [column.name.lower() for column in table.streamed]
    twice = {name for name in names if names.count(name) > 1}
    found += [(f"its columns {name} differ by case alone", "Rename one of them.") for name in sorted(twice)]
    return found + [
        (f"its column {name} has a name that Penstock uses itself", "Rename it.") for name in names if name in RESERVED
    ]
