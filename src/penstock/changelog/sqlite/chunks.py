"""The chunks of a table: found by range, proven complete, and staged for transactions in progress.

::

    number      7            8            9           reach: 9 chunks, up to LSN 60
    prior      20           30           45
    range    (20, 30]     (30, 45]     (45, 60]

(22, 40] contains chunks 7 and 8: the `prior` of 7 is not after 22, 8 follows 7, and 9 begins after 40. If a chunk were
missing, one of these conditions would not hold.

Parts of transactions in progress are chunks without a position, which only the writer sees. It remembers them, so that
a missing part is noticed when its transaction commits. Parts of prepared transactions outlive the writer, and are
counted in the file instead.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.changelog.frames import StoredChunk
from penstock.changelog.interface import ChunkRef, StagedCommit
from penstock.changelog.sqlite.file import check, check_numbers, damaged, seal, tally
from penstock.changelog.sqlite.frontier import load_frontier, tallied
from penstock.changelog.sqlite.tables import Roster
from penstock.errors import DefiniteError
from penstock.positions import Lsn

__all__ = [
    "COLUMNS",
    "ChunkRow",
    "StagedParts",
    "begin_chain",
    "chunks_within",
    "insert_chunk",
    "linked",
    "load_payloads",
    "sealed",
    "table_ids",
    "update_chunk",
]


class ChunkRow(NamedTuple):
    """What the row of a chunk says, without its id and its seal."""

    table_id: int
    version: int
    number: int | None
    """Its place among the published chunks of its table, from 1; None while it is staged."""
    prior: int | None
    """Where the chunk before it ended."""
    first_lsn: int | None
    last_lsn: int | None
    xid: int | None
    """Of a chunk that was staged."""
    committed_at: int | None
    aborted: bytes | None
    prepared: int
    rows: int
    size: int
    kinds: int
    unchanged: int
    checksum: int


COLUMNS = ", ".join(ChunkRow._fields)
_WITHIN = f"""
SELECT id, {COLUMNS}, seal FROM chunk INDEXED BY chunk_by_lsn WHERE table_id = ? AND last_lsn > ? ORDER BY last_lsn, id
"""
_Kept = TypeVar("_Kept")


def sealed(row: ChunkRow) -> tuple[Any, ...]:
    """Return the values of a row with its seal."""
    return (*row, seal(*row))


def chunks_within(db: sqlite3.Connection, path: Path, table_id: int, after: Lsn, upto: Lsn) -> Iterator[ChunkRef]:
    """Yield the chunks that touch (after, upto], in order, and fail if not all of them are found."""
    number: int | None = None
    end = int(after)
    with closing(db.execute(_WITHIN, (table_id, after))) as found:
        for row in found:
            told = check_numbers(row[1:], "a chunk", path)
            place, prior, first, last = told[2:6]
            follows = prior <= after if number is None else place == number + 1
            if not follows or told[0] != table_id or last <= after:
                raise damaged(path, f"the chunk before chunk {row[0]} is missing")
            if first > upto:
                return
            number, end = place, last
            yield _ref(row[0], told)
    published, reached = _load_reach(db, path, table_id)
    if reached > end or (number is not None and number != published):
        raise damaged(path, f"chunks after {Lsn(end)} are missing")


def begin_chain(db: sqlite3.Connection, table_id: int) -> None:
    """Make room for a table that has no chunks."""
    _store_reach(db, "INSERT INTO", table_id, 0, 0)


def table_ids(db: sqlite3.Connection) -> list[int]:
    """Return the tables that may have chunks."""
    return [row[0] for row in db.execute("SELECT table_id FROM reach").fetchall()]


def linked(
    db: sqlite3.Connection, path: Path, chunks: Iterable[tuple[ChunkRow, _Kept]]
) -> Iterator[tuple[ChunkRow, _Kept]]:
    """Put chunks that are about to be published, of any tables, at the ends of their chains."""
    ordered = sorted(chunks, key=lambda chunk: (chunk[0].table_id, chunk[0].last_lsn or 0))
    for table_id, group in itertools.groupby(ordered, key=lambda chunk: chunk[0].table_id):
        number, last = _load_reach(db, path, table_id)
        for row, kept in group:
            if row.first_lsn is None or row.last_lsn is None or row.first_lsn < last:
                message = f"a chunk with changes before {Lsn(last)} came after that position"
                raise DefiniteError(message, "This is a defect in Penstock: please report it. Nothing was written.")
            number += 1
            yield row._replace(number=number, prior=last), kept
            last = row.last_lsn
        _store_reach(db, "REPLACE INTO", table_id, number, last)


def _load_reach(db: sqlite3.Connection, path: Path, table_id: int) -> tuple[int, int]:
    row = db.execute("SELECT table_id, chunks, last_lsn, seal FROM reach WHERE table_id = ?", (table_id,)).fetchone()
    if row is None or row[0] != table_id:
        raise damaged(path, "it does not say where a table ends")
    _, chunks, last = check(row, "the end of a table", path)
    return chunks, last


def _store_reach(db: sqlite3.Connection, how: str, *values: int) -> None:
    db.execute(f"{how} reach VALUES (?, ?, ?, ?)", (*values, seal(*values)))


def _ref(id_: int, told: tuple[Any, ...]) -> ChunkRef:
    _, version, _, _, first, last, xid, committed_at, aborted, _, rows, size, kinds, unchanged, checksum = told
    staged = None if xid is None else (xid, committed_at, aborted)
    return ChunkRef((id_,), version, Lsn(first), Lsn(last), rows, size, kinds, bool(unchanged), checksum, staged)


_LOAD = "SELECT chunk, transactions, images FROM payload WHERE chunk IN (SELECT value FROM json_each(?))"


def load_payloads(db: sqlite3.Connection, path: Path, ids: Sequence[int]) -> dict[int, StoredChunk]:
    """Return those that are there; whoever asks knows their checksums."""
    rows = db.execute(_LOAD, (json.dumps(ids),)).fetchall()
    for id_, transactions, images in rows:
        if type(transactions) is not bytes or type(images) is not bytes:
            raise damaged(path, f"the data of chunk {id_} is something else")
    return {id_: StoredChunk(transactions, images) for id_, transactions, images in rows}


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
