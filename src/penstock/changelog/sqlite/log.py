"""The location of an embedded log: a file in the home."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.file import FILES, SCHEMA, connect, transaction, translate_errors
from penstock.changelog.sqlite.frontier import create_frontier
from penstock.changelog.sqlite.reader import SqliteLogReader
from penstock.changelog.sqlite.writer import SqliteLogWriter
from penstock.positions import Lsn

__all__ = ["SqliteLog"]


@dataclass(frozen=True)
class SqliteLog(ChangeLog):
    """The log in the file at `path`."""

    path: Path

    def create(self, start: Lsn) -> None:
        """Create the file, unless it exists."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with translate_errors(self.path), closing(connect(self.path, "rwc")) as db, transaction(db, self.path):
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                create_frontier(db, start, time.time_ns() // 1000)

    def remove(self) -> None:
        """Delete the file and the files that SQLite and the lock create next to it."""
        for suffix in FILES:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)

    def exists(self) -> bool:
        """Return whether the file exists."""
        return self.path.exists()

    def writer(self) -> SqliteLogWriter:
        """Open the log for writing."""
        return SqliteLogWriter(self.path)

    def reader(self) -> SqliteLogReader:
        """Open the log for reading."""
        return SqliteLogReader(self.path)

    def __str__(self) -> str:
        """Return the path."""
        return str(self.path)
