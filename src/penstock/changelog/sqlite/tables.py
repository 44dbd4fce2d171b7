"""The tables in a log: the versions of their schemas, where they were captured again, and their errors.

This set is small; it is read as a whole and verified against its tally. A reader caches it until its edition changes,
because `tables` and `extent` are called frequently and parsing schemas is slow.
"""

from __future__ import annotations

import functools
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.changelog.interface import LoggedTable
from penstock.changelog.sqlite.file import check_row, damaged, seal, tally
from penstock.changelog.sqlite.frontier import Frontier, tallied
from penstock.errors import TableError, table_error
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["UNREAD", "Relation", "Roster", "load_roster", "store_failure", "store_relation", "store_restart"]

_RELATIONS = "SELECT id, table_id, version, columns, since, seal FROM relation ORDER BY version, id"
_RESTARTS = "SELECT schema_name, table_name, lsn, generation, seal FROM restart"
_FAILURES = "SELECT schema_name, table_name, lsn, message, hint, code, seal FROM failure"


@dataclass(frozen=True)
class Relation:
    """One version of a table's schema."""

    id: int
    table_id: int
    """The id of the table's first version."""
    version: int
    schema: TableSchema
    since: Lsn | None

    def row(self) -> tuple[Any, ...]:
        """Return the row, with its seal."""
        values = (self.id, self.table_id, self.version, self.schema.to_bytes(), self.since)
        return (*values, seal(*values))


@dataclass(frozen=True)
class Roster:
    """One edition of the tables in a log."""

    edition: int
    relations: dict[TableName, list[Relation]]
    """The versions of each table, in order."""
    restarts: dict[TableName, tuple[Lsn, int]]
    """The position at which a table was last captured again, and its generation."""
    failures: dict[TableName, TableError]

    @functools.cached_property
    def versions(self) -> dict[tuple[int, int], Relation]:
        """All versions, keyed by the id of their table and their number."""
        return {(each.table_id, each.version): each for found in self.relations.values() for each in found}

    def table_id(self, table: TableName) -> int | None:
        """Return the id under which the chunks of a table are stored."""
        found = self.relations.get(table)
        return found[0].table_id if found else None

    def history_start(self, table: TableName, valid: int) -> Lsn:
        """Return the position at which the history of a table begins."""
        return Lsn(max(valid, self.restarts.get(table, (0, 0))[0]))

    def schemas(self, table: TableName) -> dict[int, TableSchema]:
        """Return the schemas of a table by version."""
        return {relation.version: relation.schema for relation in self.relations[table]}

    def tables(self, valid: int) -> dict[TableName, LoggedTable]:
        """Return the tables that have a published chunk or a version with a defined first position."""
        known = (name for name, versions in self.relations.items() if any(v.since is not None for v in versions))
        return {name: self._logged(name, valid) for name in known}

    def _logged(self, table: TableName, valid: int) -> LoggedTable:
        versions = self.relations[table]
        schemas, since = tuple(v.schema for v in versions), tuple(v.since for v in versions)
        start, generation = self.restarts.get(table, (Lsn.ZERO, 0))
        error = self.failures.get(table)
        return LoggedTable(schemas, since, self.history_start(table, valid), error, generation, Lsn(start))


UNREAD = Roster(-1, {}, {}, {})


def load_roster(db: sqlite3.Connection, path: Path, frontier: Frontier) -> Roster:
    """Read all tables and verify the tally."""
    relations, restarts, failures = (db.execute(query).fetchall() for query in (_RELATIONS, _RESTARTS, _FAILURES))
    found = [check_row(row, "a table", path) for row in (*relations, *restarts, *failures)]
    if tally(row[-1] for row in (*relations, *restarts, *failures)) != frontier.roster:
        raise damaged(path, "the row of a table is missing")
    versions: dict[TableName, list[Relation]] = {}
    for id_, table_id, version, columns, since in found[: len(relations)]:
        schema = _parse(columns)
        relation = Relation(id_, table_id, version, schema, None if since is None else Lsn(since))
        versions.setdefault(schema.table, []).append(relation)
    restarted = found[len(relations) : len(relations) + len(restarts)]
    errors = found[len(relations) + len(restarts) :]
    return Roster(
        frontier.edition,
        versions,
        {TableName(schema, name): (Lsn(lsn), generation) for schema, name, lsn, generation in restarted},
        {TableName(row[0], row[1]): table_error(f"{row[0]}.{row[1]}", *row[2:]) for row in errors},
    )


def store_relation(db: sqlite3.Connection, path: Path, relation: Relation) -> None:
    """Insert or update a version."""
    with tallied(db, path, "roster"):
        db.execute("INSERT OR REPLACE INTO relation VALUES (?, ?, ?, ?, ?, ?)", relation.row())


def store_restart(db: sqlite3.Connection, path: Path, table: TableName, since: Lsn, generation: int) -> None:
    """Record that a table is captured again, and clear its error."""
    values = (table.schema, table.name, since, generation)
    with tallied(db, path, "roster"):
        db.execute("DELETE FROM failure WHERE schema_name=? AND table_name=?", (table.schema, table.name))
        db.execute("INSERT OR REPLACE INTO restart VALUES (?, ?, ?, ?, ?)", (*values, seal(*values)))


def store_failure(db: sqlite3.Connection, path: Path, error: TableError) -> None:
    """Record the error of a table, unless it already has one."""
    table = TableName.parse(error.table)
    values = (table.schema, table.name, error.lsn, error.message, error.hint, error.code)
    with tallied(db, path, "roster"):
        db.execute("INSERT OR IGNORE INTO failure VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, seal(*values)))


@functools.lru_cache(maxsize=4096)
def _parse(columns: bytes) -> TableSchema:
    return TableSchema.from_bytes(columns)
