"""The chunks of a table: looked up by range, proven complete, and staged for transactions in progress.

::

    number      7            8            9           reach: 9 chunks, up to LSN 60, 24 changes
    prior      20           30           45
    range    (20, 30]     (30, 45]     (45, 60]

The range (22, 40] overlaps chunks 7 and 8: the `prior` of 7 is not after 22, 8 follows 7, and 9 begins after 40. If a
chunk were missing, one of these conditions would not hold.

Parts of transactions in progress are chunks without a position, which only the writer sees. It remembers their ids, so
that it detects a missing part when the transaction commits. Parts of prepared transactions outlive the writer and have
a tally in the file instead.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.interface import ChunkRef, StagedCommit
from penstock.changelog.sqlite.file import check_numeric_row, check_row, damaged, seal, tally
from penstock.changelog.sqlite.frontier import load_frontier, tallied
from penstock.changelog.sqlite.tables import Roster
from penstock.errors import DefiniteError
from penstock.positions import Lsn

__all__ = [
    "COLUMNS",
    "ChunkRow",
    "StagedParts",
    "chunks_within",
    "count_images",
    "create_chain",
    "insert_chunk",
    "link_chunks",
    "load_changes",
    "load_payloads",
    "table_ids",
    "update_chunk",
    "with_seal",
]


class ChunkRow(NamedTuple):
    """The row of a chunk, without its id and its seal."""

    table_id: int
    version: int
    number: int | None
    """Its number among the published chunks of its table, from 1; None while it is staged."""
    prior: int | None
    """The end of the previous chunk."""
    first_lsn: int | None
    last_lsn: int | None
    xid: int | None
    """Only for a chunk that was staged."""
    committed_at: int | None
    aborted: bytes | None
    prepared: int
    rows: int
    changes: int
    size: int
    kinds: int
    unchanged: int
    checksum: int


COLUMNS = ", ".join(ChunkRow._fields)
_WITHIN = f"""
SELECT id, {COLUMNS}, seal FROM chunk INDEXED BY chunk_by_lsn WHERE table_id = ? AND last_lsn > ? ORDER BY last_lsn, id
"""
_COUNT = """
SELECT coalesce(sum(rows), 0) FROM chunk INDEXED BY chunk_by_lsn WHERE table_id = ? AND last_lsn > ? AND first_lsn <= ?
"""
_REACH = "SELECT table_id, chunks, last_lsn, changes, seal FROM reach"
_Stored = TypeVar("_Stored")


def with_seal(row: ChunkRow) -> tuple[Any, ...]:
    """Return the values of a row with its seal."""
    return (*row, seal(*row))


def chunks_within(db: sqlite3.Connection, path: Path, table_id: int, after: Lsn, upto: Lsn) -> Iterator[ChunkRef]:
    """Yield the chunks that overlap (after, upto], in order; raise `LogCorruptError` if one is missing."""
    number: int | None = None
    end = int(after)
    with closing(db.execute(_WITHIN, (table_id, after))) as found:
        for row in found:
            values = check_numeric_row(row[1:], "a chunk", path)
            current, prior, first, last = values[2:6]
            follows = prior <= after if number is None else current == number + 1
            if not follows or values[0] != table_id or last <= after:
                raise damaged(path, f"the chunk before chunk {row[0]} is missing")
            if first > upto:
                return
            number, end = current, last
            yield _ref(row[0], values)
    published, reached, _ = _load_reach(db, path, table_id)
    if reached > end or (number is not None and number != published):
        raise damaged(path, f"chunks after {Lsn(end)} are missing")


def count_images(db: sqlite3.Connection, table_id: int, after: Lsn, upto: Lsn) -> int:
    """Return the number of images in the chunks that overlap (after, upto], without verifying them."""
    return int(db.execute(_COUNT, (table_id, after, upto)).fetchone()[0])


def create_chain(db: sqlite3.Connection, table_id: int) -> None:
    """Create the empty chunk chain of a new table."""
    _store_reach(db, "INSERT INTO", table_id, 0, 0, 0)


def table_ids(db: sqlite3.Connection) -> list[int]:
    """Return the tables that may have chunks."""
    return [row[0] for row in db.execute("SELECT table_id FROM reach").fetchall()]


def link_chunks(
    db: sqlite3.Connection, path: Path, chunks: Iterable[tuple[ChunkRow, _Stored]]
) -> Iterator[tuple[ChunkRow, _Stored]]:
    """Append chunks of any tables to the chains of their tables, for publication."""
    ordered = sorted(chunks, key=lambda chunk: (chunk[0].table_id, chunk[0].last_lsn or 0))
    for table_id, group in itertools.groupby(ordered, key=lambda chunk: chunk[0].table_id):
        number, last, changes = _load_reach(db, path, table_id)
        for row, stored in group:
            if row.first_lsn is None or row.last_lsn is None or row.first_lsn < last:
                message = f"out-of-order chunk: it contains changes before {Lsn(last)}, the end of its table's log"
                raise DefiniteError(message, "This is a defect in Penstock: please report it. Nothing was written.")
            number, changes = number + 1, changes + row.changes
            yield row._replace(number=number, prior=last), stored
            last = row.last_lsn
        _store_reach(db, "REPLACE INTO", table_id, number, last, changes)


def load_changes(db: sqlite3.Connection, path: Path) -> dict[int, int]:
    """Return the number of changes of each table that were ever published, by table id."""
    rows = [check_row(row, "the end of a table", path) for row in db.execute(_REACH).fetchall()]
    return {table_id: changes for table_id, _, _, changes in rows}


def _load_reach(db: sqlite3.Connection, path: Path, table_id: int) -> tuple[int, int, int]:
    row = db.execute(f"{_REACH} WHERE table_id = ?", (table_id,)).fetchone()
    if row is None or row[0] != table_id:
        raise damaged(path, "the row of the end of a table is missing")
    _, chunks, last, changes = check_row(row, "the end of a table", path)
    return chunks, last, changes


def _store_reach(db: sqlite3.Connection, how: str, *values: int) -> None:
    db.execute(f"{how} reach VALUES (?, ?, ?, ?, ?)", (*values, seal(*values)))


def _ref(id_: int, values: tuple[Any, ...]) -> ChunkRef:
    _, version, _, _, first, last, xid, committed_at, aborted, _, rows, _, size, kinds, unchanged, checksum = values
    staged = None if xid is None else (xid, committed_at, aborted)
    return ChunkRef((id_,), version, Lsn(first), Lsn(last), rows, size, kinds, bool(unchanged), checksum, staged)


_LOAD = "SELECT chunk, transactions, images FROM payload WHERE chunk IN (SELECT value FROM json_each(?))"


def load_payloads(db: sqlite3.Connection, path: Path, ids: Sequence[int]) -> dict[int, StoredChunk]:
    """Return the payloads that exist; the caller verifies their checksums."""
    rows = db.execute(_LOAD, (json.dumps(ids),)).fetchall()
    for id_, transactions, images in rows:
        if type(transactions) is not bytes or type(images) is not bytes:
            raise damaged(path, f"the data of chunk {id_} has the wrong type")
    return {id_: StoredChunk(transactions, images) for id_, transactions, images in rows}


_INSERT = f"INSERT INTO chunk ({COLUMNS}, seal) VALUES ({', '.join('?' * (len(ChunkRow._fields) + 1))})"
_UPDATE = f"UPDATE chunk SET ({COLUMNS}, seal) = ({', '.join('?' * (len(ChunkRow._fields) + 1))}) WHERE id = ?"
_STAGED = f"SELECT id, {COLUMNS}, seal FROM chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL"
_OPEN = "SELECT id, xid FROM chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL"
_UNPREPARED = "SELECT id FROM chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL AND prepared = 0"


def insert_chunk(db: sqlite3.Connection, row: ChunkRow, stored: StoredChunk) -> int:
    """Insert a chunk and return its id."""
    id_ = db.execute(_INSERT, with_seal(row)).lastrowid
    db.execute(
        "INSERT INTO payload VALUES (?, ?, ?)", (id_, memoryview(stored.transactions), memoryview(stored.images))
    )
    return int(id_ or 0)


def update_chunk(db: sqlite3.Connection, id_: int, row: ChunkRow) -> None:
    """Update the row of a chunk."""
    db.execute(_UPDATE, (*with_seal(row), id_))


class StagedParts:
    """The staged chunks of a log, by transaction."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        self._ids: dict[int, set[int]] = {}

    def take_over(self) -> None:
        """Drop the parts that an earlier writer left, except those of prepared transactions."""
        self._delete([row[0] for row in self._db.execute(_UNPREPARED).fetchall()])
        rows = self._db.execute(f"{_STAGED} AND prepared = 1").fetchall()
        if tally(row[-1] for row in rows) != load_frontier(self._db, self._path).prepared:
            raise damaged(self._path, "a part of a prepared transaction is missing")
        self.reload()

    def reload(self) -> None:
        """Reload the ids of all parts, after a transaction of the writer was rolled back."""
        self._ids = {}
        for id_, xid in self._db.execute(_OPEN).fetchall():
            self._ids.setdefault(xid, set()).add(id_)

    def add(self, row: ChunkRow, stored: StoredChunk) -> None:
        """Write a part of a transaction."""
        assert row.xid is not None
        self._ids.setdefault(row.xid, set()).add(insert_chunk(self._db, row, stored))

    def prepare(self, xid: int, aborted: Collection[int], roster: Roster) -> None:
        """Keep the parts of a transaction across a change of writer."""
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
        """Yield the parts of a committed transaction with their ids, and stop tracking them as staged."""
        self._abort(xid, commit.aborted, roster)
        lsn, at = int(commit.lsn), commit.committed_at
        for id_, row in self._parts(xid):
            yield row._replace(first_lsn=lsn, last_lsn=lsn, committed_at=at, prepared=0), id_
        self._ids.pop(xid, None)

    def _parts(self, xid: int) -> list[tuple[int, ChunkRow]]:
        rows = self._db.execute(f"{_STAGED} AND prepared IN (0, 1) AND xid = ? ORDER BY id", (xid,)).fetchall()
        found = [(id_, ChunkRow._make(check_row(tuple(row), f"chunk {id_}", self._path))) for id_, *row in rows]
        if {id_ for id_, row in found if row.xid == xid} != self._ids.get(xid, set()):
            raise damaged(self._path, "a part of a transaction in progress is missing")
        return found

    def _abort(self, xid: int, aborted: Collection[int], roster: Roster) -> None:
        """Exclude the changes of rolled-back subtransactions from the parts of a transaction."""
        for id_, row in self._parts(xid) if aborted else ():
            stored = load_payloads(self._db, self._path, [id_]).get(id_)
            if stored is None:
                raise damaged(self._path, f"the data of chunk {id_} is missing")
            stored.verify(row.checksum, f"chunk {id_}")
            lost, rows, changes = stored.without(roster.versions[row.table_id, row.version].schema.columns, aborted)
            if rows == 0:
                self._delete([id_])
                self._ids[xid].discard(id_)
            elif len(lost):
                update_chunk(self._db, id_, row._replace(aborted=lost.tobytes(), rows=rows, changes=changes))

    def _delete(self, ids: list[int]) -> None:
        self._db.executemany("DELETE FROM payload WHERE chunk = ?", [(id_,) for id_ in ids])
        self._db.executemany("DELETE FROM chunk WHERE id = ?", [(id_,) for id_ in ids])
