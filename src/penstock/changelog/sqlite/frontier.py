"""The frontier row of a log (`valid`, `durable`, the last commit), and its commit times.

Commit times are not always ordered like positions: Postgres takes the commit time before it reserves the position in
the WAL. The lookup from a time to a position finds the longest prefix of history that contains no transaction later
than the given time. The table ``moment`` has a row for each publication with a commit time newer than all earlier ones:
`durable` before the publication, the newest time before it, and its transactions. The first row with a newer time than
the given one contains the first transaction that is too late, if the newest time before that row is not too late.

A clock reading counts like a commit time: later transactions are recorded with at least that time. The clock itself has
a row only if it is the first time that a writer reports, because tables may have been added while there was no writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.as_of import from_microseconds, optional_from_microseconds
from penstock.changelog.interface import Chunk, Commit, Frontiers, StagedCommit
from penstock.changelog.sqlite.file import check_row, damaged, seal
from penstock.positions import Lsn

__all__ = [
    "Commits",
    "Frontier",
    "commits_of",
    "create_frontier",
    "load_frontier",
    "newest_upto",
    "position_at",
    "remove_moments",
    "store_clock",
    "store_frontier",
    "store_moment",
    "tallied",
    "time_at",
]


class Frontier(NamedTuple):
    """The columns of the row; times are in microseconds since 1970."""

    valid: int
    valid_at: int
    """The newest commit time up to `valid`."""
    durable: int
    newest_at: int
    """The newest time in `moment`: a commit time up to `durable`, or a clock reading."""
    passed: int
    """The newest time reported; clock readings are stored only here, so that an idle log does not grow."""
    committed_at: int | None
    published_at: int | None
    last_lsn: int | None
    last_xid: int | None
    last_at: int | None
    """The last transaction that changed a row: the fields of its `Commit`."""
    edition: int
    """Increases with each change of the roster: a reader that has this edition need not load it again."""
    roster: int
    """The tally of versions, restarts and failures."""
    pins: int
    """The tally of the leases."""
    prepared: int
    """The tally of the staged chunks of prepared transactions."""

    def to_frontiers(self) -> Frontiers:
        """Return the part that is public: the `Frontiers` of the interface."""
        last, start, passed = (
            optional_from_microseconds(self.committed_at),
            from_microseconds(self.valid_at),
            from_microseconds(self.passed),
        )
        commit = None if self.last_lsn is None else Commit(Lsn(self.last_lsn), self.last_xid or 0, self.last_at or 0)
        published = optional_from_microseconds(self.published_at)
        return Frontiers(Lsn(self.valid), Lsn(self.durable), last, published, start, passed, commit)


_COLUMNS = ", ".join(Frontier._fields)
_LOAD = f"SELECT {_COLUMNS}, seal FROM frontier WHERE one = 1"
_STORE = f"UPDATE frontier SET ({_COLUMNS}, seal) = ({', '.join('?' * (len(Frontier._fields) + 1))}) WHERE one = 1"
_CREATE = f"INSERT INTO frontier VALUES (1{', ?' * (len(Frontier._fields) + 1)})"

_TALLIED = {
    "roster": ("relation", "restart", "failure"),
    "pins": ("pin",),
    "prepared": ("chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL AND prepared = 1",),
}
"""The sets of rows that have a tally in the frontier row."""
_NAMES = {"roster": "tables", "pins": "leases", "prepared": "parts of prepared transactions"}


def load_frontier(db: sqlite3.Connection, path: Path) -> Frontier:
    """Read the row."""
    row = db.execute(_LOAD).fetchone()
    if row is None:
        raise damaged(path, "the row of its frontiers is missing")
    return Frontier(*check_row(row, "its frontiers", path))


def store_frontier(db: sqlite3.Connection, frontier: Frontier) -> None:
    """Write the row."""
    db.execute(_STORE, (*frontier, seal(*frontier)))


def create_frontier(db: sqlite3.Connection, start: Lsn, now: int) -> None:
    """Write the row of a log whose history begins after `start`."""
    frontier = Frontier(start, now, start, now, now, None, None, None, None, None, 0, 0, 0, 0)
    db.execute(_CREATE, (*frontier, seal(*frontier)))


@contextmanager
def tallied(db: sqlite3.Connection, path: Path, column: str) -> Iterator[None]:
    """Update the tally of a set of rows after the body changed it; the tally must match before."""
    if _tally(db, column) != getattr(load_frontier(db, path), column):
        raise damaged(path, f"rows of {_NAMES[column]} are missing or were added")
    yield
    frontier = load_frontier(db, path)
    changed = {column: _tally(db, column), "edition": frontier.edition + (column == "roster")}
    store_frontier(db, frontier._replace(**changed))


def _tally(db: sqlite3.Connection, column: str) -> int:
    """Return the tally of a set of rows, as `file.tally` computes it."""
    sums = (f"(SELECT coalesce(sum(seal + 4294967296), 0) FROM {rows})" for rows in _TALLIED[column])
    return int(db.execute(f"SELECT {' + '.join(sums)}").fetchone()[0])


# -- commit times ------------------------------------------------------------------------------------------------------

Commits = npt.NDArray[np.int64]

_FIRST_AFTER = """
SELECT newest_at, lsn, prior_at, prior_lsn, commits, seal FROM moment WHERE newest_at > ? ORDER BY newest_at LIMIT 1
"""


def commits_of(chunks: Iterable[Chunk], staged: Iterable[StagedCommit], last: tuple[Lsn, int] | None) -> Commits:
    """Return position and commit time of the transactions of a publication, in commit order, one per row."""
    given = [(commit.lsn, commit.committed_at) for commit in staged] + ([] if last is None else [last])
    parts = [np.array(given, "<i8").reshape(-1, 2)]
    for chunk in chunks:
        lsns, _, times = chunk.transactions.columns
        parts.append(np.column_stack([lsns.to_numpy(), times.cast(pa.int64()).to_numpy()]).astype("<i8"))
    found: Commits = np.concatenate(parts)
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    latest: Commits = found[np.append(found[1:, 0] != found[:-1, 0], True)[: len(found)]]  # one per position
    return latest


def store_moment(db: sqlite3.Connection, before: Frontier, durable: Lsn, commits: Commits) -> int:
    """Record a publication if it contains the newest commit time so far; return the newest time."""
    if not len(commits):
        return before.newest_at
    effective = np.column_stack([commits[:, 0], np.maximum(commits[:, 1], before.passed)]).astype("<i8")
    newest = int(effective[:, 1].max())
    if newest > before.newest_at:
        _insert(db, before, durable, newest, effective)
    return max(newest, before.newest_at)


def store_clock(db: sqlite3.Connection, before: Frontier, durable: Lsn, clock: int) -> int:
    """Record a clock reading like a transaction without changes; return the newest time."""
    if clock > before.newest_at:
        _insert(db, before, durable, clock, np.empty((0, 2), "<i8"))
    return max(clock, before.newest_at)


def _insert(db: sqlite3.Connection, before: Frontier, durable: Lsn, newest: int, commits: Commits) -> None:
    values = (newest, int(durable), before.newest_at, before.durable, commits.tobytes())
    *numbers, packed = values
    db.execute("INSERT INTO moment VALUES (?, ?, ?, ?, ?, ?)", (*numbers, seal(*values), packed))


def position_at(db: sqlite3.Connection, path: Path, frontier: Frontier, moment: int) -> Lsn | None:
    """Return the last position up to which no transaction is later than `moment`; None if that history was removed."""
    if moment < frontier.valid_at:
        return None
    if moment >= frontier.newest_at:
        return Lsn(frontier.durable)
    row = db.execute(_FIRST_AFTER, (moment,)).fetchone()
    if row is None:
        raise damaged(path, "the row of a commit time is missing")
    newest, _, prior_at, prior_lsn, packed = check_row(row, "a commit time", path)
    if not prior_at <= moment < newest:
        raise damaged(path, "the row of a commit time is missing")
    found = _last_before(np.frombuffer(packed, "<i8").reshape(-1, 2), prior_lsn, moment)
    return Lsn(found) if found >= frontier.valid else None


def newest_upto(db: sqlite3.Connection, path: Path, frontier: Frontier, lsn: int) -> int:
    """Return the newest time up to a position, which must not be before `valid`."""
    query = (
        "SELECT newest_at, lsn, prior_at, prior_lsn, commits, seal FROM moment WHERE newest_at > ? ORDER BY newest_at"
    )
    found = frontier.valid_at
    for row in db.execute(query, (found,)):
        newest, upto, _, _, packed = check_row(row, "a commit time", path)
        if upto > lsn:
            commits = np.frombuffer(packed, "<i8").reshape(-1, 2)
            return int(commits[commits[:, 0] <= lsn, 1].max(initial=found))
        found = newest
        if upto == lsn:
            break
    return found


def time_at(db: sqlite3.Connection, path: Path, frontier: Frontier, position: int) -> int:
    """Return the newest time of the publications that end at or before a position.

    Positions rise with times, and times are the primary key: the search halves the range of times.
    """
    if position >= frontier.durable:
        return frontier.newest_at
    low, high = frontier.valid_at, frontier.newest_at
    while low < high:
        middle = (low + high + 1) // 2
        row = db.execute(_FIRST_AFTER, (middle - 1,)).fetchone()
        if row is None:
            raise damaged(path, "the row of a commit time is missing")
        newest, upto, *_ = check_row(row, "a commit time", path)
        if upto <= position:
            low = newest
        else:
            high = middle - 1
    return low


def remove_moments(db: sqlite3.Connection, upto: int, limit: int) -> None:
    """Remove some of the rows that belong to removed history."""
    query = "SELECT newest_at FROM moment WHERE newest_at <= ? ORDER BY newest_at LIMIT ?"
    db.execute(f"DELETE FROM moment WHERE newest_at IN ({query})", (upto, limit))


def _last_before(commits: np.ndarray, prior_lsn: int, moment: int) -> int:
    """Return the position of the last transaction of a publication before the first one that is too late."""
    late = np.flatnonzero(commits[:, 1] > moment)
    return int(commits[late[0] - 1, 0]) if len(late) and late[0] else prior_lsn
