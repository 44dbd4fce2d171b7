"""A reader of an embedded log, in any process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.changelog.frames import StoredChunk, widened
from penstock.changelog.interface import ChangeLogReader, ChunkRef, Extent, Frontiers, LoggedTable, Pin
from penstock.changelog.sqlite.file import (
    RESTORE,
    SOURCE,
    connect,
    disk,
    frontiers_of,
    history_gone,
    microseconds,
    seal,
    writing,
)
from penstock.changelog.sqlite.moments import position_at
from penstock.errors import LogCorrupt, TableError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["SqliteLogReader"]

_POLL_SECONDS = 0.002
_CHUNKS = """
SELECT c.id, r.version, c.first_lsn, c.last_lsn, c.rows, c.size, c.kinds, c.unchanged, c.checksum,
       c.xid, c.committed_at, c.aborted, c.seal, c.relation
FROM chunk c JOIN relation r ON r.id = c.relation
WHERE r.schema_name = ? AND r.table_name = ? AND c.last_lsn > ? AND c.first_lsn <= ?
  AND c.last_lsn <= (SELECT durable FROM frontier) ORDER BY c.last_lsn, c.id
"""


class SqliteLogReader(ChangeLogReader):
    """A reader of the log at `path`; make one per thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = connect(path)  # a WAL reader writes the shared-memory index, so it is not opened mode=ro
        self._db.execute("PRAGMA query_only = ON")

    def frontiers(self) -> Frontiers:
        """Return what can be read now."""
        with disk(self._path):
            return frontiers_of(self._db)

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Poll for a later frontier: a look costs some ten microseconds."""
        deadline = time.monotonic() + timeout
        while True:
            durable = self._rows("SELECT durable FROM frontier")[0][0]
            if durable > beyond or time.monotonic() >= deadline:
                return self.frontiers()
            time.sleep(_POLL_SECONDS)

    def position_at(self, moment: datetime) -> Lsn:
        """Find the publication in which a later commit time first came up, and in it the transaction."""
        with self._at_one_moment():
            found = position_at(self._db, microseconds(moment))
            if found is None:
                raise history_gone(SOURCE, moment, self.frontiers().valid)
            return found

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables with their schemas and errors."""
        with self._at_one_moment():
            return self._tables()

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the chunks that touch (after, upto]."""
        with self._at_one_moment():
            begun = self._valid(table)
            if after < begun:
                raise history_gone(table, after, begun)
            chunks = tuple(self._ref(row, table) for row in self._rows(_CHUNKS, (*_parts(table), after, upto)))
            return Extent(table, after, upto, chunks, self._schemas(table) if chunks else {})

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield images chunk by chunk, each checked against its checksum."""
        for chunk in extent.chunks:
            stored = self._stored(chunk, extent)
            stored.verify(chunk.checksum, f"chunk {chunk.place[0]} of {extent.table}")
            batch = stored.within(chunk, extent)
            if batch.num_rows:
                yield batch if columns is None else widened(batch, columns, extent.table)

    def pin(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Write the pin down, unless what it asks for is gone."""
        expires = None if seconds is None else time.time_ns() // 1000 + round(seconds * 1e6)
        with closing(connect(self._path)) as db, writing(db, self._path):
            valid = frontiers_of(db).valid
            if at is None:
                db.execute("DELETE FROM pin WHERE reader = ?", (reader,))
            elif at < valid:
                raise history_gone(SOURCE, at, valid)
            else:
                db.execute("INSERT OR REPLACE INTO pin VALUES (?, ?, ?)", (reader, at, expires))

    def pins(self) -> list[Pin]:
        """Return the pins that have not expired."""
        query = "SELECT reader, at, expires FROM pin WHERE expires IS NULL OR expires > ? ORDER BY reader"
        found = self._rows(query, (time.time_ns() // 1000,))
        return [Pin(r, Lsn(at), None if e is None else datetime.fromtimestamp(e / 1e6, UTC)) for r, at, e in found]

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _tables(self) -> dict[TableName, LoggedTable]:
        schemas: dict[TableName, list[TableSchema]] = {}
        since: dict[TableName, list[Lsn | None]] = {}
        for columns, lsn in self._rows("SELECT columns, since FROM relation ORDER BY version"):
            schema = TableSchema.from_bytes(columns)
            schemas.setdefault(schema.table, []).append(schema)
            since.setdefault(schema.table, []).append(None if lsn is None else Lsn(lsn))
        valid = self.frontiers().valid
        restarts = {TableName(r[0], r[1]): (Lsn(r[2]), int(r[3])) for r in self._rows("SELECT * FROM restart")}
        errors = {
            TableName(row[0], row[1]): TableError(f"{row[0]}.{row[1]}", row[2], row[3], row[4])
            for row in self._rows("SELECT schema_name, table_name, lsn, message, remedy FROM failure")
        }
        found = {}
        for name in (name for name in schemas if any(since[name])):
            begun, generation = restarts.get(name, (valid, 0))
            found[name] = LoggedTable(
                *(tuple(schemas[name]), tuple(since[name]), max(valid, begun), errors.get(name), generation)
            )
        return found

    def _valid(self, table: TableName) -> Lsn:
        query = (
            "SELECT max(valid, coalesce((SELECT lsn FROM restart WHERE schema_name=? AND table_name=?), 0))"
            " FROM frontier"
        )
        return Lsn(self._rows(query, _parts(table))[0][0])

    def _schemas(self, table: TableName) -> dict[int, TableSchema]:
        query = "SELECT version, columns FROM relation WHERE schema_name=? AND table_name=?"
        return {version: TableSchema.from_bytes(columns) for version, columns in self._rows(query, _parts(table))}

    def _ref(self, row: tuple[Any, ...], table: TableName) -> ChunkRef:
        chunk, version, first, last, *told, xid, committed_at, aborted, sealed, relation = row
        if seal(relation, first, last, xid, committed_at, aborted, *told) != sealed:
            message = f"the change log {self._path} is damaged: what it says of chunk {chunk} of {table} is not right"
            raise LogCorrupt(message, RESTORE)
        rows, size, kinds, unchanged, checksum = told
        staged = None if xid is None else (xid, committed_at, aborted)
        bounds = (Lsn(first), Lsn(last))
        return ChunkRef((chunk,), version, *bounds, rows, size, kinds, bool(unchanged), checksum, staged)

    def _stored(self, chunk: ChunkRef, extent: Extent) -> StoredChunk:
        rows = self._rows("SELECT transactions, images FROM payload WHERE chunk = ?", chunk.place)
        if rows:
            return StoredChunk(*rows[0])
        valid = self._valid(extent.table)
        if extent.after < valid:
            raise history_gone(extent.table, extent.after, valid)
        message = f"the change log {self._path} is damaged: the data of chunk {chunk.place[0]} is missing"
        raise LogCorrupt(message, RESTORE)

    def _rows(self, query: str, parameters: tuple[int | str, ...] = ()) -> list[tuple[Any, ...]]:
        with disk(self._path):
            return self._db.execute(query, parameters).fetchall()

    @contextmanager
    def _at_one_moment(self) -> Iterator[None]:
        """Let all questions that follow see the same state of the file."""
        with disk(self._path):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("COMMIT")


def _parts(table: TableName) -> tuple[str, str]:
    return table.schema, table.name
