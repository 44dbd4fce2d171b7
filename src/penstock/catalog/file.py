"""The file of the catalog: a SQLite database that several processes read and write, and its schema by version.

Each operation opens a connection of its own: the catalog is used rarely, and from threads and processes that come and
go. Errors of SQLite become errors of Penstock. Opening a home of an older Penstock migrates its catalog.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.catalog.progress import PROGRESS_TABLE
from penstock.errors import DefiniteError
from penstock.private_file import create_folder, private

__all__ = ["CatalogFile"]

_WAL_SECONDS = 10.0


class CatalogFile:
    """The database in the file `path`, at the newest version of its tables."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            create_folder(path.parent)
            if not path.exists():
                open(path, "ab", opener=private).close()
        except OSError as error:
            message = f"the home {path.parent} cannot be used: {error.strerror}"
            raise DefiniteError(message, "Use another home (--home).") from error
        with self.connected() as db:
            _use_wal(db)
            _migrate(db, path.parent)

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


# -- versions of the schema --------------------------------------------------------------------------------------------

_SCHEMA = """
CREATE TABLE source (
    name TEXT PRIMARY KEY, kind TEXT NOT NULL, spec TEXT NOT NULL, instance TEXT NOT NULL, state TEXT NOT NULL,
    error TEXT, remedy TEXT, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE source_table (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, schema_name TEXT NOT NULL, table_name TEXT NOT NULL,
    local TEXT NOT NULL, state TEXT NOT NULL, error TEXT, remedy TEXT,
    PRIMARY KEY (source, schema_name, table_name), UNIQUE (source, local));
CREATE TABLE base_version (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, local TEXT NOT NULL, version INTEGER NOT NULL,
    position INTEGER NOT NULL, columns BLOB NOT NULL, PRIMARY KEY (source, local, version))
"""
_DEBT = """
CREATE TABLE debt (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, instance TEXT NOT NULL, durable INTEGER NOT NULL, error TEXT,
    since TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)
"""
_LOGS = """
ALTER TABLE source ADD COLUMN log TEXT;
ALTER TABLE base_version RENAME TO base_version_2;
CREATE TABLE base_version (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, local TEXT NOT NULL, version INTEGER NOT NULL,
    position INTEGER NOT NULL, columns BLOB NOT NULL, PRIMARY KEY (source, local, position, version));
INSERT INTO base_version SELECT * FROM base_version_2;
DROP TABLE base_version_2
"""
_REPAIRS = """
CREATE TABLE repair (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, schema_name TEXT NOT NULL, table_name TEXT NOT NULL,
    chosen TEXT NOT NULL, asked_by TEXT NOT NULL, asked_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP,
    state TEXT NOT NULL DEFAULT 'asked', low INTEGER, high INTEGER, rows_read INTEGER, rows_changed INTEGER,
    error TEXT, remedy TEXT, ended_at TEXT)
"""
_KINDS = """
ALTER TABLE debt ADD COLUMN kind TEXT NOT NULL DEFAULT 'POSTGRES'
"""
_SHARDS = """
ALTER TABLE source ADD COLUMN part_of TEXT;
ALTER TABLE source ADD COLUMN shard TEXT
"""
_KEEPING = """
ALTER TABLE source ADD COLUMN keep_tables INTEGER NOT NULL DEFAULT 0;
ALTER TABLE source ADD COLUMN durable INTEGER NOT NULL DEFAULT 0
"""
_MEMORIES = """
ALTER TABLE base_version ADD COLUMN memory TEXT
"""
_ERRORS_AHEAD = """
CREATE TABLE error_ahead (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, local TEXT NOT NULL, lsn INTEGER NOT NULL,
    error TEXT NOT NULL, hint TEXT NOT NULL, PRIMARY KEY (source, local))
"""
_HINTS = """
ALTER TABLE source RENAME COLUMN remedy TO hint;
ALTER TABLE source_table RENAME COLUMN remedy TO hint;
ALTER TABLE repair RENAME COLUMN remedy TO hint
"""
_SINKS = """
CREATE TABLE sink (
    name TEXT PRIMARY KEY, source TEXT NOT NULL, kind TEXT NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL,
    id TEXT NOT NULL, started TEXT NOT NULL DEFAULT '', error TEXT, hint TEXT,
    created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)
"""
_REASONS = """
ALTER TABLE source_table ADD COLUMN code TEXT NOT NULL DEFAULT '';
ALTER TABLE source_table ADD COLUMN reason TEXT
"""
_KEPT = """
CREATE TABLE kept_base (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, local TEXT NOT NULL, version INTEGER NOT NULL,
    position INTEGER NOT NULL, until INTEGER NOT NULL, columns BLOB NOT NULL, PRIMARY KEY (source, local))
"""
_ROW_COUNTS = """
CREATE TABLE row_count (
    source TEXT NOT NULL REFERENCES source ON DELETE CASCADE, local TEXT NOT NULL, rows INTEGER NOT NULL,
    PRIMARY KEY (source, local))
"""
_STEPS = (
    *(_SCHEMA, _DEBT, _LOGS, _REPAIRS, PROGRESS_TABLE, _KINDS, _SHARDS, _KEEPING, _MEMORIES, _ERRORS_AHEAD, _HINTS),
    *(_SINKS, _REASONS, _KEPT, _ROW_COUNTS),
)
"""The statements that migrate a catalog from one version, the index in this list, to the next."""
_VERSION = len(_STEPS)


def _migrate(db: sqlite3.Connection, home: Path) -> None:
    """Migrate the catalog of a home to this version, in one transaction; raise `DefiniteError` if it is newer."""
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found > _VERSION:
        message = f"the home {home} requires a newer Penstock (catalog version {found}; this one supports {_VERSION})"
        raise DefiniteError(message, "Upgrade Penstock, or use another home (--home).")
    if found < _VERSION:
        db.execute("BEGIN IMMEDIATE")
        for step in _STEPS[db.execute("PRAGMA user_version").fetchone()[0] :]:
            for statement in step.split(";"):
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {_VERSION}")
        db.execute("COMMIT")
