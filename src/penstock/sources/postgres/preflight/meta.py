"""Where watermarks or heartbeats are written upstream: may the role do that, and is the place free?"""

from __future__ import annotations

from typing import Any

import psycopg

from penstock.model import TableName
from penstock.sources.findings import Finding, error
from penstock.sources.postgres.meta_tables import MetaTable, find_meta, meta_statements, meta_tables
from penstock.sources.postgres.names import quoted
from penstock.sources.postgres.options import Ownership, PostgresOptions, Snapshot
from penstock.sources.postgres.preflight.role import Role
from penstock.sources.postgres.publication import Publication

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
    """Look at the tables of ``dblog_meta`` that these options need; and at what a standby cannot do."""
    found = _check_standby(connection, options)
    for table in [] if found else meta_tables(options.watermarks, options.heartbeat):
        there = find_meta(connection, table)
        if there is None:
            found += _check_absent(connection, table, options, role, publication, captured=captured)
        else:
            found += _check_present(table, there, options, role, captured=captured)
        found += _check_filters(table, publication)
    return found


def _check_standby(connection: psycopg.Connection[Any], options: PostgresOptions) -> list[Finding]:
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() != (True,):
        return []
    found = []
    if options.heartbeat is not None:
        found.append(error("heartbeat", "it is a standby, on which no heartbeat can be written", "Leave it out."))
    if options.snapshot is Snapshot.CHUNKED or meta_tables(options.watermarks, None):
        why = "it is a standby, on which no watermark can be written"
        found.append(error("watermarks", why, "Leave out snapshot = chunked and watermarks = table."))
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
    """We make it, if the role may, and if a publication of yours will then have it."""
    if captured:
        return [error(str(table), "it is gone", "Drop the source and capture it again.")]
    if options.publication_ownership is Ownership.USER and not _covers(publication, table):
        name = quoted(publication.name) if publication else "…"
        add = f"ALTER PUBLICATION {name} ADD TABLE {table};"
        return [error(str(table), "your publication must have it", sql=[*meta_statements(table), *_grants(role), add])]
    allowed = connection.execute(f"{_SCHEMA} WHERE nspname = %s", (table.schema,)).fetchone()
    if allowed is None and not role.creates:
        why = f"role {role.name} may not create the schema {table.schema} in database {role.database}"
        return [error(str(table), why, sql=[f"CREATE SCHEMA {table.schema} AUTHORIZATION {quoted(role.name)};"])]
    if allowed == (False,):
        why = f"role {role.name} may not create it in the schema {table.schema}"
        return [error(str(table), why, sql=[f"GRANT USAGE, CREATE ON SCHEMA {table.schema} TO {quoted(role.name)};"])]
    return []


def _covers(publication: Publication | None, table: TableName) -> bool:
    """Whether a publication will have a table as soon as that is made."""
    return publication is not None and (publication.all_tables or table.schema in publication.schemas)


def _grants(role: Role) -> list[str]:
    name = quoted(role.name)
    return [
        f"GRANT USAGE ON SCHEMA dblog_meta TO {name};",
        f"GRANT SELECT, UPDATE ON ALL TABLES IN SCHEMA dblog_meta TO {name};",
    ]


def _check_present(
    table: TableName, there: MetaTable, options: PostgresOptions, role: Role, *, captured: bool
) -> list[Finding]:
    if not there.fits:
        why = "a table of that name is there, and is not as Penstock makes it (id integer PRIMARY KEY, token text)"
        return [error(str(table), why, "Use logical messages instead, or rename it.")]
    if not (there.usable and there.writable):
        return [error(str(table), f"role {role.name} may not read and update it", sql=_grants(role))]
    if options.publication_ownership is Ownership.MANAGED and not (there.owned or role.superuser):
        mend = f"GRANT {quoted(there.owner)} TO {quoted(role.name)};"
        return [error(str(table), "only its owner may publish it", sql=[mend])]
    if there.user() is not None and not captured:
        why = "its row is in use: another source marks there, or one that was dropped by force left it"
        hint = f"Use logical messages instead; or, if nobody uses it, run: DROP TABLE {table};"
        return [error(str(table), why, hint)]
    return []


def _check_filters(table: TableName, publication: Publication | None) -> list[Finding]:
    """What is written there must all arrive."""
    published = publication.table(table) if publication else None
    if publication is None or published is None or not (published.row_filter or published.column_list):
        return []
    again = [f"ALTER PUBLICATION {quoted(publication.name)} {verb} TABLE {table};" for verb in ("DROP", "ADD")]
    return [error(str(table), f"the publication {publication.name} filters it", sql=again)]
