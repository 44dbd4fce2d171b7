"""Check the tables for watermarks and heartbeats: the role's privileges on them, their columns, and their use."""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.findings import Finding, error
from penstock.sources.postgres.options import Ownership, PostgresOptions, SnapshotMode
from penstock.sources.postgres.preflight.role import Role
from penstock.sources.postgres.quoting import quoted
from penstock.sources.postgres.replication.meta_tables import (
    MetaTable,
    find_meta_table,
    meta_table_statements,
    meta_tables,
)
from penstock.sources.postgres.replication.publication import Publication

__all__ = ["check_meta"]

_SCHEMA = "SELECT has_schema_privilege(oid, 'USAGE') AND has_schema_privilege(oid, 'CREATE') FROM pg_namespace"


def check_meta(
    connection: psycopg.Connection[Any],
    options: PostgresOptions,
    role: Role,
    publication: Publication | None,
    *,
    captured: bool,
) -> list[Finding]:
    """Check the tables of ``dblog_meta`` that these options require, and options that a standby does not support."""
    found = _check_standby(connection, options)
    for table in [] if found else meta_tables(options.watermarks, options.heartbeat):
        existing = find_meta_table(connection, table)
        if existing is None:
            found += _check_absent(connection, table, options, role, publication, captured=captured)
        else:
            found += _check_present(table, existing, options, role, captured=captured)
        found += _check_filters(table, publication)
    return found


def _check_standby(connection: psycopg.Connection[Any], options: PostgresOptions) -> list[Finding]:
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() != (True,):
        return []
    found = []
    if options.heartbeat is not None:
        found.append(error("heartbeat", "heartbeats cannot be written on a standby", "Omit the option heartbeat."))
    if options.snapshot is SnapshotMode.CHUNKED or meta_tables(options.watermarks, None):
        why = "watermarks cannot be written on a standby"
        found.append(error("watermarks", why, "Omit snapshot = chunked and watermarks = table."))
    return found


def _check_absent(
    connection: psycopg.Connection[Any],
    table: TableName,
    options: PostgresOptions,
    role: Role,
    publication: Publication | None,
    *,
    captured: bool,
) -> list[Finding]:
    """Check a missing table: the role must be able to create it, and a user's publication must then include it."""
    if captured:
        return [error(str(table), "the table no longer exists", "Drop the source and capture it again.")]
    if options.publication_ownership is Ownership.USER and not _covers(publication, table):
        name = quoted(publication.name) if publication else "…"
        add = f"ALTER PUBLICATION {name} ADD TABLE {table};"
        return [
            error(
                str(table), "the publication must include it", sql=[*meta_table_statements(table), *_grants(role), add]
            )
        ]
    allowed = connection.execute(f"{_SCHEMA} WHERE nspname = %s", (table.schema,)).fetchone()
    if allowed is None and not role.creates:
        why = f'role "{role.name}" has no privilege to create schema {table.schema} in database "{role.database}"'
        return [error(str(table), why, sql=[f"CREATE SCHEMA {table.schema} AUTHORIZATION {quoted(role.name)};"])]
    if allowed == (False,):
        why = f'role "{role.name}" has no privilege to create tables in schema {table.schema}'
        return [error(str(table), why, sql=[f"GRANT USAGE, CREATE ON SCHEMA {table.schema} TO {quoted(role.name)};"])]
    return []


def _covers(publication: Publication | None, table: TableName) -> bool:
    """Return whether a publication includes a table as soon as the table is created."""
    return publication is not None and (publication.all_tables or table.schema in publication.schemas)


def _grants(role: Role) -> list[str]:
    name = quoted(role.name)
    return [
        f"GRANT USAGE ON SCHEMA dblog_meta TO {name};",
        f"GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA dblog_meta TO {name};",
    ]


def _check_present(
    table: TableName, existing: MetaTable, options: PostgresOptions, role: Role, *, captured: bool
) -> list[Finding]:
    if not existing.fits:
        why = "the table exists with other columns than Penstock requires (id integer PRIMARY KEY, token text)"
        return [error(str(table), why, "Use logical messages instead, or rename the table.")]
    if not (existing.usable and existing.writable):
        return [error(str(table), f'role "{role.name}" has no SELECT and UPDATE privilege', sql=_grants(role))]
    if options.publication_ownership is Ownership.MANAGED and not (existing.owned or role.superuser):
        fix = f"GRANT {quoted(existing.owner)} TO {quoted(role.name)};"
        return [error(str(table), "only the owner of a table can publish it", sql=[fix])]
    if existing.user() is not None and not captured:
        why = "its row belongs to another source, or to one that was dropped with --force"
        hint = f"Use logical messages instead. If the table is unused, run: DROP TABLE {table};"
        return [error(str(table), why, hint)]
    return []


def _check_filters(table: TableName, publication: Publication | None) -> list[Finding]:
    """Reject a row filter or column list on the table: every write to it must be published."""
    published = publication.table(table) if publication else None
    if publication is None or published is None or not (published.row_filter or published.column_list):
        return []
    again = [f"ALTER PUBLICATION {quoted(publication.name)} {verb} TABLE {table};" for verb in ("DROP", "ADD")]
    return [error(str(table), f'publication "{publication.name}" filters its rows or columns', sql=again)]
