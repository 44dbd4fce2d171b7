"""Removing history: `valid` moves first, then what lies before it goes, in steps that do not hold up capture."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from penstock.changelog.sqlite.chain import table_ids
from penstock.changelog.sqlite.file import disk, writing
from penstock.changelog.sqlite.frontier import load_frontier, store_frontier
from penstock.changelog.sqlite.moments import forget_moments, newest_upto
from penstock.changelog.sqlite.pins import load_pins
from penstock.positions import Lsn

__all__ = ["free_pages", "move_valid", "remove_old_chunks"]

_BYTES, _CHUNKS, _PAGES = 16 << 20, 1000, 512
"""How much one step removes at most, and how many pages one gives back to the file system."""
_OLD = """
SELECT id, size FROM chunk INDEXED BY chunk_by_lsn WHERE table_id = ? AND last_lsn <= ? ORDER BY last_lsn, id LIMIT ?
"""


def move_valid(db: sqlite3.Connection, path: Path, wanted: Lsn | None) -> None:
    """Move `valid` to a position, or as far as pins let it; the time goes with it."""
    frontier = load_frontier(db, path)
    held = [pin.at for pin in load_pins(db, path, frontier)]
    floor = min([wanted, *held]) if wanted is not None else Lsn.ZERO
    if floor > frontier.valid:
        at = newest_upto(db, path, frontier, floor)
        store_frontier(db, frontier._replace(valid=int(floor), valid_at=at))


def remove_old_chunks(db: sqlite3.Connection, path: Path) -> bool:
    """Remove some of the chunks that lie before `valid`; say whether there may be more."""
    with writing(db, path):
        return _remove_some(db, path)


def free_pages(db: sqlite3.Connection, path: Path) -> bool:
    """Give some free pages back to the file system; say whether there are more."""
    with disk(path):
        if _free_pages(db) == 0:
            return False
        db.executescript(f"PRAGMA incremental_vacuum({_PAGES})")  # `execute` would end after the first page
        return _free_pages(db) > 0


def _remove_some(db: sqlite3.Connection, path: Path) -> bool:
    frontier = load_frontier(db, path)
    forget_moments(db, frontier.valid_at, _CHUNKS)
    removed, size = 0, 0
    for table_id in table_ids(db):
        for id_, held in db.execute(_OLD, (table_id, frontier.valid, _CHUNKS - removed)).fetchall():
            db.execute("DELETE FROM payload WHERE chunk = ?", (id_,))
            db.execute("DELETE FROM chunk WHERE id = ?", (id_,))
            removed, size = removed + 1, size + held
            if size >= _BYTES or removed == _CHUNKS:
                return True
    return False


def _free_pages(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA freelist_count").fetchone()[0])
