"""The embedded change log: one SQLite file per source.

WAL mode with synchronous=FULL: a commit is on disk when it returns, readers in other processes never wait for the
writer, and a torn write leaves the last commit. Publishing is one SQLite transaction::

    chunk    one row per chunk: table version, first and last LSN (null while staged), what it holds, checksum;
             of a staged one also xid and commit time, and which of its subtransactions were rolled back
    payload  its bytes, apart, so that giving a staged chunk its LSN rewrites a few bytes and not the data
    frontier one row: valid, durable
    failure  definite errors of tables
    restart  where the history of a table begins that was captured anew

A reader sees chunks with ``last_lsn <= durable`` only; both change in the same SQLite transaction.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.changelog.frames import StoredChunk, checksum, widened
from penstock.changelog.interface import (
    ChangeLogReader,
    ChangeLogWriter,
    Chunk,
    Extent,
    Frontiers,
    LoggedTable,
    StagedCommit,
)
from penstock.errors import DefiniteError, LogCorrupt, TableError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["SqliteLogReader", "SqliteLogWriter", "create_log"]

_FORMAT = 2
_SCHEMA = f"""
CREATE TABLE frontier (
    one INTEGER PRIMARY KEY CHECK (one = 1), valid INTEGER NOT NULL, durable INTEGER NOT NULL,
    committed_at INTEGER, published_at INTEGER);
CREATE TABLE relation (
    id INTEGER PRIMARY KEY, schema_name TEXT NOT NULL, table_name TEXT NOT NULL, version INTEGER NOT NULL,
    columns BLOB NOT NULL, since INTEGER, UNIQUE (schema_name, table_name, version));
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT, relation INTEGER NOT NULL REFERENCES relation, first_lsn INTEGER,
    last_lsn INTEGER, xid INTEGER, committed_at INTEGER, aborted BLOB, prepared INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL, size INTEGER NOT NULL, kinds INTEGER NOT NULL, unchanged INTEGER NOT NULL,
    checksum INTEGER NOT NULL);
CREATE INDEX chunk_by_lsn ON chunk (relation, last_lsn);
CREATE INDEX chunk_staged ON chunk (xid) WHERE last_lsn IS NULL;
CREATE TABLE payload (chunk INTEGER PRIMARY KEY, transactions BLOB NOT NULL, images BLOB NOT NULL);
CREATE TABLE failure (
    schema_name TEXT NOT NULL, table_name TEXT NOT NULL, lsn INTEGER NOT NULL, message TEXT NOT NULL,
    remedy TEXT NOT NULL, PRIMARY KEY (schema_name, table_name));
CREATE TABLE restart (
    schema_name TEXT NOT NULL, table_name TEXT NOT NULL, lsn INTEGER NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (schema_name, table_name));
PRAGMA user_version = {_FORMAT};
"""
_FULL_DISK = "Free some space and start again; nothing is lost: Postgres keeps what was not yet confirmed."
_RESTORE = "Restore the home from a backup, or drop the source and capture it afresh."
_POLL_SECONDS = 0.002


def create_log(path: Path, start: Lsn) -> None:
    """Make an empty log whose history begins after `start`; one that is there already is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _disk(path), _connected(path) as db:
        db.execute("BEGIN IMMEDIATE")
        if db.execute("PRAGMA user_version").fetchone()[0] == 0:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute("INSERT INTO frontier VALUES (1, ?, ?, NULL, NULL)", (start, start))
        db.execute("COMMIT")


