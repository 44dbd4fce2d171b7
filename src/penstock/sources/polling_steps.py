"""Steps: transactions that a kind makes of rows, and how they become chunks of the change log.

Rows come in Arrow batches, each with what it shows of a row (see `penstock.model.Image`). Positions of such a source
are plain numbers, one for each transaction; ordinals count the changes in a transaction, over all tables.

What an instance notes of the outside, beside the log and yet in step with it.

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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.frames import stored_schema
from penstock.changelog.interface import Chunk, transaction_schema
from penstock.errors import DefiniteError, TransientError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.row_tables import fitted

__all__ = ["Changes", "Notes", "Numbering", "Step", "deleted", "inserted", "upserted"]

_TRANSACTIONS = transaction_schema()
_UNCHANGED = pa.list_(pa.field("item", pa.int32(), nullable=False))


@dataclass(frozen=True)
class Changes:
    """Changes of one table, in order: an image per row; the old row of an update stands right before the new one."""

    table: TableName
    rows: pa.RecordBatch
    images: Image | npt.NDArray[np.int8]
    """What all of them are, or each of them is."""
    transactions: npt.NDArray[np.int64] | None = None
    """Of which transaction of its step each row is, from 0, never falling; None: all are of the first."""


@dataclass(frozen=True)
class Step:
    """What becomes visible at once: one transaction, mostly, and what the instance notes with it (see `notes`)."""

    changes: Iterable[Changes]
    """Read once, when the step is taken; one transaction may be larger than memory."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    transactions: int = 1
    committed_at: int | None = None
    """In microseconds since 1970; None: now."""


def inserted(table: TableName, rows: pa.RecordBatch) -> Changes:
    """Rows that are new."""
    return Changes(table, rows, Image.INSERTED)


def upserted(table: TableName, rows: pa.RecordBatch) -> Changes:
    """Rows that stand at their key from now on, whether or not there was one."""
    return Changes(table, rows, Image.UPDATED)


def deleted(table: TableName, rows: pa.RecordBatch) -> Changes:
    """Rows that are gone; only the columns of the key are needed."""
    return Changes(table, rows, Image.DELETED_KEY)


def _fitting(changes: Changes, schema: TableSchema) -> pa.RecordBatch:
    """Return the rows with the columns of their table."""
    try:
        return fitted(changes.rows, schema.columns)
    except pa.ArrowException:
        message = f"rows came for {changes.table} that do not fit its columns"
        raise DefiniteError(
            message, "Whoever made this kind of source should know: its rows are not as it said."
        ) from None


class Numbering:
    """Makes the chunks of one step: transactions get positions and times, changes get their ordinals."""

    def __init__(self, after: Lsn, transactions: int, committed_at: int) -> None:
        self._after = after
        self._time = committed_at
        self._next = np.zeros(transactions, np.int64)

    def chunk(self, changes: Changes, schema: TableSchema, version: int, *, staged: bool = False) -> Chunk:
        """Make the next chunk of a table; of one that is staged, position and time are told later."""
        count = len(changes.rows)
        kinds = np.full(count, changes.images, np.int8) if isinstance(changes.images, Image) else changes.images
        of = np.zeros(count, np.int64) if changes.transactions is None else changes.transactions
        own, place, sizes = np.unique(of, return_inverse=True, return_counts=True)
        row = pa.StructArray.from_arrays(_fitting(changes, schema).columns, fields=list(schema.columns))
        images = pa.RecordBatch.from_arrays(
            [
                pa.array(place.astype(np.int32)),
                pa.array(self._ordinals(kinds, of, own, sizes)),
                pa.array(kinds),
                pa.nulls(count, _UNCHANGED),
                row,
            ],
            schema=stored_schema(schema.columns),
        )
        mask = int(np.bitwise_or.reduce(np.int64(1) << kinds.astype(np.int64)))
        return Chunk(schema.table, version, self._transactions(own, staged), images, mask, unchanged=False)

    def _ordinals(
        self,
        kinds: npt.NDArray[np.int8],
        of: npt.NDArray[np.int64],
        own: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Number the changes of each transaction on; the two images of an update are one change."""
        old = (kinds == Image.BEFORE) | (kinds == Image.BEFORE_KEY)
        change = np.cumsum(np.concatenate([[True], ~old[:-1]])) - 1
        begun = change[np.searchsorted(of, own)]
        ended = change[np.searchsorted(of, own, side="right") - 1]
        ordinals: npt.NDArray[np.int64] = change + np.repeat(self._next[own] - begun, sizes)
        self._next[own] += ended - begun + 1
        return ordinals

    def _transactions(self, own: npt.NDArray[np.int64], staged: bool) -> pa.RecordBatch:
        xids = own + 1 + int(self._after)
        lsns = np.full(len(own), -1, np.int64) if staged else xids
        times = pa.array(np.full(len(own), -1 if staged else self._time, np.int64)).view(_TRANSACTIONS.field(2).type)
        return pa.RecordBatch.from_arrays([pa.array(lsns), pa.array(xids), times], schema=_TRANSACTIONS)


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
