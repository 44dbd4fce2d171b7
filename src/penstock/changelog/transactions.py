"""Read whole transactions, in commit order, across several tables.

::

    a window of the log                      extents of all tables in (a, b]: see `windows`
      └─▶ images ─▶ changes, per table
            └─▶ split by LSN and combined across tables: one `Transaction` per LSN

Memory is bounded by one window plus the largest transaction, which is always returned as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.chunk_codec import widened
from penstock.changelog.interface import ChangeLogReader, Extent
from penstock.changelog.user_rows import changes
from penstock.changelog.windows import windows
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Transaction", "transactions"]

_WINDOW_BYTES = 16 << 20


@dataclass(frozen=True)
class Transaction:
    """A committed transaction, with all its changes to the selected tables."""

    lsn: Lsn
    """Its position: the end of its commit record."""
    xid: int
    committed_at: datetime
    tables: dict[str, pa.Table]
    """By name, like ``public.orders``, in that order: one row per change, as `penstock.changelog.user_rows.changes`."""
    shard: str | None = None
    """For a sharded source, the shard in which it committed; `lsn` and `xid` are those of that shard."""


def transactions(
    reader: ChangeLogReader, tables: Collection[TableName], after: Lsn, upto: Lsn
) -> Iterator[Transaction]:
    """Yield the transactions in (after, upto] that changed these tables, in commit order."""
    for window in windows(reader, tables, after, upto, _WINDOW_BYTES):
        yield from _assemble(reader, window.extents)


def _assemble(reader: ChangeLogReader, window: Sequence[Extent]) -> Iterator[Transaction]:
    found: dict[Lsn, dict[str, pa.Table]] = {}
    for extent in window:
        for batch in _changes(reader, extent):
            for lsn, rows in _by_transaction(batch):
                found.setdefault(lsn, {})[str(extent.table)] = pa.Table.from_batches([rows])
    for lsn in sorted(found):
        tables = found.pop(lsn)
        first = next(iter(tables.values()))
        yield Transaction(lsn, first["_xid"][0].as_py(), _moment(first["_committed_at"][0]), tables)


def _changes(reader: ChangeLogReader, extent: Extent) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a table, one batch per version; a transaction with two versions is in the later batch."""
    pending: pa.RecordBatch | None = None
    for _, batches in itertools.groupby(reader.read(extent), key=lambda batch: batch.schema):
        images = _concat(list(batches))
        if pending is not None:
            begins = int(np.searchsorted(pending.column("_lsn").to_numpy(), images.column("_lsn")[0].as_py()))
            columns = pa.schema(list(images.schema.field("row").type))
            images = _concat([widened(pending.slice(begins), columns, extent.table), images])
            if begins:
                yield changes(_concat([pending.slice(0, begins)]))
        pending = images
    if pending is not None:
        yield changes(pending)


def _concat(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches: the two images of a change may be in different batches."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _by_transaction(batch: pa.RecordBatch) -> Iterator[tuple[Lsn, pa.RecordBatch]]:
    lsns = batch.column("_lsn")
    differs = pc.not_equal(lsns.slice(1), lsns.slice(0, len(lsns) - 1)).to_numpy(zero_copy_only=False)
    begins = [0, *(np.flatnonzero(differs) + 1).tolist(), len(lsns)]
    for first, end in itertools.pairwise(begins):
        yield Lsn.parse(lsns[first].as_py()), batch.slice(first, end - first)


def _moment(committed_at: pa.Scalar) -> datetime:
    at: datetime = committed_at.as_py()
    return at.astimezone(UTC)
