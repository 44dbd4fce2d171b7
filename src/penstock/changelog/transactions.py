"""Read whole transactions, in commit order, across several tables.

::

    extents of all tables in (a, b]          b is chosen so that the window fits into memory
      └─▶ images ─▶ changes, per table
            └─▶ split by LSN and combined across tables: one `Transaction` per LSN

All changes of a transaction have the same position, so a window that ends at any position contains only whole
transactions. Memory is bounded by one window plus the largest transaction, which is always returned as a whole. The
window boundaries come from the chunk descriptions of the log; only the chunks of one window are read at a time. The
range is first divided into steps of a fixed number of WAL bytes, so that the descriptions in memory are bounded too.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.chunk_codec import widened
from penstock.changelog.interface import ChangeLogReader, Extent
from penstock.changelog.user_rows import changes
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["Transaction", "transactions"]

_WAL_STEP, _WINDOW_BYTES = 256 << 20, 16 << 20


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
    for extents in _steps(reader, sorted(tables), after, upto):
        for window in _windows(extents):
            yield from _assemble(reader, window)


def _steps(reader: ChangeLogReader, tables: Collection[TableName], after: Lsn, upto: Lsn) -> Iterator[list[Extent]]:
    """Yield the extents of consecutive parts of the range; the step size doubles while there are no changes."""
    width = _WAL_STEP
    while after < upto:
        end = Lsn(min(upto, after + width))
        extents = [extent for table in tables if (extent := reader.extent(table, after, end)).chunks]
        if extents and width > _WAL_STEP:
            after = Lsn(max(after, min(extent.chunks[0].first for extent in extents) - 1))
            width = _WAL_STEP
            continue
        yield extents
        after, width = end, width * 2 if not extents else width


def _windows(extents: list[Extent]) -> Iterator[list[Extent]]:
    """Split extents of the same range at positions that are about `_WINDOW_BYTES` apart."""
    if not extents:
        return
    after, upto, size = extents[0].after, extents[0].upto, 0
    for chunk in sorted((chunk for extent in extents for chunk in extent.chunks), key=lambda chunk: chunk.last):
        size += chunk.size
        if size >= _WINDOW_BYTES and after < chunk.last < upto:
            yield _clip(extents, after, chunk.last)
            after, size = chunk.last, 0
    yield _clip(extents, after, upto)


def _clip(extents: list[Extent], after: Lsn, upto: Lsn) -> list[Extent]:
    found = []
    for extent in extents:
        chunks = tuple(chunk for chunk in extent.chunks if chunk.last > after and chunk.first <= upto)
        if chunks:
            found.append(replace(extent, after=after, upto=upto, chunks=chunks))
    return found


def _assemble(reader: ChangeLogReader, window: list[Extent]) -> Iterator[Transaction]:
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
