"""An embedded log: its location, which is a file in the home, and its reader, which may run in any process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from penstock.changelog.as_of import from_microseconds, history_expired, microseconds
from penstock.changelog.chunk_codec import StoredChunk, runs, unpack_run, widened
from penstock.changelog.interface import ChangeLog, ChangeLogReader, ChunkRef, Extent, Frontiers, Lease, LoggedTable
from penstock.changelog.sqlite.chunks import chunks_within, count_images, load_changes, load_payloads
from penstock.changelog.sqlite.file import (
    FILES,
    SCHEMA,
    SOURCE,
    connect,
    damaged,
    transaction,
    translate_errors,
)
from penstock.changelog.sqlite.frontier import Frontier, create_frontier, load_frontier, position_at, time_at
from penstock.changelog.sqlite.leases import load_leases, store_lease
from penstock.changelog.sqlite.tables import UNREAD, Roster, load_roster
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.private_file import create_folder

__all__ = ["SqliteLog", "SqliteLogReader"]


@dataclass(frozen=True)
class SqliteLog(ChangeLog):
    """The log in the file at `path`."""

    path: Path

    def create(self, start: Lsn) -> None:
        """Create the file, unless it exists."""
        create_folder(self.path.parent)
        with translate_errors(self.path), closing(connect(self.path, "rwc")) as db, transaction(db, self.path):
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                create_frontier(db, start, time.time_ns() // 1000)

    def remove(self) -> None:
        """Delete the file and the files that SQLite and the lock create next to it."""
        for suffix in FILES:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    def writer(self) -> SqliteLogWriter:
        """Open the log for writing."""
        return SqliteLogWriter(self.path)

    def reader(self) -> SqliteLogReader:
        """Open the log for reading."""
        return SqliteLogReader(self.path)

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)


# -- reader ------------------------------------------------------------------------------------------------------------

_POLL_SECONDS = 0.002


class SqliteLogReader(ChangeLogReader):
    """A reader of the log at `path`; create one per thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._roster = UNREAD
        self._tables: tuple[tuple[int, int], dict[TableName, LoggedTable]] | None = None
        """The last result of `tables`, with the edition and `valid` that it is for."""
        self._db = connect(path)  # not mode=ro, because a WAL reader writes the shared-memory index
        self._db.execute("PRAGMA query_only = ON")

    def frontiers(self) -> Frontiers:
        """Return the range that can be read now."""
        return self._frontier().to_frontiers()

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Poll for a later frontier: each poll takes about ten microseconds."""
        deadline = time.monotonic() + timeout
        while True:
            frontier = self._frontier()
            if frontier.durable > beyond or time.monotonic() >= deadline:
                return frontier.to_frontiers()
            time.sleep(_POLL_SECONDS)

    def position_at(self, moment: datetime) -> Lsn:
        """Find the first publication with a later commit time, and the transaction in it."""
        with self._read_transaction() as frontier:
            found = position_at(self._db, self._path, frontier, microseconds(moment))
            if found is None:
                raise history_expired(SOURCE, moment, Lsn(frontier.valid))
            return found

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables with their schemas and errors."""
        with self._read_transaction() as frontier:
            key = (frontier.edition, frontier.valid)
            if self._tables is None or self._tables[0] != key:
                self._tables = (key, self._current_roster(frontier).tables(frontier.valid))
            return dict(self._tables[1])

    def time_at(self, position: Lsn) -> datetime:
        """Search the publications for the last one that ends at or before the position."""
        with self._read_transaction() as frontier:
            return from_microseconds(time_at(self._db, self._path, frontier, position))

    def changes(self) -> dict[TableName, int]:
        """Return the totals, which are updated with each publication."""
        with self._read_transaction() as frontier:
            totals, relations = load_changes(self._db, self._path), self._current_roster(frontier).relations
            return {table: totals.get(versions[0].table_id, 0) for table, versions in relations.items()}

    def size(self) -> int:
        """Return the size of the file, and of SQLite's own log next to it."""
        sizes = []
        for suffix in FILES:
            with suppress(FileNotFoundError):
                sizes.append(self._path.with_name(self._path.name + suffix).stat().st_size)
        return sum(sizes)

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the chunks that overlap (after, upto]."""
        with self._read_transaction() as frontier:
            roster = self._current_roster(frontier)
            start = roster.history_start(table, frontier.valid)
            if after < start:
                raise history_expired(table, after, start)
            table_id = roster.table_id(table)
            if table_id is None:
                return Extent(table, after, upto)
            chunks = tuple(chunks_within(self._db, self._path, table_id, after, upto))
            return Extent(table, after, upto, chunks, roster.schemas(table) if chunks else {})

    def images_within(self, table: TableName, after: Lsn, upto: Lsn) -> int:
        """Let SQLite add them up: a status of many small transactions need not verify each of their chunks."""
        with self._read_transaction() as frontier:
            roster = self._current_roster(frontier)
            start, table_id = roster.history_start(table, frontier.valid), roster.table_id(table)
            if after < start:
                raise history_expired(table, after, start)
            return 0 if table_id is None else count_images(self._db, table_id, after, upto)

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield images, decoding small chunks together; verify the checksum of each chunk."""
        for run in runs(extent.chunks):
            batch = unpack_run(run, self._stored(run, extent), extent)
            if batch.num_rows:
                yield batch if columns is None else widened(batch, columns, extent.table)

    def set_lease(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Store the lease, unless the history that it needs was removed."""
        with closing(connect(self._path)) as db, transaction(db, self._path):
            valid = Lsn(load_frontier(db, self._path).valid)
            if at is not None and at < valid:
                raise history_expired(SOURCE, at, valid)
            store_lease(db, self._path, reader, at, seconds)

    def leases(self) -> list[Lease]:
        """Return the leases that have not expired."""
        with self._read_transaction() as frontier:
            return load_leases(self._db, self._path, frontier)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _frontier(self) -> Frontier:
        with translate_errors(self._path):
            return load_frontier(self._db, self._path)

    def _current_roster(self, frontier: Frontier) -> Roster:
        if frontier.edition != self._roster.edition:
            self._roster = load_roster(self._db, self._path, frontier)
        return self._roster

    def _stored(self, run: Sequence[ChunkRef], extent: Extent) -> list[StoredChunk]:
        """Fetch the bytes of some chunks; no read transaction is open after this returns."""
        with translate_errors(self._path):
            found = load_payloads(self._db, self._path, [chunk.location[0] for chunk in run])
        for chunk in run:
            (id_,) = chunk.location
            if id_ not in found:
                raise self._missing_data_error(id_, extent)
            found[id_].verify(chunk.checksum, f"chunk {id_} of {extent.table}")
        return [found[chunk.location[0]] for chunk in run]

    def _missing_data_error(self, id_: int, extent: Extent) -> Exception:
        """Return the error for missing bytes of a chunk: retention removed them, or the file is damaged."""
        with self._read_transaction() as frontier:
            valid = self._current_roster(frontier).history_start(extent.table, frontier.valid)
        if extent.after < valid:
            return history_expired(extent.table, extent.after, valid)
        return damaged(self._path, f"the data of chunk {id_} is missing")

    @contextmanager
    def _read_transaction(self) -> Iterator[Frontier]:
        """Run the body in one read transaction, so that all its queries see the same state of the file."""
        with translate_errors(self._path):
            self._db.execute("BEGIN")
            try:
                yield load_frontier(self._db, self._path)
            finally:
                if self._db.in_transaction:
                    self._db.execute("COMMIT")
