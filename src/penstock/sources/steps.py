"""Steps: transactions that a kind makes of rows, and how they become chunks of the change log.

Rows come in Arrow batches, each with what it shows of a row (see `penstock.model.Image`). Positions of such a source
are plain numbers, one for each transaction; ordinals count the changes in a transaction, over all tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.frames import stored_schema
from penstock.changelog.interface import Chunk, transaction_schema
from penstock.errors import DefiniteError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.sources.row_tables import fitted

__all__ = ["Changes", "Numbering", "Step", "deleted", "inserted", "upserted"]

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
