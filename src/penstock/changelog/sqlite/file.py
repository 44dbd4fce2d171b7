"""The SQLite file of an embedded log: its schema, connections, locking, errors, and the checksums of its rows.

Each row carries a checksum (seal) over its columns. A row that does not match its checksum raises `LogCorruptError`.
"""

from __future__ import annotations

import fcntl
import functools
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import DefiniteError, LogCorruptError, PenstockError, TransientError

__all__ = [
    "FILES",
    "RESTORE",
    "SCHEMA",
    "SOURCE",
    "check_numeric_row",
    "check_row",
    "connect",
    "damaged",
    "lock",
    "seal",
    "tally",
    "transaction",
    "translate_errors",
    "unlock",
]

_FORMAT = 8
SCHEMA = f"""
CREATE TABLE frontier (
    one INTEGER PRIMARY KEY CHECK (one = 1), valid INTEGER NOT NULL, valid_at INTEGER NOT NULL,
    durable INTEGER NOT NULL, newest_at INTEGER NOT NULL, passed INTEGER NOT NULL, committed_at INTEGER,
    published_at INTEGER, last_lsn INTEGER, last_xid INTEGER, last_at INTEGER,
    edition INTEGER NOT NULL, roster INTEGER NOT NULL, pins INTEGER NOT NULL, prepared INTEGER NOT NULL,
    seal INTEGER NOT NULL);
CREATE TABLE moment (
    newest_at INTEGER PRIMARY KEY, lsn INTEGER NOT NULL, prior_at INTEGER NOT NULL, prior_lsn INTEGER NOT NULL,
    seal INTEGER NOT NULL, commits BLOB NOT NULL);
CREATE TABLE relation (
    id INTEGER PRIMARY KEY, table_id INTEGER NOT NULL, version INTEGER NOT NULL, columns BLOB NOT NULL,
    since INTEGER, seal INTEGER NOT NULL);
CREATE TABLE reach (
    table_id INTEGER PRIMARY KEY, chunks INTEGER NOT NULL, last_lsn INTEGER NOT NULL, changes INTEGER NOT NULL,
    seal INTEGER NOT NULL);
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT, table_id INTEGER NOT NULL, version INTEGER NOT NULL, number INTEGER,
    prior INTEGER, first_lsn INTEGER, last_lsn INTEGER, xid INTEGER, committed_at INTEGER, aborted BLOB,
    prepared INTEGER NOT NULL, rows INTEGER NOT NULL, changes INTEGER NOT NULL, size INTEGER NOT NULL,
    kinds INTEGER NOT NULL, unchanged INTEGER NOT NULL, checksum INTEGER NOT NULL, seal INTEGER NOT NULL);
CREATE INDEX chunk_by_lsn ON chunk (table_id, last_lsn) WHERE last_lsn IS NOT NULL;
CREATE INDEX chunk_staged ON chunk (prepared, xid) WHERE last_lsn IS NULL;
CREATE TABLE payload (chunk INTEGER PRIMARY KEY, transactions BLOB NOT NULL, images BLOB NOT NULL);
CREATE TABLE pin (reader TEXT PRIMARY KEY, at INTEGER NOT NULL, expires INTEGER, seal INTEGER NOT NULL);
CREATE TABLE failure (
    schema_name TEXT NOT NULL, table_name TEXT NOT NULL, lsn INTEGER NOT NULL, message TEXT NOT NULL,
    hint TEXT NOT NULL, code TEXT NOT NULL, seal INTEGER NOT NULL, PRIMARY KEY (schema_name, table_name));
CREATE TABLE restart (
    schema_name TEXT NOT NULL, table_name TEXT NOT NULL, lsn INTEGER NOT NULL, generation INTEGER NOT NULL,
    seal INTEGER NOT NULL, PRIMARY KEY (schema_name, table_name));
PRAGMA user_version = {_FORMAT};
"""
FILES = ("", "-wal", "-shm")
SOURCE = "the source"
_FULL_DISK = "Free some space and restart. No data is lost: Postgres keeps all WAL that was not confirmed."
_WAL_BYTES = 64 << 20
_PATIENCE_SECONDS = 30


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open a log; only mode ``rwc`` creates the file, which is not a log until it has a format version."""
    with translate_errors(path):
        uri = f"{path.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_PATIENCE_SECONDS)
        try:
            _configure(db)
            if _has_format(db, path, may_be_empty=mode == "rwc"):
                _check_schema(db, path)
        except BaseException:
            db.close()
            raise
        return db


@contextmanager
def transaction(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Run the body in one SQLite transaction."""
    with translate_errors(path):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Convert SQLite errors (full or failing disk, damaged file, lock timeout) to Penstock errors."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.ProgrammingError) and not hasattr(error, "sqlite_errorcode"):
            raise  # raised by Python's sqlite3 for wrong use, for example after `close`
        raise _translated(error, path) from error
    except UnicodeDecodeError as error:  # SQLite's message quotes the damaged text
        raise damaged(path, "could not read its schema") from error


