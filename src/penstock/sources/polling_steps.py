"""Steps of a polling source: its transactions, their conversion to chunks of the change log, and its progress notes.

Rows come in Arrow batches, each with the kind of its row images (see `penstock.model.Image`). Positions are integers,
one per transaction; ordinals number the changes of a transaction across all tables.

Notes store the progress of an instance in the upstream data, consistent with the log although in another file::

    note(8, progress at 8) ─▶ log: publish up to 8 ─▶ note(9, …) ─▶ log: publish up to 9 ─▶ …

The log alone determines the position of a source. The notes of a step are written *before* the step is published, with
the position that the step leads to. A restart keeps the notes up to the log's `durable` and deletes the others: their
steps were never published. Therefore no crash, between the two writes or during either, can make them disagree.

Every step has a note, even if that only records its position. If the note of `durable` is missing, the notes do not
belong to this log, and the progress is unknown: that is an error, and never treated as a new start.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.chunk_codec import stored_schema
from penstock.changelog.interface import Chunk, transaction_schema
from penstock.errors import DefiniteError, TransientError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.private_file import create_folder
from penstock.sources.row_tables import fitted

__all__ = ["Changes", "Notes", "Numbering", "Step", "deleted", "inserted", "upserted"]

_TRANSACTIONS = transaction_schema()
_UNCHANGED = pa.list_(pa.field("item", pa.int32(), nullable=False))


@dataclass(frozen=True)
class Changes:
    """Changes of one table, in order: one image per row; the old row of an update directly precedes the new one."""

    table: TableName
    rows: pa.RecordBatch
    images: Image | npt.NDArray[np.int8]
    """The kind of all images, or of each one."""
    transactions: npt.NDArray[np.int64] | None = None
    """The index of each row's transaction in its step, from 0, in ascending order; None if all are 0."""
    stands_for: int | None = None
    """The number of changes that the rows stand for, if they are not the changes themselves."""


@dataclass(frozen=True)
class Step:
    """Changes that become visible atomically: usually one transaction; and the notes of the instance."""

    changes: Iterable[Changes]
    """Iterated once; a transaction may be larger than memory."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    transactions: int = 1
    committed_at: int | None = None
    """In microseconds since 1970; None for the present time."""
    schemas: Sequence[TableSchema] = ()
    """The versions of tables that begin with the step: each adds columns to the version before it."""


def inserted(table: TableName, rows: pa.RecordBatch) -> Changes:
    """Return changes that insert rows."""
    return Changes(table, rows, Image.INSERTED)


def upserted(table: TableName, rows: pa.RecordBatch) -> Changes:
    """Return changes that insert rows, or replace the rows with the same keys."""
    return Changes(table, rows, Image.UPDATED)


def deleted(table: TableName, rows: pa.RecordBatch) -> Changes:
    """Return changes that delete rows; only the key columns are needed."""
    return Changes(table, rows, Image.DELETED_KEY)


def _fitting(changes: Changes, schema: TableSchema) -> pa.RecordBatch:
    """Return the rows cast to the columns of their table."""
    try:
        return fitted(changes.rows, schema.columns)
    except pa.ArrowException:
        message = f"the source produced rows that do not match the columns of table {changes.table}"
        raise DefiniteError(
            message, "This is a defect in the implementation of the source kind: report it to its maintainer."
        ) from None


class Numbering:
    """Creates the chunks of one step: assigns positions and times to transactions, and ordinals to changes."""

    def __init__(self, after: Lsn, transactions: int, committed_at: int) -> None:
        self._after = after
        self._time = committed_at
        self._next = np.zeros(transactions, np.int64)

    def chunk(self, changes: Changes, schema: TableSchema, version: int, *, staged: bool = False) -> Chunk:
        """Return the next chunk of a table; position and time of a staged chunk are set at its commit."""
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
        transactions = self._transactions(own, staged)
        return Chunk(schema.table, version, transactions, images, mask, unchanged=False, stands_for=changes.stands_for)

    def _ordinals(
        self,
        kinds: npt.NDArray[np.int8],
        of: npt.NDArray[np.int64],
        own: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Continue the numbering of changes in each transaction; the two images of an update are one change."""
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
"""The name of the note in which each step stores its generation."""
_OLDER = """
DELETE FROM note WHERE position < (SELECT max(position) FROM note AS newer WHERE newer.name = note.name)
"""


class Notes:
    """Values by name and log position, in a SQLite file in the instance's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "notes.db"
        with self._storing():
            create_folder(folder)
            self._db = sqlite3.connect(self._path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(_TABLE)

    def begin(self, generation: int, at: Lsn) -> None:
        """Delete all notes: the history of the tables begins after this position, in this generation."""
        with self._transaction():
            self._db.execute("DELETE FROM note")
            self._write(at, {_STEP: generation})

    def recall(self, generation: int, at: Lsn) -> dict[str, Any]:
        """Return the notes up to a position, and delete those after it."""
        with self._transaction():
            self._db.execute("DELETE FROM note WHERE position > ?", (at,))
            self._db.execute(_OLDER)
            found = self._db.execute("SELECT name, position, value FROM note").fetchall()
        values = {name: json.loads(value) for name, _, value in found}
        if (_STEP, at, json.dumps(generation)) not in found:
            message = f"progress at position {at} is unknown: {self._path} is missing, or does not belong to this log"
            raise DefiniteError(
                message, "Run ALTER SOURCES … RETRY TABLE …; to read all data again, or restore the home."
            )
        del values[_STEP]
        return values

    def note(self, generation: int, at: Lsn, values: Mapping[str, Any]) -> None:
        """Store the notes of the step to a position, before the step is published."""
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
            message = f"could not access {self._path}: {error}"
            raise TransientError(message, "Check the free disk space and the permissions of the folder.") from error
        except sqlite3.DatabaseError as error:
            message = f"{self._path} is damaged: {error}"
            raise DefiniteError(
                message, "Remove it and run ALTER SOURCES … RETRY TABLE …; or restore the home."
            ) from error
