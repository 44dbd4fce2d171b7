"""What readers still need: rows that readers write, and retention heeds."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from penstock.changelog.as_of import moment
from penstock.changelog.interface import Pin
from penstock.changelog.sqlite.file import check, damaged, seal, tally
from penstock.changelog.sqlite.frontier import Frontier, tallied
from penstock.positions import Lsn

__all__ = ["load_pins", "remove_expired_pins", "store_pin"]


def load_pins(db: sqlite3.Connection, path: Path, frontier: Frontier) -> list[Pin]:
    """Return the pins that have not expired, by reader."""
    rows = db.execute("SELECT reader, at, expires, seal FROM pin").fetchall()
    found = [check(row, "a pin", path) for row in rows]
    if tally(row[-1] for row in rows) != frontier.pins:
        raise damaged(path, "a pin that it had is not in it")
    now = time.time_ns() // 1000
    held = [(reader, at, expires) for reader, at, expires in found if expires is None or expires > now]
    return [Pin(reader, Lsn(at), moment(expires)) for reader, at, expires in sorted(held)]


def store_pin(db: sqlite3.Connection, path: Path, reader: str, at: Lsn | None, seconds: float | None) -> None:
    """Put a reader's pin in the place of the one that it has; None takes that away."""
    expires = None if seconds is None else time.time_ns() // 1000 + round(seconds * 1e6)
    with tallied(db, path, "pins"):
        db.execute("DELETE FROM pin WHERE reader = ?", (reader,))
        if at is not None:
            db.execute("INSERT INTO pin VALUES (?, ?, ?, ?)", (reader, at, expires, seal(reader, at, expires)))


def remove_expired_pins(db: sqlite3.Connection, path: Path) -> None:
    """Remove leases that were not renewed."""
    now = time.time_ns() // 1000
    if db.execute("SELECT count(*) FROM pin WHERE expires <= ?", (now,)).fetchone()[0]:
        with tallied(db, path, "pins"):
            db.execute("DELETE FROM pin WHERE expires <= ?", (now,))