class SqliteLogWriter(ChangeLogWriter):
    """The one writer of the log at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = _lock(path)
        self._relations: dict[tuple[TableName, int], int] = {}
        self._unused: set[int] = set()
        """Versions that no published chunk had when they were defined."""
        try:
            self._db = _connect(path, "rw")
            with self._transaction():
                self._delete_chunks("last_lsn IS NULL AND NOT prepared")
        except BaseException:
            os.close(self._lock)
            raise

    def define(self, schema: TableSchema, since: Lsn | None = None) -> int:
        """Return the version of this schema, adding it when it differs from the table's last."""
        name, columns = schema.table, schema.to_bytes()
        query = (
            "SELECT id, version, columns, since FROM relation WHERE schema_name=? AND table_name=?"
            " ORDER BY version DESC"
        )
        last = self._db.execute(query, (name.schema, name.name)).fetchone()
        if last is not None and TableSchema.from_bytes(last[2]) == schema:
            self._relations[name, last[1]] = last[0]
            if last[3] is None:
                self._unused.add(last[0])
            return int(last[1])
        version = last[1] + 1 if last else 1
        with self._transaction():
            row = (name.schema, name.name, version, columns, since)
            cursor = self._db.execute(
                "INSERT INTO relation (schema_name, table_name, version, columns, since) VALUES (?, ?, ?, ?, ?)", row
            )
        self._relations[name, version] = int(cursor.lastrowid or 0)
        if since is None:
            self._unused.add(self._relations[name, version])
        return int(version)

    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction in progress."""
        with self._transaction():
            for chunk in chunks:
                self._insert(chunk, xid)

    def discard(self, xid: int) -> None:
        """Delete the staged parts of a transaction."""
        with self._transaction():
            self._delete_chunks("last_lsn IS NULL AND xid = ?", xid)

    def prepare(self, xid: int, aborted: Collection[int] = ()) -> None:
        """Mark the staged parts of a transaction so that the next writer leaves them alone."""
        with self._transaction():
            self._abort(xid, aborted)
            self._db.execute("UPDATE chunk SET prepared=1 WHERE xid=? AND last_lsn IS NULL", (xid,))

    def restart(self, schema: TableSchema, generation: int) -> int:
        """Forget a table's error, and all of its history."""
        name = (schema.table.schema, schema.table.name)
        version = self.define(schema, self.frontiers().durable)
        with self._transaction():
            self._db.execute("DELETE FROM failure WHERE schema_name=? AND table_name=?", name)
            row = (*name, generation)
            self._db.execute("INSERT OR REPLACE INTO restart SELECT ?, ?, durable, ? FROM frontier", row)
        return version

    def publish(
        self,
        chunks: Sequence[Chunk],
        durable: Lsn,
        *,
        committed_at: int | None = None,
        staged: Mapping[int, StagedCommit] | None = None,
        errors: Sequence[TableError] = (),
    ) -> None:
        """Commit everything up to `durable` in one SQLite transaction."""
        with self._transaction():
            for xid, commit in (staged or {}).items():
                self._commit_staged(xid, commit)
            for chunk in chunks:
                self._insert(chunk, None)
            for error in errors:
                self._fail(error)
            self._advance(durable, committed_at)

    def frontiers(self) -> Frontiers:
        """Return where the log stands."""
        return _frontiers(self._db)

    def close(self) -> None:
        """Close the file and let go of the lock."""
        self._db.close()
        os.close(self._lock)

    def _commit_staged(self, xid: int, commit: StagedCommit) -> None:
        self._abort(xid, commit.aborted)
        self._db.execute(
            "UPDATE relation SET since=? WHERE since IS NULL"
            " AND id IN (SELECT relation FROM chunk WHERE xid=? AND last_lsn IS NULL)",
            (commit.lsn, xid),
        )
        update = "UPDATE chunk SET first_lsn=?1, last_lsn=?1, committed_at=?2 WHERE xid=?3 AND last_lsn IS NULL"
        self._db.execute(update, (commit.lsn, commit.committed_at, xid))

    def _abort(self, xid: int, aborted: Collection[int]) -> None:
        """Mark what subtransactions that were rolled back wrote into the staged parts of a transaction."""
        if not aborted:
            return
        staged = (
            "SELECT c.id, columns, transactions, images FROM chunk c JOIN payload ON chunk = c.id"
            " JOIN relation r ON r.id = relation WHERE xid=? AND last_lsn IS NULL AND c.id > ? ORDER BY c.id LIMIT 1"
        )
        last = 0
        while found := self._db.execute(staged, (xid, last)).fetchone():
            last, columns, *payload = found
            lost, rows = StoredChunk(*payload).without(TableSchema.from_bytes(columns).columns, aborted)
            if rows == 0:
                self._delete_chunks("id = ?", last)
            elif len(lost):
                self._db.execute("UPDATE chunk SET aborted=?, rows=? WHERE id=?", (lost.tobytes(), rows, last))

    def _insert(self, chunk: Chunk, xid: int | None) -> None:
        stored = StoredChunk.pack(chunk)
        lsns = chunk.transactions.column(0)
        bounds = (None, None) if xid is not None else (lsns[0].as_py(), lsns[-1].as_py())
        row = (
            self._relations[chunk.table, chunk.version],
            *bounds,
            xid,
            chunk.images.num_rows,
            memoryview(stored.images).nbytes,
            chunk.kinds,
            chunk.unchanged,
            checksum(stored.transactions, stored.images),
        )
        cursor = self._db.execute(
            "INSERT INTO chunk (relation, first_lsn, last_lsn, xid, rows, size, kinds, unchanged, checksum)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        self._db.execute(
            "INSERT INTO payload VALUES (?, ?, ?)",
            (cursor.lastrowid, memoryview(stored.transactions), memoryview(stored.images)),
        )
        if row[0] in self._unused and bounds[0] is not None:
            self._db.execute("UPDATE relation SET since=? WHERE id=? AND since IS NULL", (bounds[0], row[0]))
            self._unused.discard(row[0])

    def _advance(self, durable: Lsn, committed_at: int | None) -> None:
        update = "UPDATE frontier SET durable=?1 WHERE durable <= ?1"
        parameters: tuple[int, ...] = (durable,)
        if committed_at is not None:
            update = "UPDATE frontier SET durable=?1, committed_at=?2, published_at=?3 WHERE durable <= ?1"
            parameters = (durable, committed_at, time.time_ns() // 1000)
        if self._db.execute(update, parameters).rowcount != 1:
            message = f"the change log was asked to move its frontier back to {durable}"
            raise DefiniteError(
                message,
                "This is a defect in Penstock: please report it. Nothing was written.",
            )

    def _fail(self, error: TableError) -> None:
        name = TableName.parse(error.table)
        row = (name.schema, name.name, error.lsn, error.message, error.remedy)
        self._db.execute("INSERT OR IGNORE INTO failure VALUES (?, ?, ?, ?, ?)", row)

    def _delete_chunks(self, which: str, *parameters: int) -> None:
        """Delete chunks with their data."""
        self._db.execute(f"DELETE FROM payload WHERE chunk IN (SELECT id FROM chunk WHERE {which})", parameters)
        self._db.execute(f"DELETE FROM chunk WHERE {which}", parameters)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _disk(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


class SqliteLogReader(ChangeLogReader):
    """A reader of the log at `path`; make one per thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db = _connect(path, "rw")  # a WAL reader writes the shared-memory index, so it is not opened mode=ro
        self._db.execute("PRAGMA query_only = ON")

    def frontiers(self) -> Frontiers:
        """Return what can be read now."""
        with _disk(self._path):
            return _frontiers(self._db)

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Poll for a later frontier: a look costs some ten microseconds."""
        deadline = time.monotonic() + timeout
        while True:
            durable = self._rows("SELECT durable FROM frontier")[0][0]
            if durable > beyond or time.monotonic() >= deadline:
                return self.frontiers()
            time.sleep(_POLL_SECONDS)

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables with their schemas and errors."""
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

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the chunks that touch (after, upto]."""
        rows = self._chunks("c.id, c.rows, c.size, c.kinds, c.unchanged, c.first_lsn, c.last_lsn", table, after, upto)
        if not rows:
            return Extent()
        kinds = 0
        for row in rows:
            kinds |= row[3]
        return Extent(
            chunks=tuple(row[0] for row in rows),
            rows=sum(row[1] for row in rows),
            size=sum(row[2] for row in rows),
            kinds=kinds,
            unchanged=any(row[4] for row in rows),
            bounds=(Lsn(rows[0][5]), Lsn(rows[-1][6])),
        )

    def read(
        self,
        table: TableName,
        after: Lsn,
        upto: Lsn,
        chunks: Sequence[int] | None = None,
        columns: pa.Schema | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield images chunk by chunk, each checked against its checksum."""
        schemas = dict(self._rows("SELECT id, columns FROM relation"))
        wanted = None if chunks is None else set(chunks)
        described = "c.id, relation, checksum, last_lsn, xid, committed_at, aborted"
        for chunk, relation, expected, *staged in self._chunks(described, table, after, upto):
            if wanted is not None and chunk not in wanted:
                continue
            stored = self._stored(chunk)
            stored.verify(expected, f"chunk {chunk} of {table}")
            own = TableSchema.from_bytes(schemas[relation]).columns
            batch = stored.unpack_staged(own, *staged) if staged[1] else stored.unpack(own, after, upto)
            if batch.num_rows:
                yield batch if columns is None else widened(batch, columns, table)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _chunks(self, columns: str, table: TableName, after: Lsn, upto: Lsn) -> list[tuple[Any, ...]]:
        query = (
            f"SELECT {columns} FROM chunk c JOIN relation r ON r.id = c.relation"
            " WHERE r.schema_name = ? AND r.table_name = ? AND c.last_lsn > ? AND c.first_lsn <= ?"
            " AND c.last_lsn <= (SELECT durable FROM frontier) ORDER BY c.last_lsn, c.id"
        )
        return self._rows(query, (table.schema, table.name, after, upto))

    def _stored(self, chunk: int) -> StoredChunk:
        rows = self._rows("SELECT transactions, images FROM payload WHERE chunk = ?", (chunk,))
        if not rows:
            message = f"the change log is damaged: the data of chunk {chunk} is missing"
            raise LogCorrupt(message, _RESTORE)
        return StoredChunk(*rows[0])

    def _rows(self, query: str, parameters: tuple[int | str, ...] = ()) -> list[tuple[Any, ...]]:
        with _disk(self._path):
            return self._db.execute(query, parameters).fetchall()


def _frontiers(db: sqlite3.Connection) -> Frontiers:
    row = db.execute("SELECT valid, durable, committed_at, published_at FROM frontier").fetchone()
    return Frontiers(Lsn(row[0]), Lsn(row[1]), _moment(row[2]), _moment(row[3]))


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1e6, UTC)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    """Open a log; only mode ``rwc`` makes one, which is not a log before it has a format."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    try:
        db.execute("PRAGMA page_size = 16384")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 4000")
        _check_format(db, path, empty=mode == "rwc")
    except sqlite3.DatabaseError as error:
        db.close()
        raise _unusable(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


def _unusable(path: Path, error: sqlite3.Error) -> DefiniteError:
    return DefiniteError(
        f"the change log {path} cannot be opened: {error}", "Check that the home is complete and writable."
    )


def _check_format(db: sqlite3.Connection, path: Path, *, empty: bool) -> None:
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found > _FORMAT:
        message = f"the change log {path} has format {found}; this Penstock knows formats up to {_FORMAT}"
        raise DefiniteError(
            message,
            "Use the version of Penstock that wrote it, or a newer one.",
        )
    if found == 0 and not empty:
        message = f"{path} is not a change log"
        raise DefiniteError(message, "Restore the home from a backup, or use another one.")


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    db = _connect(path, "rwc")
    try:
        yield db
    finally:
        db.close()


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn SQLite's word for a full or failing disk, or for a damaged file, into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "I/O" in str(error) or "disk" in str(error):
            message = f"the disk under {path.parent} is full or failing: {error}"
            raise DefiniteError(message, _FULL_DISK) from error
        raise
    except sqlite3.DatabaseError as error:
        if "malformed" in str(error) or "not a database" in str(error):
            message = f"the change log {path} is damaged: {error}"
            raise LogCorrupt(message, _RESTORE) from error
        raise


def _lock(path: Path) -> int:
    handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(handle, 32, 0).decode() or "unknown"
        os.close(handle)
        message = f"the change log {path} already has a writer (pid {owner})"
        raise DefiniteError(message, "Stop that process, or use another home.") from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle
