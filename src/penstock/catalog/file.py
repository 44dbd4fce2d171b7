"""The file of the catalog: a SQLite database that several processes read and write.

Each operation opens a connection of its own: the catalog is used rarely, and from threads and processes that come and
go. Errors of SQLite become errors of Penstock.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.catalog.migrations import migrate
from penstock.errors import DefiniteError

__all__ = ["CatalogFile"]

_WAL_SECONDS = 10.0


class CatalogFile:
    """The database in the file `path`, at the newest version of its tables."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"the home {path.parent} cannot be used: {error.strerror}"
            raise DefiniteError(message, "Use another home (--home).") from error
        with self.connected() as db:
            _use_wal(db)
            migrate(db, path.parent)

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """Open the catalog's file for reading."""
        try:
            db = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        except sqlite3.OperationalError as error:
            message = f"the catalog {self._path} cannot be opened: {error}"
            raise DefiniteError(message, "Check that the home exists and is readable and writable.") from error
        try:
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA synchronous = FULL")
            yield db
        except sqlite3.DatabaseError as error:
            raise _translated(error, self._path) from error
        finally:
            db.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Open the catalog's file for one write transaction."""
        with self.connected() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch the file to WAL mode; retry, because SQLite does not wait for a process that does the same."""
    deadline = time.monotonic() + _WAL_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _translated(error: sqlite3.DatabaseError, path: Path) -> Exception:
    if "full" in str(error) or "I/O" in str(error):
        return DefiniteError(
            f"the disk under {path.parent} is full or failing: {error}", "Free some space, then restart."
        )
    if "not a database" in str(error) or "malformed" in str(error):
        return DefiniteError(f"{path} is not a Penstock catalog: {error}", "Use another home (--home).")
    if isinstance(error, sqlite3.OperationalError):
        return DefiniteError(
            f"the catalog {path} cannot be used: {error}", "Check that the home is complete and writable."
        )
    return error
