"""Runs of small chunks, read as one batch.

A log under a load of small transactions has a chunk for each, of one or two rows. Unpacking them one by one costs some
hundred times what their rows cost. Stored chunks are Arrow messages, so a run of them behind one schema message is an
Arrow stream, which Arrow reads at once.

A run has chunks of one version, none of them staged: those are large, or rare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.frames import StoredChunk, stored_schema
from penstock.changelog.interface import ChunkRef, Extent, transaction_schema
from penstock.model import image_schema

__all__ = ["runs", "unpack_run"]

_ROWS, _BYTES = 8192, 1 << 20
"""A run ends when it has as much."""
_IN_THIS_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow stream."""


def runs(chunks: Sequence[ChunkRef]) -> Iterator[list[ChunkRef]]:
    """Divide chunks, in order, into runs; what cannot be joined is a run of one."""
    run: list[ChunkRef] = []
    rows, size = 0, 0
    for chunk in chunks:
        apart = chunk.staged is not None or (run and (run[-1].staged is not None or run[-1].version != chunk.version))
        if run and (apart or rows + chunk.rows > _ROWS or size + chunk.size > _BYTES):
            yield run
            run, rows, size = [], 0, 0
        run.append(chunk)
        rows, size = rows + chunk.rows, size + chunk.size
    if run:
        yield run


def unpack_run(run: Sequence[ChunkRef], stored: Sequence[StoredChunk], extent: Extent) -> pa.RecordBatch:
    """Return the images of a run that lie in the extent."""
    if len(run) == 1:
        return stored[0].within(run[0], extent)
    columns = extent.schemas[run[0].version].columns
    transactions = _joined(transaction_schema(), [chunk.transactions for chunk in stored])
    images = _joined(stored_schema(columns), [chunk.images for chunk in stored])
    told = transactions.combine_chunks()
    (batch,) = images.combine_chunks().to_batches()
    begins = np.repeat(_begins(transactions, len(run)), [chunk.rows for chunk in run])
    place = pa.array(batch.column(0).to_numpy() + begins)
    shared = [pc.take(told.column(i).chunk(0), place) for i in range(3)]
    ordinal, image, unchanged, row = batch.columns[1:]
    arrays = [shared[0], ordinal, image, shared[1], shared[2], unchanged, row]
    return _within(pa.RecordBatch.from_arrays(arrays, schema=image_schema(columns)), extent)


def _joined(schema: pa.Schema, messages: Sequence[pa.Buffer | bytes]) -> pa.Table:
    stream = b"".join([schema.serialize(), *messages, _END])
    return pa.ipc.open_stream(pa.py_buffer(stream), options=_IN_THIS_THREAD).read_all()


def _begins(transactions: pa.Table, chunks: int) -> npt.NDArray[np.int64]:
    """Return where the transactions of each chunk begin among those of all."""
    if len(transactions) == chunks:
        return np.arange(chunks)
    return np.cumsum([0, *(len(part) for part in transactions.column(0).chunks[:-1])])


def _within(images: pa.RecordBatch, extent: Extent) -> pa.RecordBatch:
    lsns = images.column(0).to_numpy()
    first, last = (int(np.searchsorted(lsns, lsn, side="right")) for lsn in (extent.after, extent.upto))
    return images if first == 0 and last == len(lsns) else images.slice(first, max(0, last - first))
