"""What an exported snapshot shows of a source's tables, and whether it still does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connect
from penstock.sources.postgres.slot import ExportedSnapshot, take_snapshot
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.table_files import TableFiles, table_files

__all__ = ["Shown"]


@dataclass(frozen=True)
class Shown:
    """A snapshot, the tables as they were then, and the files that held them."""

    conninfo: str
    snapshot: ExportedSnapshot
    tables: Mapping[TableName, CapturedTable]
    files: Mapping[int, TableFiles]

    @classmethod
    def by(cls, snapshot: ExportedSnapshot, spec: PostgresSource) -> Self:
        """Look at what a snapshot shows of the tables of a source."""
        conninfo, tables = spec.conninfo(), spec.tables_at(snapshot.name)
        with connect(conninfo) as connection:
            take_snapshot(connection, snapshot.name)
            return cls(conninfo, snapshot, tables, table_files(connection, [table.oid for table in tables.values()]))

    def still_shows(self, table: TableName) -> bool:
        """Whether all rows of a table could be read until now: it was neither truncated nor rewritten since."""
        found = self.tables.get(table)
        if found is None:
            return True  # it was not there
        with connect(self.conninfo) as connection:
            return self.files[found.oid] <= table_files(connection, [found.oid])[found.oid]
