"""The one row that says where a log stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock.changelog.history import exactly, moment
from penstock.changelog.interface import Frontiers
from penstock.changelog.sqlite.seals import check, damaged, seal
from penstock.positions import Lsn

__all__ = ["Frontier", "create_frontier", "load_frontier", "store_frontier", "tallied"]


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
        return Frontiers(Lsn(self.valid), Lsn(self.durable), last, moment(self.published_at), begun, passed)


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
    frontier = Frontier(start, now, start, now, now, None, None, 0, 0, 0, 0)
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
