"""The leases of readers: readers write them, and retention keeps the history that they need."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from penstock.changelog.as_of import optional_from_microseconds
from penstock.changelog.interface import Lease
from penstock.changelog.sqlite.file import check_row, damaged, seal, tally
from penstock.changelog.sqlite.frontier import Frontier, tallied
from penstock.positions import Lsn

__all__ = ["load_leases", "remove_expired_leases", "store_lease"]


def load_leases(db: sqlite3.Connection, path: Path, frontier: Frontier) -> list[Lease]:
    """Return the leases that have not expired, ordered by reader."""
    rows = db.execute("SELECT reader, at, expires, seal FROM pin").fetchall()
    found = [check_row(row, "a lease", path) for row in rows]
    if tally(row[-1] for row in rows) != frontier.pins:
        raise damaged(path, "the row of a lease is missing")
    now = time.time_ns() // 1000
    active = [(reader, at, expires) for reader, at, expires in found if expires is None or expires > now]
    return [Lease(reader, Lsn(at), optional_from_microseconds(expires)) for reader, at, expires in sorted(active)]


def store_lease(db: sqlite3.Connection, path: Path, reader: str, at: Lsn | None, seconds: float | None) -> None:
    """Replace the lease of a reader; None removes it."""
    expires = None if seconds is None else time.time_ns() // 1000 + round(seconds * 1e6)
    with tallied(db, path, "pins"):
        db.execute("DELETE FROM pin WHERE reader = ?", (reader,))
        if at is not None:
            db.execute("INSERT INTO pin VALUES (?, ?, ?, ?)", (reader, at, expires, seal(reader, at, expires)))


def remove_expired_leases(db: sqlite3.Connection, path: Path) -> None:
    """Remove leases that were not renewed in time."""
    now = time.time_ns() // 1000
    if db.execute("SELECT count(*) FROM pin WHERE expires <= ?", (now,)).fetchone()[0]:
        with tallied(db, path, "pins"):
            db.execute("DELETE FROM pin WHERE expires <= ?", (now,))
