"""The chunks of a table as a chain: found by range, and proven to be all there are.

::

    number      7            8            9           reach: 9 chunks, up to LSN 60
    prior      20           30           45
    range    (20, 30]     (30, 45]     (45, 60]

In (22, 40] lie 7 and 8: the prior of 7 is not after 22, 8 follows 7, and 9 begins after 40. Were one of them passed by,
one of these would not hold.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from penstock.changelog.interface import ChunkRef
from penstock.changelog.sqlite.seals import check, check_numbers, damaged, seal
from penstock.errors import DefiniteError
from penstock.positions import Lsn

__all__ = ["COLUMNS", "ChunkRow", "begin_chain", "chunks_within", "linked", "sealed", "table_ids"]


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
