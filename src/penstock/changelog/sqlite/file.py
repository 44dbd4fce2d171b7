"""The file of an embedded log: its tables, how it is opened, and what its errors mean."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from penstock.changelog.interface import Frontiers
from penstock.errors import DefiniteError, HistoryGone, LogCorrupt
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = [
    "FILES",
    "RESTORE",
    "SCHEMA",
    "SOURCE",
    "connect",
    "disk",
    "frontiers_of",
    "history_gone",
    "lock",
    "microseconds",
    "seal",
    "writing",
]

_FORMAT = 3
SCHEMA = f"""
CREATE TABLE frontier (
    one INTEGER PRIMARY KEY CHECK (one = 1), valid INTEGER NOT NULL, valid_at INTEGER NOT NULL,
    durable INTEGER NOT NULL, newest_at INTEGER NOT NULL, committed_at INTEGER, published_at INTEGER);
CREATE TABLE moment (lsn INTEGER PRIMARY KEY, newest_at INTEGER NOT NULL);
CREATE INDEX moment_by_time ON moment (newest_at);
CREATE TABLE relation (
    id INTEGER PRIMARY KEY, schema_name TEXT NOT NULL, table_name TEXT NOT NULL, version INTEGER NOT NULL,
    columns BLOB NOT NULL, since INTEGER, UNIQUE (schema_name, table_name, version));
CREATE TABLE chunk (
    id INTEGER PRIMARY KEY AUTOINCREMENT, relation INTEGER NOT NULL REFERENCES relation, first_lsn INTEGER,
    last_lsn INTEGER, xid INTEGER, committed_at INTEGER, aborted BLOB, prepared INTEGER NOT NULL DEFAULT 0,
    rows INTEGER NOT NULL, size INTEGER NOT NULL, kinds INTEGER NOT NULL, unchanged INTEGER NOT NULL,
    checksum INTEGER NOT NULL, seal INTEGER);
CREATE INDEX chunk_by_lsn ON chunk (relation, last_lsn);
CREATE INDEX chunk_by_age ON chunk (last_lsn);
CREATE INDEX chunk_staged ON chunk (xid) WHERE last_lsn IS NULL;
CREATE TABLE payload (chunk INTEGER PRIMARY KEY, transactions BLOB NOT NULL, images BLOB NOT NULL);
CREATE TABLE pin (reader TEXT PRIMARY KEY, at INTEGER NOT NULL, expires INTEGER);
CREATE TABLE failure (
    schema_name TEXT NOT NULL, table_name TEXT NOT NULL, lsn INTEGER NOT NULL, message TEXT NOT NULL,
    remedy TEXT NOT NULL, PRIMARY KEY (schema_name, table_name));
CREATE TABLE restart (
    schema_name TEXT NOT NULL, table_name TEXT NOT NULL, lsn INTEGER NOT NULL, generation INTEGER NOT NULL,
    PRIMARY KEY (schema_name, table_name));
PRAGMA user_version = {_FORMAT};
"""
FILES = ("", "-wal", "-shm")
SOURCE = "the source"
RESTORE = "Restore the home from a backup, or drop the source and capture it afresh."
_FULL_DISK = "Free some space and start again; nothing is lost: Postgres keeps what was not yet confirmed."
_WAL_BYTES = 64 << 20


def connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open a log; only mode ``rwc`` makes one, which is not a log before it has a format."""
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30)
    except sqlite3.OperationalError as error:
        raise _unusable(path, error) from error
    try:
        db.execute("PRAGMA page_size = 16384")
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA wal_autocheckpoint = 4000")
        db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        _check_format(db, path, empty=mode == "rwc")
    except sqlite3.DatabaseError as error:
        db.close()
        raise _unusable(path, error) from error
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def writing(db: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Do what follows in one SQLite transaction."""
    with disk(path):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn SQLite's word for a full or failing disk, or for a damaged file, into ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error) or "I/O" in str(error) or "disk" in str(error):
            message = f"the disk under {path.parent} is full or failing: {error}"
            raise DefiniteError(message, _FULL_DISK) from error
        raise
    except sqlite3.DatabaseError as error:
        if "malformed" in str(error) or "not a database" in str(error):
            message = f"the change log {path} is damaged: {error}"
            raise LogCorrupt(message, RESTORE) from error
        raise


def lock(path: Path) -> int:
    """Become the one writer of a log, until the handle that is returned is closed."""
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


def seal(*described: int | bytes | None) -> int:
    """CRC-32 over what a chunk's row says of it."""
    found = 0
    for value in described:
        told = b"n" if value is None else b"b" + value if isinstance(value, bytes) else b"i" + struct.pack("<q", value)
        found = zlib.crc32(told, found)
    return found


def frontiers_of(db: sqlite3.Connection) -> Frontiers:
    """Return where a log stands."""
    row = db.execute("SELECT valid, durable, committed_at, published_at FROM frontier").fetchone()
    return Frontiers(Lsn(row[0]), Lsn(row[1]), _moment(row[2]), _moment(row[3]))


def history_gone(what: TableName | str, after: Lsn | datetime, valid: Lsn) -> HistoryGone:
    """Say that a range begins too early."""
    message = f"the log's history of {what} begins at {valid}: what came after {after} is no longer in it"
    return HistoryGone(message, "Start from that position or a later one, or anew from a fresh copy (earliest).")


def microseconds(moment: datetime) -> int:
    """Return a moment as microseconds since 1970, exactly."""
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1e6, UTC)


def _unusable(path: Path, error: sqlite3.Error) -> DefiniteError:
    return DefiniteError(
        f"the change log {path} cannot be opened: {error}", "Check that the home is complete and writable."
    )


def _check_format(db: sqlite3.Connection, path: Path, *, empty: bool) -> None:
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found == 0 and empty:
        return
    if found == 0:
        message = f"{path} is not a change log"
        raise DefiniteError(message, "Restore the home from a backup, or use another one.")
    if found != _FORMAT:
        message = f"the change log {path} has format {found}; this Penstock knows format {_FORMAT}"
        remedy = "Use the version of Penstock that wrote it, or drop the source and capture it afresh."
        raise DefiniteError(message, remedy)
