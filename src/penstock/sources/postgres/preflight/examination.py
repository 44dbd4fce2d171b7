"""One look at everything that capture will need; nothing is changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.errors import DefiniteError
from penstock.model import TableName
from penstock.sources.findings import Finding, error, errors_among, info
from penstock.sources.postgres.connection import find_pooler
from penstock.sources.postgres.introspect import find_tables
from penstock.sources.postgres.meta_tables import find_meta, meta_tables
from penstock.sources.postgres.options import Ownership, PostgresOptions
from penstock.sources.postgres.preflight.contracts import check_publication_of, check_slot_of
from penstock.sources.postgres.preflight.meta import check_meta
from penstock.sources.postgres.preflight.role import find_role
from penstock.sources.postgres.preflight.server import check_server, check_version
from penstock.sources.postgres.preflight.tables import check_table
from penstock.sources.postgres.publication import read_publication
from penstock.sources.postgres.selection import ChosenTable, Selection, choose

__all__ = ["Preflight", "chosen_tables", "examine", "examine_named"]

_ALL_TABLES = PostgresOptions()


@dataclass(frozen=True)
class Preflight:
    """What was found of the server (and of the source as a whole), and of each table."""

    server: tuple[Finding, ...]
    tables: tuple[tuple[ChosenTable, tuple[Finding, ...]], ...]
    named: bool = False
    """Whether the tables were named one by one: then an error of one is an error of the source."""

    def capturable(self) -> list[ChosenTable]:
        """Return the tables that can be captured."""
        return [table for table, findings in self.tables if not errors_among(findings)]

    def refused(self) -> dict[TableName, Finding]:
        """Return the first error of each table that cannot."""
        return {table.name: errors_among(found)[0] for table, found in self.tables if errors_among(found)}

    def findings(self) -> list[Finding]:
        """Return everything, the server first."""
        return [*self.server, *(finding for _, findings in self.tables for finding in findings)]

    def blocking(self) -> list[Finding]:
        """Return the errors that keep capture from starting."""
        server = errors_among(self.server)
        if server or (self.capturable() and not self.named):
            return server
        return [finding for _, findings in self.tables for finding in errors_among(findings)]

    def require(self) -> None:
        """Raise unless there is something to capture."""
        blocking = self.blocking()
        if blocking:
            said = "\n".join(dict.fromkeys(f"{finding.object}: {finding.why}" for finding in blocking))
            raise DefiniteError(said, "\n".join(dict.fromkeys(finding.hint for finding in blocking)))
        if not self.tables:
            message = "there is no table to capture in this database"
            raise DefiniteError(message, "Create one, or name another database.")


def examine(
    connection: psycopg.Connection[Any],
    publication: str,
    slot: str,
    options: PostgresOptions = _ALL_TABLES,
    *,
    captured: Collection[TableName] | None = None,
    refused: Collection[TableName] = (),
) -> Preflight:
    """Look at everything that capture will need; of a source that is there (`captured`), at what it has."""
    version = connection.info.server_version
    pooled = [*check_version(version), *find_pooler(connection)]
    if errors_among(pooled):
        return Preflight(tuple(pooled), ())
    users = options.publication_ownership is Ownership.USER
    found_publication = read_publication(connection, publication)
    selection = choose(find_tables(connection), options, found_publication if users else None, version)
    if captured is not None:
        _keep_captured(selection, captured, refused, options)
    there, role = captured is not None, find_role(connection)
    published = [table.name for table in selection.tables if captured is None or table.name in captured]
    meta = check_meta(connection, options, role, found_publication, captured=there)
    if there or users:
        marks = meta_tables(options.watermarks, options.heartbeat)
        published += [table for table in marks if find_meta(connection, table) is not None]
    server = [
        *pooled,
        *check_server(connection, options, captured=there),
        *role.check(options),
        *check_publication_of(publication, found_publication, published, options, captured=there),
        *check_slot_of(connection, slot, options, captured=there),
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
    """Return the tables that these options choose, as this connection sees them, capturable or not."""
    users = options.publication_ownership is Ownership.USER
    found = read_publication(connection, publication) if users else None
    return choose(find_tables(connection), options, found, connection.info.server_version).tables


def examine_named(
    connection: psycopg.Connection[Any], publication: str, options: PostgresOptions
) -> tuple[list[ChosenTable], list[Finding]]:
    """Return the tables that these options name one by one, and what keeps one from being found or sent."""
    users = options.publication_ownership is Ownership.USER
    found = read_publication(connection, publication) if users else None
    selection = choose(find_tables(connection), options, found, connection.info.server_version)
    names = [table.name for table in selection.tables]
    contract = check_publication_of(publication, found, names, options, captured=True) if users else []
    return selection.tables, [*selection.findings, *contract]


def _keep_captured(
    selection: Selection, captured: Collection[TableName], refused: Collection[TableName], options: PostgresOptions
) -> None:
    """Of a source that is there, look at its tables: what was made later is not captured, what is gone is an error."""
    there = {table.name for table in selection.tables}
    for name in sorted(set(captured) - there):
        why = "it is captured, and is not there any more, or not published"
        hint = f"Mend that, then: ALTER SOURCES … RETRY TABLE {name}; or leave it: ALTER SOURCES … DROP TABLE {name};"
        selection.findings.append(error(str(name), why, hint))
    for name in sorted(there - set(captured) - set(refused)):
        why = "it is newer than the source, or was dropped from it, and is not captured"
        selection.findings.append(info(str(name), why, f"To capture it: ALTER SOURCES … ADD TABLE {name};"))
    elsewhere = {str(c) for c in (*options.excluded(), *options.as_text()) if c.table not in captured}
    selection.findings = [finding for finding in selection.findings if finding.object not in elsewhere]
    selection.tables = [table for table in selection.tables if table.name in captured or table.name in refused]
