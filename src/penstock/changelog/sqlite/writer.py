"""The single writer of an embedded log, and the removal of history.

History is removed in short steps that do not block capture: `valid` moves first, then the chunks before it are deleted.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path

from penstock.changelog.as_of import microseconds
from penstock.changelog.chunk_codec import StoredChunk, checksum
from penstock.changelog.interface import ChangeLogWriter, Chunk, Commit, Discarded, Frontiers, Prepared, StagedCommit
from penstock.changelog.sqlite.chunks import (
    ChunkRow,
    StagedParts,
    create_chain,
    insert_chunk,
    link_chunks,
    table_ids,
    update_chunk,
)
from penstock.changelog.sqlite.file import connect, lock, transaction, translate_errors, unlock
from penstock.changelog.sqlite.frontier import (
    Commits,
    commits_of,
    load_frontier,
    newest_upto,
    position_at,
    remove_moments,
    store_clock,
    store_frontier,
    store_moment,
    tallied,
)
from penstock.changelog.sqlite.leases import load_leases, remove_expired_leases
from penstock.changelog.sqlite.tables import (
    UNREAD,
    Relation,
    load_roster,
    store_failure,
    store_relation,
    store_restart,
)
from penstock.errors import DefiniteError, TableError
from penstock.model import TableSchema
from penstock.positions import Lsn

__all__ = ["SqliteLogWriter", "advance_valid", "free_pages", "remove_old_chunks"]

_RETAIN_SECONDS = 0.1
"""`retain` starts no further step after this time, because publishing waits for it."""


class SqliteLogWriter(ChangeLogWriter):
    """The single writer of the log at `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = lock(path)
        self._has_stored_clock = False
        with ExitStack() as undo:
            undo.callback(unlock, self._lock)
            self._db = undo.enter_context(closing(connect(path)))
            self._staged = StagedParts(self._db, path)
            self._roster = UNREAD
            with self._transaction():
                self._staged.take_over()
            undo.pop_all()

    def define(self, schema: TableSchema, since: Lsn | None = None, generation: int = 0) -> int:
        """Return the version of this schema; add it if it differs from the table's latest version."""
        with self._transaction():
            if generation > self._roster.restarts.get(schema.table, (0, 0))[1]:
                since = Lsn(load_frontier(self._db, self._path).durable)
                store_restart(self._db, self._path, schema.table, since, generation)
            return self._version(schema, since)

    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction in progress."""
        with self._transaction():
            for chunk in chunks:
                self._staged.add(*self._row(chunk, xid))

    def settle(self, xid: int, outcome: Prepared | Discarded) -> None:
        """Keep the staged parts of a prepared transaction for the next writer, or delete those of a rolled-back one."""
        with self._transaction():
            if isinstance(outcome, Discarded):
                self._staged.discard(xid)
            else:
                self._staged.prepare(xid, outcome.aborted, self._roster)

    def publish(
        self,
        chunks: Sequence[Chunk],
        durable: Lsn,
        *,
        committed_at: int | None = None,
        staged: Mapping[int, StagedCommit] | None = None,
        errors: Sequence[TableError] = (),
        passed: int | None = None,
        last: Commit | None = None,
    ) -> None:
        """Commit everything up to `durable` in one SQLite transaction."""
        commits = staged or {}
        with self._transaction():
            self._check_forward(durable)
            with tallied(self._db, self._path, "prepared") if commits else nullcontext():
                self._append(chunks, commits)
            for error in errors:
                store_failure(self._db, self._path, error)
            newest = None if committed_at is None else (durable, committed_at)
            self._advance(durable, committed_at, commits_of(chunks, commits.values(), newest), passed, last)

    def retain(self, since: datetime) -> Frontiers:
        """Advance `valid`, then remove the chunks before it in steps, for a limited time."""
        with self._transaction():
            remove_expired_leases(self._db, self._path)
            frontier = load_frontier(self._db, self._path)
            advance_valid(self._db, self._path, position_at(self._db, self._path, frontier, microseconds(since)))
        for step in (remove_old_chunks, free_pages):
            deadline, more = time.monotonic() + _RETAIN_SECONDS / 2, True
            while more:
                more = step(self._db, self._path) and time.monotonic() < deadline
        return self.frontiers()

    def frontiers(self) -> Frontiers:
        """Return the frontiers of the log."""
        with translate_errors(self._path):
            return load_frontier(self._db, self._path).to_frontiers()

    def close(self) -> None:
        """Close the file and release the lock."""
        self._db.close()
        unlock(self._lock)

    # -- versions ---------------------------------------------------------------------------------------------------

    def _refresh_roster(self) -> None:
        """Load the tables in this transaction, if they changed."""
        frontier = load_frontier(self._db, self._path)
        if frontier.edition != self._roster.edition:
            self._roster = load_roster(self._db, self._path, frontier)

    def _version(self, schema: TableSchema, since: Lsn | None) -> int:
        known = self._roster.relations
        versions = known.get(schema.table, [])
        if versions and versions[-1].schema == schema:
            return versions[-1].version
        new = 1 + max((relation.id for each in known.values() for relation in each), default=0)
        if not versions:
            create_chain(self._db, new)
        first = versions[0].id if versions else new
        relation = Relation(new, first, len(versions) + 1, schema, since)
        store_relation(self._db, self._path, relation)
        return relation.version

    # -- chunks -----------------------------------------------------------------------------------------------------

    def _append(self, chunks: Sequence[Chunk], commits: Mapping[int, StagedCommit]) -> None:
        """Append staged parts and closed chunks to the history of their tables."""
        parts = [part for xid, commit in commits.items() for part in self._staged.take(xid, commit, self._roster)]
        arriving: list[tuple[ChunkRow, int | StoredChunk]] = [*sorted(parts, key=itemgetter(1))]
        arriving += (self._row(chunk, None) for chunk in chunks)
        for row, stored in link_chunks(self._db, self._path, arriving):
            if isinstance(stored, StoredChunk):
                insert_chunk(self._db, row, stored)
            else:
                update_chunk(self._db, stored, row)
            self._record_first_use(row)

    def _row(self, chunk: Chunk, xid: int | None) -> tuple[ChunkRow, StoredChunk]:
        stored = StoredChunk.pack(chunk)
        table_id = self._roster.relations[chunk.table][0].table_id
        lsns = chunk.transactions.column(0)
        first, last = (None, None) if xid is not None else (lsns[0].as_py(), lsns[-1].as_py())
        size = memoryview(stored.images).nbytes
        contents = (chunk.images.num_rows, chunk.changes, size, chunk.kinds, int(chunk.unchanged))
        crc = checksum(stored.transactions, stored.images)
        return ChunkRow(table_id, chunk.version, None, None, first, last, xid, None, None, 0, *contents, crc), stored

    def _record_first_use(self, row: ChunkRow) -> None:
        """Record the first position of a version when its first chunk is published."""
        relation = self._roster.versions[row.table_id, row.version]
        if relation.since is None:
            store_relation(self._db, self._path, replace(relation, since=Lsn(row.first_lsn or 0)))
            self._refresh_roster()

    # -- frontiers --------------------------------------------------------------------------------------------------

    def _check_forward(self, durable: Lsn) -> None:
        if durable < load_frontier(self._db, self._path).durable:
            message = f"the durable frontier of the change log cannot move back to {durable}"
            raise DefiniteError(message, "This is a defect in Penstock: please report it. Nothing was written.")

    def _advance(
        self, durable: Lsn, committed_at: int | None, commits: Commits, passed: int | None, last: Commit | None
    ) -> None:
        before = load_frontier(self._db, self._path)
        newest = store_moment(self._db, before, durable, commits)
        if passed is not None and not self._has_stored_clock:
            newest = store_clock(self._db, before, durable, passed)
            self._has_stored_clock = True
        settled = max(before.passed, newest, passed or 0)
        after = before._replace(durable=int(durable), newest_at=newest, passed=settled)
        if committed_at is not None:
            after = after._replace(committed_at=committed_at, published_at=time.time_ns() // 1000)
        if last is not None:
            after = after._replace(last_lsn=int(last.lsn), last_xid=last.xid, last_at=last.committed_at)
        store_frontier(self._db, after)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with transaction(self._db, self._path):
                self._refresh_roster()
                yield
        except BaseException:
            self._roster = UNREAD  # the next edition may have the same number as the one that was rolled back
            with translate_errors(self._path):
                self._staged.reload()
            raise


_BYTES, _CHUNKS, _PAGES = 16 << 20, 1000, 512
"""The most that one step removes, and the number of pages that one step returns to the file system."""
_OLD = """
SELECT id, size FROM chunk INDEXED BY chunk_by_lsn WHERE table_id = ? AND last_lsn <= ? ORDER BY last_lsn, id LIMIT ?
"""


def advance_valid(db: sqlite3.Connection, path: Path, wanted: Lsn | None) -> None:
    """Advance `valid` and its time to a position, but not past a lease."""
    frontier = load_frontier(db, path)
    leased = [lease.at for lease in load_leases(db, path, frontier)]
    floor = min([wanted, *leased]) if wanted is not None else Lsn.ZERO
    if floor > frontier.valid:
        at = newest_upto(db, path, frontier, floor)
        store_frontier(db, frontier._replace(valid=int(floor), valid_at=at))


def remove_old_chunks(db: sqlite3.Connection, path: Path) -> bool:
    """Remove some of the chunks before `valid`; return whether there may be more."""
    with transaction(db, path):
        return _remove_batch(db, path)


def free_pages(db: sqlite3.Connection, path: Path) -> bool:
    """Return some free pages to the file system; return whether there are more."""
    with translate_errors(path):
        if _free_pages(db) == 0:
            return False
        db.executescript(f"PRAGMA incremental_vacuum({_PAGES})")  # `execute` would stop after the first page
        return _free_pages(db) > 0


def _remove_batch(db: sqlite3.Connection, path: Path) -> bool:
    frontier = load_frontier(db, path)
    remove_moments(db, frontier.valid_at, _CHUNKS)
    removed, size = 0, 0
    for table_id in table_ids(db):
        for id_, chunk_size in db.execute(_OLD, (table_id, frontier.valid, _CHUNKS - removed)).fetchall():
            db.execute("DELETE FROM payload WHERE chunk = ?", (id_,))
            db.execute("DELETE FROM chunk WHERE id = ?", (id_,))
            removed, size = removed + 1, size + chunk_size
            if size >= _BYTES or removed == _CHUNKS:
                return True
    return False


def _free_pages(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA freelist_count").fetchone()[0])
