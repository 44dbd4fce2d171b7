"""What an instance notes of the outside, beside the log and yet in step with it.

::

    note(8, what is taken in then) ─▶ log: publish up to 8 ─▶ note(9, …) ─▶ log: publish up to 9 ─▶ …

The log alone says how far a source is. Notes are written *before* the step that they belong to, each with the position
to which that leads. Whoever starts again keeps those up to the log's `durable` and forgets the others: their step never
was. So neither a crash between the two writes nor one within either can make them disagree.

Every step is noted, if only by its position. Where the note of `durable` is missing, the notes are not those of this
log, and nothing can be known of what was taken in: that is an error, and never a beginning.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn

__all__ = ["Notes"]

_TABLE = (
    "CREATE TABLE IF NOT EXISTS note (name TEXT, position INTEGER, value TEXT NOT NULL, PRIMARY KEY (name, position))"
)
_STEP = ""
"""The name under which each step notes its generation."""
_OLDER = """
DELETE FROM note WHERE position < (SELECT max(position) FROM note AS newer WHERE newer.name = note.name)
"""


class Notes:
    """Values by name, as of a position of the log; in the folder that is the instance's own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "notes.db"
        with self._storing():
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)

    def begin(self, generation: int, at: Lsn) -> None:
        """Forget everything: the history of the tables begins after this position, in this generation."""
        with self._transaction():
            self._db.execute("DELETE FROM note")
            self._write(at, {_STEP: generation})

    def recall(self, generation: int, at: Lsn) -> dict[str, Any]:
        """Return what was noted up to a position, and forget what was noted beyond it."""
        with self._transaction():
            self._db.execute("DELETE FROM note WHERE position > ?", (at,))
            self._db.execute(_OLDER)
            found = self._db.execute("SELECT name, position, value FROM note").fetchall()
        values = {name: json.loads(value) for name, _, value in found}
        if (_STEP, at, json.dumps(generation)) not in found:
            message = f"what was taken in up to {at} is not known: {self._path} is missing, or not of this log"
            raise DefiniteError(message, "Capture the table anew: ALTER SOURCES … RETRY TABLE …; or restore the home.")
        del values[_STEP]
        return values

    def note(self, generation: int, at: Lsn, values: Mapping[str, Any]) -> None:
        """Write down what the step to a position takes in, before it is taken."""
        with self._transaction():
            self._write(at, {**values, _STEP: generation})

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _write(self, at: Lsn, values: Mapping[str, Any]) -> None:
        rows = [(name, int(at), json.dumps(value)) for name, value in values.items()]
        self._db.executemany("INSERT OR REPLACE INTO note VALUES (?, ?, ?)", rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._storing():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.OperationalError) as error:
            message = f"{self._path} cannot be used: {error}"
            raise TransientError(message, "Is the disk full, or the folder not writable?") from error
        except sqlite3.DatabaseError as error:
            message = f"{self._path} is damaged: {error}"
            raise DefiniteError(message, "Remove it, and capture the table anew; or restore the home.") from error
