"""The tables of a Postgres database: exported snapshots, copied by COPY sessions, and watermark windows.

Postgres hides changes from older snapshots, with two exceptions: a table that was truncated since, or rewritten by an
ALTER TABLE, looks *empty* to them. Both create new files. So a copy under an exported snapshot is complete only if the
files of the table are still those that the snapshot shows. (VACUUM FULL and CLUSTER create new files too, and keep what
older snapshots need.)

A query names columns, and Postgres looks up the names when it executes the query, not as of its snapshot. So a column
that was renamed since may be missing, or be another one. The copy counts only if no column was altered since.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from penstock.errors import TableError, TransientError
from penstock.fields import with_fields
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.database import CopyOptions, Database, Report, Snapshot, TableCopy, Tally
from penstock.sources.postgres.captured_table import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect, translate_errors
from penstock.sources.postgres.options import SnapshotMode
from penstock.sources.postgres.replication.publication_watch import PublicationWatch
from penstock.sources.postgres.replication.slot import ExportedSnapshot, export_snapshot, import_snapshot
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.sources.postgres.snapshot.copy import PageRange, copy_progress, copy_range, copy_ranges, table_bytes
from penstock.sources.postgres.snapshot.watermark_windows import WindowReader
from penstock.sources.produced_table import ProducedTable
from penstock.units import parse_duration, parse_size

__all__ = ["PostgresCopy", "PostgresDatabase", "PostgresSnapshot"]

_TablesAt = Callable[[str], Mapping[TableName, CapturedTable]]
"""Returns the selected tables with the columns that they have in an exported snapshot."""


class PostgresDatabase(Database):
    """The tables of one instance."""

    def __init__(self, config: PostgresInstanceConfig, tables_at: _TablesAt) -> None:
        self._config = config
        self._tables_at = tables_at
        is_chunked, rate = config.snapshot is SnapshotMode.CHUNKED, config.snapshot_rate
        self.options = CopyOptions(
            is_chunked,
            config.chunk_rows,
            parse_duration(config.chunk_pause),
            config.snapshot_sessions,
            parse_size(rate) if rate else 0,
        )

    @contextmanager
    def snapshot(self, report: Report, stop: threading.Event) -> Iterator[PostgresSnapshot]:
        """Export a snapshot; the server does that when all running transactions have ended."""
        conninfo, wait = self._config.connection, parse_duration(self._config.snapshot_wait)
        with self.translated_errors(), export_snapshot(conninfo, wait, report, stop) as exported:
            tables = self._tables_at(exported.name)
            with connect(conninfo) as connection:
                import_snapshot(connection, exported.name)
                files = _table_files(connection, [table.oid for table in tables.values()])
                versions = _column_versions(connection, [table.oid for table in tables.values()])
            yield PostgresSnapshot(exported.lsn, conninfo, exported, tables, files, versions, self.options)

    def windows(self, table: ProducedTable, window: str, number: int = 0) -> WindowReader:
        """Return a reader with a connection of its own."""
        captured = _captured(table)
        dropped = self._dropped(captured)
        absent = tuple(column.name for column in captured.columns if column.name in dropped)
        return WindowReader(self._config, with_fields(captured, absent=absent), window, number)

    def _dropped(self, table: CapturedTable) -> set[str]:
        """Return the columns that capture has proven to be dropped."""
        facts = self._config.facts.tables.get(table.oid) if self._config.facts is not None else None
        return set() if facts is None else {name for name in facts.dropped if table.can_lose(name)}

    def now(self) -> Lsn:
        """Return the end of the WAL."""
        with self.translated_errors(), connect(self._config.connection) as connection:
            return wal_insert_position(connection)

    def check_tables(self, durable: Lsn) -> list[TableError]:
        """Check publication and tables as capture does when it connects."""
        with self.translated_errors(), connect(self._config.connection) as connection:
            return PublicationWatch(self._config, durable).check(connection, durable)

    def translated_errors(self) -> AbstractContextManager[None]:
        """Translate errors of psycopg."""
        return translate_errors(self._config.connection)


@dataclass(frozen=True)
class PostgresSnapshot(Snapshot):
    """An exported snapshot, the definitions of the tables in it, and the files that stored them."""

    conninfo: str
    exported: ExportedSnapshot
    tables: Mapping[TableName, CapturedTable]
    files: Mapping[int, _TableFiles]
    versions: Mapping[int, _ColumnVersions]
    options: CopyOptions

    def find(self, table: ProducedTable) -> CapturedTable | str:
        """Return a table with the columns that were added, dropped and renamed since its capture began."""
        return _captured(table).with_found_columns(self.tables.get(table.name))

    def is_changed(self, table: ProducedTable) -> bool:
        """Return whether the same table, by its OID, has another definition."""
        found = self.tables.get(table.name)
        return found is not None and found.oid == _captured(table).oid

    def copy(self, table: ProducedTable, tasks: int, columns: int | None = None) -> PostgresCopy:
        """Divide a table into ranges of pages; sessions that may run at the same time share the rate."""
        limit = self.options.sessions
        captured = _captured(table)
        if columns is not None:
            captured = with_fields(captured, columns=captured.columns[:columns])
        with translate_errors(self.conninfo), connect(self.conninfo) as connection:
            pages = copy_ranges(connection, captured.name, tasks)
            size = table_bytes(connection, captured.name)
        rate = self.options.rate / (limit or tasks)
        return PostgresCopy.of(self.conninfo, self.exported, captured, pages, size, min(limit, tasks), rate)

    def has_all_rows(self, table: TableName) -> bool:
        """Return whether a table was neither truncated nor rewritten since: then it would look empty here.

        Raises `TransientError` if columns were altered since: the copy may have read other columns.
        """
        found = self.tables.get(table)
        if found is None:
            return True  # the snapshot does not contain it
        with translate_errors(self.conninfo), connect(self.conninfo) as connection:
            now = _column_versions(connection, [found.oid])[found.oid]
            if any(now.get(number, version) != version for number, version in self.versions[found.oid].items()):
                message = f"columns of {table} were altered upstream while it was read"
                raise TransientError(message, "A snapshot reads it again by itself; run any other command again.")
            return self.files[found.oid] <= _table_files(connection, [found.oid])[found.oid]


@dataclass(frozen=True)
class PostgresCopy(TableCopy):
    """A table at an exported snapshot, in ranges of pages."""

    conninfo: str
    exported: ExportedSnapshot
    table: CapturedTable
    pages: Sequence[PageRange]
    limit: int = 0
    """The most sessions that read it at the same time; 0 for no limit."""
    rate: float = 0
    """The most bytes that each of them reads per second; 0 for no limit."""

    @classmethod
    def of(
        cls,
        conninfo: str,
        exported: ExportedSnapshot,
        table: CapturedTable,
        pages: Sequence[PageRange],
        total_bytes: int = 0,
        limit: int = 0,
        rate: float = 0,
    ) -> PostgresCopy:
        """Return the copy of these pages of a table."""
        known = (table.table_schema(), len(pages), table.estimated_rows, total_bytes)
        return cls(*known, conninfo, exported, table, pages, limit, rate)

    def sessions(self) -> int:
        """Return how many ranges may be read at the same time."""
        return self.limit or self.ranges

    def read(self, number: int, tally: Tally) -> Iterator[pa.RecordBatch]:
        """Copy one range of pages, over a connection of its own."""
        yield from copy_range(
            *(self.conninfo, self.exported.name, self.table, self.pages[number], self.exported.lsn),
            number=number,
            tally=tally,
            rate=self.rate,
        )

    @contextmanager
    def watch(self) -> Iterator[Callable[[], Mapping[int, Tally]]]:
        """Query the progress of the running COPY sessions."""
        with translate_errors(self.conninfo), connect(self.conninfo, "penstock progress") as connection:
            yield lambda: copy_progress(connection, self.table)


def _captured(table: ProducedTable) -> CapturedTable:
    """Narrow a table to its type."""
    if not isinstance(table, CapturedTable):
        raise TypeError(table)
    return table


# -- files of tables ---------------------------------------------------------------------------------------------------

_TableFiles = frozenset[tuple[int, int]]
"""The table and its partitions: (OID, filenode) of each."""

_FILES = """
WITH RECURSIVE part(root, oid) AS (
  SELECT oid, oid FROM pg_class WHERE oid = ANY(%s)
  UNION ALL
  SELECT root, inhrelid FROM part JOIN pg_inherits ON inhparent = part.oid JOIN pg_class c ON c.oid = inhrelid
   WHERE c.relispartition)
SELECT root::bigint, oid::bigint, relfilenode::bigint FROM part JOIN pg_class USING (oid)
"""


def _table_files(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, _TableFiles]:
    """Return the files of tables, as this connection's transaction sees them; none for a table that is gone."""
    found: dict[int, set[tuple[int, int]]] = {oid: set() for oid in oids}
    for root, oid, file in connection.execute(_FILES, (list(found),)):
        found[root].add((oid, file))
    return {oid: frozenset(files) for oid, files in found.items()}


# -- columns of tables -------------------------------------------------------------------------------------------------

_ColumnVersions = dict[int, int]
"""The version (``xmin``) of the catalog row of each column, by its number: a rename changes it, even if reverted."""

_VERSIONS = """
SELECT attrelid::bigint, attnum, xmin::text::bigint FROM pg_attribute
 WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
"""


def _column_versions(connection: psycopg.Connection[Any], oids: Iterable[int]) -> dict[int, _ColumnVersions]:
    """Return the versions of the columns of tables, as this connection's transaction sees them."""
    found: dict[int, _ColumnVersions] = {oid: {} for oid in oids}
    for oid, number, version in connection.execute(_VERSIONS, (list(found),)):
        found[oid][number] = version
    return found
