"""The frontier row of a log (`valid`, `durable`, the last commit), and the lookup from a time to a position.

Commit times do not always rise with positions: Postgres takes the time before the place in the WAL. The lookup finds
the longest prefix of history that contains nothing later than the given time. The table ``moment`` has a row for each
publication that brought a commit time newer than all before: `durable` before it, the newest time before it, and its
transactions. The first row that is too new contains the transaction; it is the first one if its "before" is not too
new.

A clock reading counts like a commit time: transactions after it have at least that time in their row. The clock itself
has a row only if it is the first entry of a writer, because tables may have been added while there was none.
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

from penstock.changelog.as_of import exactly, moment
from penstock.changelog.interface import Chunk, Commit, Frontiers, StagedCommit
from penstock.changelog.sqlite.file import check, damaged, seal
from penstock.positions import Lsn

__all__ = [
    "Commits",
    "Frontier",
    "commits_of",
    "create_frontier",
    "forget_moments",
    "load_frontier",
    "newest_upto",
    "position_at",
    "store_clock",
    "store_frontier",
    "store_moment",
    "tallied",
]


class Frontier(NamedTuple):
    """The columns of that row; times are in microseconds since 1970."""

    valid: int
    valid_at: int
    """The newest commit time up to `valid`."""
    durable: int
    newest_at: int
    """The newest time that a `moment` has: that of a commit, up to `durable`, or a clock."""
    passed: int
    """The newest time that was told; a clock is written here alone, so that an idle log does not grow."""
    committed_at: int | None
    published_at: int | None
    last_lsn: int | None
    last_xid: int | None
    last_at: int | None
    """The last transaction that changed something: what `Commit` tells of it."""
    edition: int
    """Counts the changes of the roster: who has seen this one need not read it again."""
    roster: int
    """The tally of versions, restarts and failures."""
    pins: int
    """The tally of the pins."""
    prepared: int
    """The tally of the staged chunks of prepared transactions."""

    def told(self) -> Frontiers:
        """Return what of it the contract knows."""
        last, begun, passed = moment(self.committed_at), exactly(self.valid_at), exactly(self.passed)
        commit = None if self.last_lsn is None else Commit(Lsn(self.last_lsn), self.last_xid or 0, self.last_at or 0)
        published = moment(self.published_at)
        return Frontiers(Lsn(self.valid), Lsn(self.durable), last, published, begun, passed, commit)


_COLUMNS = ", ".join(Frontier._fields)
_LOAD = f"SELECT {_COLUMNS}, seal FROM frontier WHERE one = 1"
_STORE = f"UPDATE frontier SET ({_COLUMNS}, seal) = ({', '.join('?' * (len(Frontier._fields) + 1))}) WHERE one = 1"
_CREATE = f"INSERT INTO frontier VALUES (1{', ?' * (len(Frontier._fields) + 1)})"

_TALLIED = {
    "roster": ("relation", "restart", "failure"),
    "pins": ("pin",),
    "prepared": ("chunk INDEXED BY chunk_staged WHERE last_lsn IS NULL AND prepared = 1",),
}
"""The sets of rows of which the row holds a tally."""
_NAMES = {"roster": "tables", "pins": "pins", "prepared": "parts of prepared transactions"}


def load_frontier(db: sqlite3.Connection, path: Path) -> Frontier:
    """Read the row."""
    row = db.execute(_LOAD).fetchone()
    if row is None:
        raise damaged(path, "it does not say where it stands")
    return Frontier(*check(row, "where it stands", path))


def store_frontier(db: sqlite3.Connection, frontier: Frontier) -> None:
    """Write the row."""
    db.execute(_STORE, (*frontier, seal(*frontier)))


def create_frontier(db: sqlite3.Connection, start: Lsn, now: int) -> None:
    """Write the row of a log whose history begins after `start`."""
    frontier = Frontier(start, now, start, now, now, None, None, None, None, None, 0, 0, 0, 0)
    db.execute(_CREATE, (*frontier, seal(*frontier)))


@contextmanager
def tallied(db: sqlite3.Connection, path: Path, kept: str) -> Iterator[None]:
    """Change a set of rows, and its tally with it; it has to be whole before."""
    if _tally(db, kept) != getattr(load_frontier(db, path), kept):
        raise damaged(path, f"the {_NAMES[kept]} in it are not all that were written")
    yield
    frontier = load_frontier(db, path)
    changed = {kept: _tally(db, kept), "edition": frontier.edition + (kept == "roster")}
    store_frontier(db, frontier._replace(**changed))


def _tally(db: sqlite3.Connection, kept: str) -> int:
    """Return what `seals.tally` gives for the rows of a set."""
    sums = (f"(SELECT coalesce(sum(seal + 4294967296), 0) FROM {rows})" for rows in _TALLIED[kept])
    return int(db.execute(f"SELECT {' + '.join(sums)}").fetchone()[0])


Commits = npt.NDArray[np.int64]

_FIRST_AFTER = """
SELECT newest_at, lsn, prior_at, prior_lsn, commits, seal FROM moment WHERE newest_at > ? ORDER BY newest_at LIMIT 1
"""


def commits_of(chunks: Iterable[Chunk], staged: Iterable[StagedCommit], last: tuple[Lsn, int] | None) -> Commits:
    """Return position and commit time of the transactions of a publication, in commit order, a row each."""
    told = [(commit.lsn, commit.committed_at) for commit in staged] + ([] if last is None else [last])
    parts = [np.array(told, "<i8").reshape(-1, 2)]
    for chunk in chunks:
        lsns, _, times = chunk.transactions.columns
        parts.append(np.column_stack([lsns.to_numpy(), times.cast(pa.int64()).to_numpy()]).astype("<i8"))
    found: Commits = np.concatenate(parts)
    found = found[np.lexsort((found[:, 1], found[:, 0]))]
    latest: Commits = found[np.append(found[1:, 0] != found[:-1, 0], True)[: len(found)]]  # of each position
    return latest


def store_moment(db: sqlite3.Connection, before: Frontier, durable: Lsn, commits: Commits) -> int:
    """Write down a publication if a commit time in it is the newest so far; return the newest."""
    if not len(commits):
        return before.newest_at
    counting = np.column_stack([commits[:, 0], np.maximum(commits[:, 1], before.passed)]).astype("<i8")
    newest = int(counting[:, 1].max())
    if newest > before.newest_at:
        _insert(db, before, durable, newest, counting)
    return max(newest, before.newest_at)


def store_clock(db: sqlite3.Connection, before: Frontier, durable: Lsn, clock: int) -> int:
    """Write a clock down as a transaction would be that touches nothing; return the newest time."""
    if clock > before.newest_at:
        _insert(db, before, durable, clock, np.empty((0, 2), "<i8"))
    return max(clock, before.newest_at)


def _insert(db: sqlite3.Connection, before: Frontier, durable: Lsn, newest: int, commits: Commits) -> None:
    values = (newest, int(durable), before.newest_at, before.durable, commits.tobytes())
    *told, packed = values
    db.execute("INSERT INTO moment VALUES (?, ?, ?, ?, ?, ?)", (*told, seal(*values), packed))


def position_at(db: sqlite3.Connection, path: Path, frontier: Frontier, moment: int) -> Lsn | None:
    """Return the last position before which nothing is later than `moment`; None where the log no longer knows."""
    if moment < frontier.valid_at:
        return None
    if moment >= frontier.newest_at:
        return Lsn(frontier.durable)
    row = db.execute(_FIRST_AFTER, (moment,)).fetchone()
    if row is None:
        raise damaged(path, "a commit time that it had is not in it")
    newest, _, prior_at, prior_lsn, packed = check(row, "a commit time", path)
    if not prior_at <= moment < newest:
        raise damaged(path, "a commit time that it had is not in it")
    found = _last_before(np.frombuffer(packed, "<i8").reshape(-1, 2), prior_lsn, moment)
    return Lsn(found) if found >= frontier.valid else None


def newest_upto(db: sqlite3.Connection, path: Path, frontier: Frontier, lsn: int) -> int:
    """Return the time from which on a position that is not below `valid` is reached."""
    query = (
        "SELECT newest_at, lsn, prior_at, prior_lsn, commits, seal FROM moment WHERE newest_at > ? ORDER BY newest_at"
    )
    found = frontier.valid_at
    for row in db.execute(query, (found,)):
        newest, upto, _, _, packed = check(row, "a commit time", path)
        if upto > lsn:
            commits = np.frombuffer(packed, "<i8").reshape(-1, 2)
            return int(commits[commits[:, 0] <= lsn, 1].max(initial=found))
        found = newest
        if upto == lsn:
            break
    return found


def forget_moments(db: sqlite3.Connection, upto: int, limit: int) -> None:
    """Remove some of those that history no longer reaches back to."""
    query = "SELECT newest_at FROM moment WHERE newest_at <= ? ORDER BY newest_at LIMIT ?"
    db.execute(f"DELETE FROM moment WHERE newest_at IN ({query})", (upto, limit))


def _last_before(commits: np.ndarray, prior_lsn: int, moment: int) -> int:
    """Look at the transactions of one publication: the last one before the first that is too late."""
    late = np.flatnonzero(commits[:, 1] > moment)
    return int(commits[late[0] - 1, 0]) if len(late) and late[0] else prior_lsn
