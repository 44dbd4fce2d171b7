"""Parts of transactions in progress: chunks without a position, which nobody but the writer sees.

The writer remembers which ones there are, so that one that is not found again is noticed when its transaction commits.
Those of prepared transactions outlive it, and have a tally in the file instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path

from penstock.changelog.frames import StoredChunk
from penstock.changelog.interface import StagedCommit
from penstock.changelog.sqlite.chain import COLUMNS, ChunkRow, sealed
from penstock.changelog.sqlite.frontier import load_frontier, tallied
from penstock.changelog.sqlite.payload import load_payloads
from penstock.changelog.sqlite.roster import Roster
from penstock.changelog.sqlite.seals import check, damaged, tally

__all__ = ["StagedParts", "insert_chunk", "update_chunk"]

_INSERT = f"INSERT INTO chunk ({COLUMNS}, seal) VALUES ({', '.join('?' * (len(ChunkRow._fields) + 1))})"
_UPDATE = f"UPDATE chunk SET ({COLUMNS}, seal) = ({', '.join('?' * (len(ChunkRow._fields) + 1))}) WHERE id = ?"
_STAGED = f"SELECT id, {COLUMNS}, seal FROM chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL"
_OPEN = "SELECT id, xid FROM chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL"
_LEFT = "SELECT id FROM chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL AND prepared = 0"


def insert_chunk(db: sqlite3.Connection, row: ChunkRow, stored: StoredChunk) -> int:
    """Write a chunk; return its id."""
    id_ = db.execute(_INSERT, sealed(row)).lastrowid
    db.execute(
        "INSERT INTO payload VALUES (?, ?, ?)", (id_, memoryview(stored.transactions), memoryview(stored.images))
    )
    return int(id_ or 0)


def update_chunk(db: sqlite3.Connection, id_: int, row: ChunkRow) -> None:
    """Write what is now known of a chunk."""
    db.execute(_UPDATE, (*sealed(row), id_))


class StagedParts:
    """The staged chunks of a log, by transaction."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._ids: dict[int, set[int]] = {}

    def take_over(self) -> None:
        """Drop what an earlier writer left, save what was prepared."""
        self._delete([row[0] for row in self._db.execute(_LEFT).fetchall()])
        rows = self._db.execute(f"{_STAGED} AND prepared = 1").fetchall()
        if tally(row[-1] for row in rows) != load_frontier(self._db, self._path).prepared:
            raise damaged(self._path, "a part of a prepared transaction is missing")
        self.recall()

    def recall(self) -> None:
        """Remember what is there, after a step that was undone."""
        self._ids = {}
        for id_, xid in self._db.execute(_OPEN).fetchall():
            self._ids.setdefault(xid, set()).add(id_)

    def add(self, row: ChunkRow, stored: StoredChunk) -> None:
        """Write a part of a transaction."""
        assert row.xid is not None
        self._ids.setdefault(row.xid, set()).add(insert_chunk(self._db, row, stored))

    def prepare(self, xid: int, aborted: Collection[int], roster: Roster) -> None:
        """Keep the parts of a transaction, whoever writes next."""
        with tallied(self._db, self._path, "prepared"):
            self._abort(xid, aborted, roster)
            for id_, row in self._parts(xid):
                update_chunk(self._db, id_, row._replace(prepared=1))

    def discard(self, xid: int) -> None:
        """Remove the parts of a transaction."""
        with tallied(self._db, self._path, "prepared"):
            self._delete([id_ for id_, _ in self._parts(xid)])
        self._ids.pop(xid, None)

    def take(self, xid: int, commit: StagedCommit, roster: Roster) -> Iterator[tuple[ChunkRow, int]]:
        """Yield the parts of a transaction that committed, with their ids: they are no longer staged."""
        self._abort(xid, commit.aborted, roster)
        lsn, at = int(commit.lsn), commit.committed_at
        for id_, row in self._parts(xid):
            yield row._replace(first_lsn=lsn, last_lsn=lsn, committed_at=at, prepared=0), id_
        self._ids.pop(xid, None)

    def _parts(self, xid: int) -> list[tuple[int, ChunkRow]]:
        rows = self._db.execute(f"{_STAGED} AND prepared IN (0, 1) AND xid = ? ORDER BY id", (xid,)).fetchall()
        found = [(id_, ChunkRow._make(check(tuple(row), f"chunk {id_}", self._path))) for id_, *row in rows]
        if {id_ for id_, row in found if row.xid == xid} != self._ids.get(xid, set()):
            raise damaged(self._path, "a part of a transaction in progress is missing")
        return found

    def _abort(self, xid: int, aborted: Collection[int], roster: Roster) -> None:
        """Mark what subtransactions that were rolled back wrote into the parts of a transaction."""
        for id_, row in self._parts(xid) if aborted else ():
            stored = load_payloads(self._db, self._path, [id_]).get(id_)
            if stored is None:
                raise damaged(self._path, f"the data of chunk {id_} is missing")
            stored.verify(row.checksum, f"chunk {id_}")
            lost, rows = stored.without(roster.versions[row.table_id, row.version].schema.columns, aborted)
            if rows == 0:
                self._delete([id_])
                self._ids[xid].discard(id_)
            elif len(lost):
                update_chunk(self._db, id_, row._replace(aborted=lost.tobytes(), rows=rows))

    def _delete(self, ids: list[int]) -> None:
        self._db.executemany("DELETE FROM payload WHERE chunk = ?", [(id_,) for id_ in ids])
        self._db.executemany("DELETE FROM chunk WHERE id = ?", [(id_,) for id_ in ids])
