"""From a time to a position.

Commit times do not always rise with positions: Postgres takes the time before it takes the place in the WAL. What is
looked for is the longest beginning of history in which nothing is later than the time asked for. ``moment`` has a row
for each publication that brought a commit time newer than all before: where `durable` was before it and what the
newest was then, and the transactions in it. The first row that is too new holds the transaction that is. It is the
first if what it says of before is not too new.

A clock that was told counts as a commit time does: transactions after it have at least that time in their row. The
clock itself has a row only when it is the first of a writer: tables may have been added while there was none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.interface import Chunk, StagedCommit
from penstock.changelog.sqlite.frontier import Frontier
from penstock.changelog.sqlite.seals import check, damaged, seal
from penstock.positions import Lsn

__all__ = ["Commits", "commits_of", "forget_moments", "newest_upto", "position_at", "store_clock", "store_moment"]

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