def lock(path: Path) -> int:
    """Acquire the writer lock of a log and return its handle; `unlock` releases it."""
    handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(handle, 32, 0).decode() or "unknown"
        os.close(handle)
        message = f"the change log {path} already has a writer (pid {owner})"
        raise DefiniteError(message, "Stop that process, or use another home.") from error
    os.ftruncate(handle, 0)
    os.pwrite(handle, str(os.getpid()).encode(), 0)
    return handle


def unlock(handle: int) -> None:
    """Release the writer lock; closing is not enough, because a forked child shares the handle until it calls exec."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)


def _configure(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA page_size = 16384")
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 4000")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    db.execute("PRAGMA cell_size_check = ON")
    db.execute("PRAGMA secure_delete = OFF")  # some builds overwrite every page that retention frees with zeros


def _translated(error: sqlite3.DatabaseError, path: Path) -> PenstockError:
    """Return the Penstock error for an SQLite error; all statements are fixed, so an unexpected error means damage."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        return DefiniteError(f"the disk of {path.parent} is full or failing: {error}", _FULL_DISK)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        message = f"could not lock the change log {path} within {_PATIENCE_SECONDS} seconds: {error}"
        return TransientError(message, "Run lsof on that file to find the process that has it open.")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        message = f"the change log {path} cannot be opened: {error}"
        return DefiniteError(message, "Check that the home is complete and that this user may write to it.")
    return damaged(path, str(error))


def _has_format(db: sqlite3.Connection, path: Path, *, may_be_empty: bool) -> bool:
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found == 0 and may_be_empty:
        return False
    if found == 0:
        message = f"{path} is not a change log"
        raise DefiniteError(message, "Restore the home from a backup, or use another home.")
    if found != _FORMAT:
        message = f"the change log {path} has format {found}, but this version of Penstock supports format {_FORMAT}"
        hint = "Use the version of Penstock that wrote it, or drop the source and create it again."
        raise DefiniteError(message, hint)
    return True


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    if _schema_texts(db) != _expected_schema_texts():
        raise damaged(path, "its schema differs from the one that was created")


def _schema_texts(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
    return db.execute(query).fetchall()


@functools.cache
def _expected_schema_texts() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _schema_texts(db)


RESTORE = "Restore the home from a backup, or drop the source and create it again."


def seal(*values: Any) -> int:
    """Return the CRC-32 over the values of a row.

    It is computed from their `repr`, which distinguishes types, because a damaged row may contain any type. The `repr`
    of integers, bytes and None is the same in every Python version; strings are encoded as tagged bytes.
    """
    return _sum(tuple(map(_plain, values)))


def _plain(value: Any) -> Any:
    """Return a value as SQLite returns it: a position is stored as an integer."""
    if isinstance(value, int):
        return int(value)
    return ("text", value.encode()) if isinstance(value, str) else value


def tally(seals: Iterable[int]) -> int:
    """Return the sum of these seals, which reveals whether one is missing or duplicated."""
    return sum(each + (1 << 32) for each in seals)


def check_row(row: tuple[Any, ...], what: str, path: Path) -> tuple[Any, ...]:
    """Return the values of a row without its last column, the seal; raise `LogCorruptError` if they do not match it."""
    check_numeric_row(tuple(map(_plain, row)), what, path)
    return row[:-1]


def check_numeric_row(row: tuple[Any, ...], what: str, path: Path) -> tuple[Any, ...]:
    """Do the same as `check_row`, in half the time, for a row without text columns."""
    values = row[:-1]
    if _sum(values) != row[-1]:
        raise damaged(path, f"the row of {what} fails its checksum")
    return values


def _sum(values: tuple[Any, ...]) -> int:
    return zlib.crc32(repr(values).encode())


def damaged(path: Path, what: str) -> LogCorruptError:
    """Return the error for a file that does not contain what was written to it."""
    return LogCorruptError(f"the change log {path} is damaged: {what}", RESTORE)
