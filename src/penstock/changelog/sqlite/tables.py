"""The tables that a log knows: versions of their schemas, where they were captured anew, their errors.

All of it is small and is read whole, held to its tally. Who has read one edition of it keeps that: `tables` and
`extent` are asked for all the time, and schemas take long to parse.
"""

from __future__ import annotations

import functools
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.changelog.interface import LoggedTable
from penstock.changelog.sqlite.file import check, damaged, seal, tally
from penstock.changelog.sqlite.frontier import Frontier, tallied
from penstock.errors import TableError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["UNREAD", "Relation", "Roster", "load_roster", "store_failure", "store_relation", "store_restart"]

_RELATIONS = "SELECT id, table_id, version, columns, since, seal FROM relation ORDER BY version, id"
_RESTARTS = "SELECT schema_name, table_name, lsn, generation, seal FROM restart"
_FAILURES = "SELECT schema_name, table_name, lsn, message, hint, seal FROM failure"


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
        """Return its row, with the seal."""
        values = (self.id, self.table_id, self.version, self.schema.to_bytes(), self.since)
        return (*values, seal(*values))


@dataclass(frozen=True)
class Roster:
    """One edition of it."""

    edition: int
    relations: dict[TableName, list[Relation]]
    """The versions of each table, in order."""
    restarts: dict[TableName, tuple[Lsn, int]]
    """Where a table was captured anew, and for the how-manyth time."""
    failures: dict[TableName, TableError]

    @functools.cached_property
    def versions(self) -> dict[tuple[int, int], Relation]:
        """All versions, by the id of their table and their number."""
        return {(each.table_id, each.version): each for found in self.relations.values() for each in found}

    def table_id(self, table: TableName) -> int | None:
        """Return under which number the chunks of a table are kept."""
        found = self.relations.get(table)
        return found[0].table_id if found else None

    def begins(self, table: TableName, valid: int) -> Lsn:
        """Return where the history of a table begins."""
        return Lsn(max(valid, self.restarts.get(table, (0, 0))[0]))

    def schemas(self, table: TableName) -> dict[int, TableSchema]:
        """Return the schemas of a table by version."""
        return {relation.version: relation.schema for relation in self.relations[table]}

    def tables(self, valid: int) -> dict[TableName, LoggedTable]:
        """Return the tables of which something was published, or which were said to hold from a position on."""
        known = (name for name, versions in self.relations.items() if any(v.since is not None for v in versions))
        return {name: self._logged(name, valid) for name in known}

    def _logged(self, table: TableName, valid: int) -> LoggedTable:
        versions = self.relations[table]
        schemas, since = tuple(v.schema for v in versions), tuple(v.since for v in versions)
        begun, generation = self.restarts.get(table, (Lsn.ZERO, 0))
        error = self.failures.get(table)
        return LoggedTable(schemas, since, self.begins(table, valid), error, generation, Lsn(begun))


UNREAD = Roster(-1, {}, {}, {})


def load_roster(db: sqlite3.Connection, path: Path, frontier: Frontier) -> Roster:
    """Read all of it, and hold it to its tally."""
    relations, restarts, failures = (db.execute(query).fetchall() for query in (_RELATIONS, _RESTARTS, _FAILURES))
    found = [check(row, "a table", path) for row in (*relations, *restarts, *failures)]
    if tally(row[-1] for row in (*relations, *restarts, *failures)) != frontier.roster:
        raise damaged(path, "a table that it had is not in it")
    versions: dict[TableName, list[Relation]] = {}
    for id_, table_id, version, columns, since in found[: len(relations)]:
        schema = _parsed(columns)
        relation = Relation(id_, table_id, version, schema, None if since is None else Lsn(since))
        versions.setdefault(schema.table, []).append(relation)
    begun = found[len(relations) : len(relations) + len(restarts)]
    errors = found[len(relations) + len(restarts) :]
    return Roster(
        frontier.edition,
        versions,
        {TableName(schema, name): (Lsn(lsn), generation) for schema, name, lsn, generation in begun},
        {TableName(row[0], row[1]): TableError(f"{row[0]}.{row[1]}", *row[2:]) for row in errors},
    )


def store_relation(db: sqlite3.Connection, path: Path, relation: Relation) -> None:
    """Write a version down, or what has become of it."""
    with tallied(db, path, "roster"):
        db.execute("INSERT OR REPLACE INTO relation VALUES (?, ?, ?, ?, ?, ?)", relation.row())


def store_restart(db: sqlite3.Connection, path: Path, table: TableName, since: Lsn, generation: int) -> None:
    """Write down that a table was captured anew: its error is forgotten."""
    values = (table.schema, table.name, since, generation)
    with tallied(db, path, "roster"):
        db.execute("DELETE FROM failure WHERE schema_name=? AND table_name=?", (table.schema, table.name))
        db.execute("INSERT OR REPLACE INTO restart VALUES (?, ?, ?, ?, ?)", (*values, seal(*values)))


def store_failure(db: sqlite3.Connection, path: Path, error: TableError) -> None:
    """Write down that a table has failed, unless it had before."""
    table = TableName.parse(error.table)
    values = (table.schema, table.name, error.lsn, error.message, error.hint)
    with tallied(db, path, "roster"):
        db.execute("INSERT OR IGNORE INTO failure VALUES (?, ?, ?, ?, ?, ?)", (*values, seal(*values)))


@functools.lru_cache(maxsize=4096)
def _parsed(columns: bytes) -> TableSchema:
    return TableSchema.from_bytes(columns)
