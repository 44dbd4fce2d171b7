"""Run all preflight checks, read-only, and collect their findings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.sources.findings import Finding, error, errors_among, info
from penstock.sources.postgres.connection import find_pooler
from penstock.sources.postgres.options import NewTables, Ownership, PostgresOptions
from penstock.sources.postgres.preflight.introspect import find_tables
from penstock.sources.postgres.preflight.meta import check_meta
from penstock.sources.postgres.preflight.role import find_role
from penstock.sources.postgres.preflight.selection import ChosenTable, Selection, choose
from penstock.sources.postgres.preflight.server import check_publication_of, check_server, check_slot_of, check_version
from penstock.sources.postgres.preflight.tables import check_table
from penstock.sources.postgres.replication.meta_tables import find_meta_table, meta_tables
from penstock.sources.postgres.replication.publication import read_publication

__all__ = ["Preflight", "check_named_tables", "chosen_tables", "run_preflight"]

_ALL_TABLES = PostgresOptions()


@dataclass(frozen=True)
class Preflight:
    """The findings about the server (and the source as a whole), and about each table."""

    server: tuple[Finding, ...]
    tables: tuple[tuple[ChosenTable, tuple[Finding, ...]], ...]
    named: bool = False
    """Whether the tables were named individually: an error of one table is then an error of the source."""

    def capturable(self) -> list[ChosenTable]:
        """Return the tables that can be captured."""
        return [table for table, findings in self.tables if not errors_among(findings)]

    def refused(self) -> dict[TableName, Finding]:
        """Return the first error of each table that cannot be captured."""
        return {table.name: errors_among(found)[0] for table, found in self.tables if errors_among(found)}

    def findings(self) -> list[Finding]:
        """Return all findings, those of the server first."""
        return [*self.server, *(finding for _, findings in self.tables for finding in findings)]

    def blocking(self) -> list[Finding]:
        """Return the errors that prevent capture from starting."""
        server = errors_among(self.server)
        if server or (self.capturable() and not self.named):
            return server
        return [finding for _, findings in self.tables for finding in errors_among(findings)]

    def require(self) -> None:
        """Raise `DefiniteError` unless capture can start and has at least one table."""
        blocking = self.blocking()
        if blocking:
            problems = "\n".join(dict.fromkeys(f"{finding.object}: {finding.why}" for finding in blocking))
            raise DefiniteError(problems, "\n".join(dict.fromkeys(finding.hint for finding in blocking)))
        if not self.tables:
            message = "this database has no table to capture"
            raise DefiniteError(message, "Create one, or name another database.")


def run_preflight(
    connection: psycopg.Connection[Any],
    publication: str,
    slot: str,
    options: PostgresOptions = _ALL_TABLES,
    *,
    captured: Collection[TableName] | None = None,
    refused: Collection[TableName] = (),
) -> Preflight:
    """Run preflight for a new source, or for an existing one, given the tables that it has `captured`."""
    version = connection.info.server_version
    pooled = [*check_version(version), *find_pooler(connection)]
    if errors_among(pooled):
        return Preflight(tuple(pooled), ())
    users = options.publication_ownership is Ownership.USER
    found_publication = read_publication(connection, publication)
    selection = choose(find_tables(connection), options, found_publication if users else None, version)
    if captured is not None:
        _keep_captured(selection, captured, refused, options)
    exists, role = captured is not None, find_role(connection)
    published = [table.name for table in selection.tables if captured is None or table.name in captured]
    meta = check_meta(connection, options, role, found_publication, captured=exists)
    if exists or users:
        needed = meta_tables(options.watermarks, options.heartbeat)
        published += [table for table in needed if find_meta_table(connection, table) is not None]
    server = [
        *pooled,
        *check_server(connection, options, captured=exists),
        *role.check(options),
        *check_publication_of(publication, found_publication, published, options, captured=exists),
        *check_slot_of(connection, slot, options, captured=exists),
        *meta,
        *selection.findings,
    ]
    about_tables = {str(table.name) for table in selection.tables}
    tables = tuple(
        (table, (*check_table(table, role, options), *(f for f in server if f.object == str(table.name))))
        for table in selection.tables
    )
    return Preflight(tuple(f for f in server if f.object not in about_tables), tables, bool(options.tables))


def chosen_tables(connection: psycopg.Connection[Any], publication: str, options: PostgresOptions) -> list[ChosenTable]:
    """Return the tables that these options select, as this connection sees them, capturable or not."""
    users = options.publication_ownership is Ownership.USER
    found = read_publication(connection, publication) if users else None
    return choose(find_tables(connection), options, found, connection.info.server_version).tables


def check_named_tables(
    connection: psycopg.Connection[Any], publication: str, options: PostgresOptions
) -> tuple[list[ChosenTable], list[Finding]]:
    """Return the tables that these options name individually, and findings for missing or unpublished ones."""
    users = options.publication_ownership is Ownership.USER
    found = read_publication(connection, publication) if users else None
    selection = choose(find_tables(connection), options, found, connection.info.server_version)
    names = [table.name for table in selection.tables]
    contract = check_publication_of(publication, found, names, options, captured=True) if users else []
    return selection.tables, [*selection.findings, *contract]


def _keep_captured(
    selection: Selection, captured: Collection[TableName], refused: Collection[TableName], options: PostgresOptions
) -> None:
    """Restrict the selection to the tables of an existing source: report missing tables as errors, new ones as info."""
    existing = {table.name for table in selection.tables}
    for name in sorted(set(captured) - existing):
        why = "the captured table no longer exists, or is no longer published"
        hint = (
            f"Restore it, then run: ALTER SOURCES … RETRY TABLE {name};"
            f" To stop capturing it, run: ALTER SOURCES … DROP TABLE {name};"
        )
        selection.findings.append(error(str(name), why, hint))
    for name in sorted(existing - set(captured) - set(refused)):
        if options.new_tables is NewTables.CAPTURE and not options.tables:
            selection.findings.append(info(str(name), "not captured yet: the table is new; `penstock run` captures it"))
            continue
        why = "not captured: the table is newer than the source, or was dropped from it"
        selection.findings.append(info(str(name), why, f"To capture it, run: ALTER SOURCES … ADD TABLE {name};"))
    elsewhere = {str(c) for c in (*options.excluded(), *options.as_text()) if c.table not in captured}
    selection.findings = [finding for finding in selection.findings if finding.object not in elsewhere]
    selection.tables = [table for table in selection.tables if table.name in captured or table.name in refused]
