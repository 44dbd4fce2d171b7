"""Where an embedded log is: a file of the home."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from penstock.changelog.interface import ChangeLog
from penstock.changelog.sqlite.file import FILES, SCHEMA, connect, disk, writing
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
        """Make the file, unless it is there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with disk(self.path), closing(connect(self.path, "rwc")) as db, writing(db, self.path):
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in SCHEMA.split(";"):
                    db.execute(statement)
                create_frontier(db, start, time.time_ns() // 1000)

    def remove(self) -> None:
        """Delete the file and those that stand beside it."""
        for suffix in FILES:
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.path.with_suffix(".lock").unlink(missing_ok=True)

    def exists(self) -> bool:
        """Say whether the file is there."""
        return self.path.exists()

    def writer(self) -> SqliteLogWriter:
        """Become its writer."""
        return SqliteLogWriter(self.path)

    def reader(self) -> SqliteLogReader:
        """Open it."""
        return SqliteLogReader(self.path)

    def __str__(self) -> str:
        """Its path."""
        return str(self.path)
