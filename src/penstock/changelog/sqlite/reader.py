"""A reader of an embedded log, in any process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from penstock.changelog.as_of import history_gone, microseconds
from penstock.changelog.frames import StoredChunk, runs, unpack_run, widened
from penstock.changelog.interface import ChangeLogReader, ChunkRef, Extent, Frontiers, LoggedTable, Pin
from penstock.changelog.sqlite.chunks import chunks_within, load_payloads
from penstock.changelog.sqlite.file import SOURCE, connect, damaged, disk, writing
from penstock.changelog.sqlite.frontier import Frontier, load_frontier, position_at
from penstock.changelog.sqlite.leases import load_pins, store_pin
from penstock.changelog.sqlite.tables import UNREAD, Roster, load_roster
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["SqliteLogReader"]

_POLL_SECONDS = 0.002


class SqliteLogReader(ChangeLogReader):
    """A reader of the log at `path`; make one per thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._roster = UNREAD
        self._tables: tuple[tuple[int, int], dict[TableName, LoggedTable]] | None = None
        """What was last said of tables, and at which edition and start of the log."""
        self._db = connect(path)  # a WAL reader writes the shared-memory index, so it is not opened mode=ro
        self._db.execute("PRAGMA query_only = ON")

    def frontiers(self) -> Frontiers:
        """Return what can be read now."""
        return self._frontier().told()

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Poll for a later frontier: a look costs some ten microseconds."""
        deadline = time.monotonic() + timeout
        while True:
            frontier = self._frontier()
            if frontier.durable > beyond or time.monotonic() >= deadline:
                return frontier.told()
            time.sleep(_POLL_SECONDS)

    def position_at(self, moment: datetime) -> Lsn:
        """Find the publication in which a later commit time first came up, and in it the transaction."""
        with self._at_one_moment() as frontier:
            found = position_at(self._db, self._path, frontier, microseconds(moment))
            if found is None:
                raise history_gone(SOURCE, moment, Lsn(frontier.valid))
            return found

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables with their schemas and errors."""
        with self._at_one_moment() as frontier:
            asked = (frontier.edition, frontier.valid)
            if self._tables is None or self._tables[0] != asked:
                self._tables = (asked, self._known(frontier).tables(frontier.valid))
            return dict(self._tables[1])

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the chunks that touch (after, upto]."""
        with self._at_one_moment() as frontier:
            roster = self._known(frontier)
            begun = roster.begins(table, frontier.valid)
            if after < begun:
                raise history_gone(table, after, begun)
            table_id = roster.table_id(table)
            if table_id is None:
                return Extent(table, after, upto)
            chunks = tuple(chunks_within(self._db, self._path, table_id, after, upto))
            return Extent(table, after, upto, chunks, roster.schemas(table) if chunks else {})

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield images, small chunks together, each chunk checked against its checksum."""
        for run in runs(extent.chunks):
            batch = unpack_run(run, self._stored(run, extent), extent)
            if batch.num_rows:
                yield batch if columns is None else widened(batch, columns, extent.table)

    def pin(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Write the pin down, unless what it asks for is gone."""
        with closing(connect(self._path)) as db, writing(db, self._path):
            valid = Lsn(load_frontier(db, self._path).valid)
            if at is not None and at < valid:
                raise history_gone(SOURCE, at, valid)
            store_pin(db, self._path, reader, at, seconds)

    def pins(self) -> list[Pin]:
        """Return the pins that have not expired."""
        with self._at_one_moment() as frontier:
            return load_pins(self._db, self._path, frontier)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _frontier(self) -> Frontier:
        with disk(self._path):
            return load_frontier(self._db, self._path)

    def _known(self, frontier: Frontier) -> Roster:
        if frontier.edition != self._roster.edition:
            self._roster = load_roster(self._db, self._path, frontier)
        return self._roster

    def _stored(self, run: Sequence[ChunkRef], extent: Extent) -> list[StoredChunk]:
        """Fetch the bytes of some chunks; no read transaction is open when they are returned."""
        with disk(self._path):
            found = load_payloads(self._db, self._path, [chunk.place[0] for chunk in run])
        for chunk in run:
            (id_,) = chunk.place
            if id_ not in found:
                raise self._missing(id_, extent)
            found[id_].verify(chunk.checksum, f"chunk {id_} of {extent.table}")
        return [found[chunk.place[0]] for chunk in run]

    def _missing(self, id_: int, extent: Extent) -> Exception:
        """Say why the bytes of a chunk are not there: retention has been faster, or they are lost."""
        with self._at_one_moment() as frontier:
            valid = self._known(frontier).begins(extent.table, frontier.valid)
        if extent.after < valid:
            return history_gone(extent.table, extent.after, valid)
        return damaged(self._path, f"the data of chunk {id_} is missing")

    @contextmanager
    def _at_one_moment(self) -> Iterator[Frontier]:
        """Let all questions that follow see the same state of the file."""
        with disk(self._path):
            self._db.execute("BEGIN")
            try:
                yield load_frontier(self._db, self._path)
            finally:
                if self._db.in_transaction:
                    self._db.execute("COMMIT")
