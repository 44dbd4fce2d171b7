"""The one writer of an embedded log."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.frames import StoredChunk, checksum
from penstock.changelog.interface import ChangeLogWriter, Chunk, Discarded, Frontiers, Prepared, StagedCommit
from penstock.changelog.sqlite.file import connect, frontiers_of, lock, microseconds, seal, writing
from penstock.changelog.sqlite.moments import position_at
from penstock.errors import DefiniteError, TableError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["SqliteLogWriter"]

_FREED_BYTES, _FREED_CHUNKS, _FREED_PAGES = 64 << 20, 5000, 4096
"""How much history one call of `retain` removes at most, and how many pages it gives back to the file system."""


class SqliteLogWriter(ChangeLogWriter):
    """The one writer of the log at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = lock(path)
        self._relations: dict[tuple[TableName, int], int] = {}
        self._unused: set[int] = set()
        """Versions that no published chunk had when they were defined."""
        try:
            self._db = connect(path)
            with self._transaction():
                self._delete_chunks("last_lsn IS NULL AND NOT prepared")
        except BaseException:
            os.close(self._lock)
            raise

    def define(self, schema: TableSchema, since: Lsn | None = None, generation: int = 0) -> int:
        """Return the version of this schema, adding it when it differs from the table's last."""
        with self._transaction():
            if generation > self._generation(schema.table):
                since = self.frontiers().durable
                self._restart(schema.table, since, generation)
            return self._version(schema, since)

    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction in progress."""
        with self._transaction():
            for chunk in chunks:
                self._insert(chunk, xid)

    def settle(self, xid: int, outcome: Prepared | Discarded) -> None:
        """Mark the staged parts of a transaction so that the next writer leaves them alone; or delete them."""
        with self._transaction():
            if isinstance(outcome, Discarded):
                self._delete_chunks("last_lsn IS NULL AND xid = ?", xid)
            else:
                self._abort(xid, outcome.aborted)
                self._db.execute("UPDATE chunk SET prepared=1 WHERE xid=? AND last_lsn IS NULL", (xid,))

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
        commits = staged or {}
        with self._transaction():
            for xid, commit in commits.items():
                self._commit_staged(xid, commit)
            for chunk in chunks:
                self._insert(chunk, None)
            for error in errors:
                self._fail(error)
            self._advance(durable, committed_at)
            self._date(durable, [committed_at, *(c.committed_at for c in commits.values()), *map(_newest, chunks)])

    def retain(self, since: datetime) -> Frontiers:
        """Move `valid` first; then remove a bounded part of what lies before it."""
        with self._transaction():
            self._db.execute("DELETE FROM pin WHERE expires <= ?", (time.time_ns() // 1000,))
            self._move_valid(position_at(self._db, microseconds(since)))
            freed = self._remove_old_chunks()
        if freed or self._db.execute("PRAGMA freelist_count").fetchone()[0]:
            with self._transaction():  # a page is moved by writing it once more: not in the same breath
                self._db.execute(f"PRAGMA incremental_vacuum({_FREED_PAGES})").fetchall()
        return self.frontiers()

    def frontiers(self) -> Frontiers:
        """Return where the log stands."""
        return frontiers_of(self._db)

    def close(self) -> None:
        """Close the file and let go of the lock."""
        self._db.close()
        os.close(self._lock)

    # -- versions ---------------------------------------------------------------------------------------------------

    def _generation(self, table: TableName) -> int:
        query = "SELECT generation FROM restart WHERE schema_name=? AND table_name=?"
        found = self._db.execute(query, (table.schema, table.name)).fetchone()
        return int(found[0]) if found else 0

    def _restart(self, table: TableName, since: Lsn, generation: int) -> None:
        name = (table.schema, table.name)
        self._db.execute("DELETE FROM failure WHERE schema_name=? AND table_name=?", name)
        self._db.execute("INSERT OR REPLACE INTO restart VALUES (?, ?, ?, ?)", (*name, since, generation))

    def _version(self, schema: TableSchema, since: Lsn | None) -> int:
        name = schema.table
        query = (
            "SELECT id, version, columns, since FROM relation WHERE schema_name=? AND table_name=?"
            " ORDER BY version DESC"
        )
        last = self._db.execute(query, (name.schema, name.name)).fetchone()
        if last is not None and TableSchema.from_bytes(last[2]) == schema:
            relation, version, since = last[0], int(last[1]), last[3]
        else:
            version = last[1] + 1 if last else 1
            row = (name.schema, name.name, version, schema.to_bytes(), since)
            insert = "INSERT INTO relation (schema_name, table_name, version, columns, since) VALUES (?, ?, ?, ?, ?)"
            relation = int(self._db.execute(insert, row).lastrowid or 0)
        self._relations[name, version] = relation
        if since is None:
            self._unused.add(relation)
        return version

    # -- staged parts -----------------------------------------------------------------------------------------------

    def _commit_staged(self, xid: int, commit: StagedCommit) -> None:
        self._abort(xid, commit.aborted)
        self._db.execute(
            "UPDATE relation SET since=? WHERE since IS NULL"
            " AND id IN (SELECT relation FROM chunk WHERE xid=? AND last_lsn IS NULL)",
            (commit.lsn, xid),
        )
        lsn, at = commit.lsn, commit.committed_at
        described = (
            "SELECT id, relation, aborted, rows, size, kinds, unchanged, checksum FROM chunk"
            " WHERE xid=? AND last_lsn IS NULL"
        )
        sealed = [
            (lsn, lsn, at, seal(relation, lsn, lsn, xid, at, *rest), chunk)
            for chunk, relation, *rest in self._db.execute(described, (xid,)).fetchall()
        ]
        update = "UPDATE chunk SET first_lsn=?, last_lsn=?, committed_at=?, seal=? WHERE id=?"
        self._db.executemany(update, sealed)

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

    # -- chunks -----------------------------------------------------------------------------------------------------

    def _insert(self, chunk: Chunk, xid: int | None) -> None:
        stored = StoredChunk.pack(chunk)
        relation = self._relations[chunk.table, chunk.version]
        lsns = chunk.transactions.column(0)
        first, last = (None, None) if xid is not None else (lsns[0].as_py(), lsns[-1].as_py())
        rows, size = chunk.images.num_rows, memoryview(stored.images).nbytes
        told = (rows, size, chunk.kinds, int(chunk.unchanged), checksum(stored.transactions, stored.images))
        sealed = None if xid is not None else seal(relation, first, last, None, None, None, *told)
        cursor = self._db.execute(
            "INSERT INTO chunk (relation, first_lsn, last_lsn, xid, rows, size, kinds, unchanged, checksum, seal)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (relation, first, last, xid, *told, sealed),
        )
        self._db.execute(
            "INSERT INTO payload VALUES (?, ?, ?)",
            (cursor.lastrowid, memoryview(stored.transactions), memoryview(stored.images)),
        )
        if relation in self._unused and first is not None:
            self._db.execute("UPDATE relation SET since=? WHERE id=? AND since IS NULL", (first, relation))
            self._unused.discard(relation)

    def _delete_chunks(self, which: str, *parameters: int) -> None:
        """Delete chunks with their data."""
        self._db.execute(f"DELETE FROM payload WHERE chunk IN (SELECT id FROM chunk WHERE {which})", parameters)
        self._db.execute(f"DELETE FROM chunk WHERE {which}", parameters)

    # -- frontiers --------------------------------------------------------------------------------------------------

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

    def _date(self, durable: Lsn, times: Sequence[int | None]) -> None:
        """Note the newest commit time up to here, if there is one in this publication."""
        newest = max((at for at in times if at is not None), default=None)
        if newest is not None:
            self._db.execute("UPDATE frontier SET newest_at = max(newest_at, ?)", (newest,))
            self._db.execute("INSERT OR REPLACE INTO moment SELECT ?, newest_at FROM frontier", (durable,))

    def _fail(self, error: TableError) -> None:
        name = TableName.parse(error.table)
        row = (name.schema, name.name, error.lsn, error.message, error.remedy)
        self._db.execute("INSERT OR IGNORE INTO failure VALUES (?, ?, ?, ?, ?)", row)

    # -- retention --------------------------------------------------------------------------------------------------

    def _move_valid(self, wanted: Lsn | None) -> None:
        """Move `valid` to a position, or as far as pins let it; the time goes with it."""
        if wanted is None:
            return
        held = self._db.execute("SELECT min(at) FROM pin").fetchone()[0]
        floor = wanted if held is None else min(wanted, held)
        self._db.execute(
            "UPDATE frontier SET valid=?1, valid_at=coalesce("
            " (SELECT max(newest_at) FROM moment WHERE lsn <= ?1), valid_at) WHERE valid < ?1",
            (floor,),
        )

    def _remove_old_chunks(self) -> int:
        valid = self.frontiers().valid
        query = "SELECT id, size FROM chunk WHERE last_lsn <= ? ORDER BY last_lsn, id LIMIT ?"
        ids, size = [], 0
        for chunk, held in self._db.execute(query, (valid, _FREED_CHUNKS)).fetchall():
            ids.append((chunk,))
            size += held
            if size >= _FREED_BYTES:
                break
        self._db.executemany("DELETE FROM payload WHERE chunk = ?", ids)
        self._db.executemany("DELETE FROM chunk WHERE id = ?", ids)
        self._db.execute(
            "DELETE FROM moment WHERE lsn IN (SELECT lsn FROM moment WHERE lsn <= ? LIMIT ?)", (valid, _FREED_CHUNKS)
        )
        return len(ids)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with writing(self._db, self._path):
            yield


def _newest(chunk: Chunk) -> int | None:
    at: int | None = pc.max(chunk.transactions.column(2).cast(pa.int64())).as_py()
    return at
