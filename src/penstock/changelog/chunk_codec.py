"""Encode chunks as bytes and decode them to images: Arrow IPC messages without their schema.

Under a load of small transactions, a log has one chunk of one or two rows per transaction. Decoding each chunk
separately costs about a hundred times as much as decoding its rows. Stored chunks are Arrow messages, so a schema
message followed by a run of chunks is an Arrow stream, which Arrow decodes at once.

All chunks of a run have the same schema version. Chunks that were staged are not combined: they are large or rare.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.interface import Chunk, ChunkRef, Extent, is_change, transaction_schema
from penstock.errors import DefiniteError, LogCorruptError
from penstock.model import Image, TableName, image_schema, missing_value
from penstock.positions import Lsn

__all__ = ["StoredChunk", "checksum", "runs", "stored_schema", "unpack_run", "widened"]

_TRANSACTIONS = transaction_schema()


def stored_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of a stored chunk: images with ``_tx`` in place of the columns of their transaction."""
    images = image_schema(columns)
    return pa.schema([pa.field("_tx", pa.int32(), nullable=False), *(images.field(n) for n in _IMAGE_COLUMNS)])


_IMAGE_COLUMNS = ("_ordinal", "_image", "_unchanged", "row")


def checksum(transactions: pa.Buffer | bytes, images: pa.Buffer | bytes) -> int:
    """Return the CRC-32 over both parts of a stored chunk."""
    return zlib.crc32(images, zlib.crc32(transactions))


class StoredChunk:
    """The encoded bytes of a chunk."""

    def __init__(self, transactions: pa.Buffer | bytes, images: pa.Buffer | bytes) -> None:
        self.transactions = transactions
        self.images = images

    @classmethod
    def pack(cls, chunk: Chunk) -> StoredChunk:
        """Encode a chunk."""
        return cls(chunk.transactions.serialize(), chunk.images.serialize())

    def verify(self, expected: int, where: str) -> None:
        """Raise `LogCorruptError` if the bytes do not match the expected checksum."""
        if checksum(self.transactions, self.images) != expected:
            message = f"the change log is damaged: {where} fails its checksum"
            raise LogCorruptError(
                message,
                "Restore the change log from a backup, or drop the source and create it again.",
            )

    def within(self, chunk: ChunkRef, extent: Extent) -> pa.RecordBatch:
        """Return the images of this chunk that lie in the extent."""
        columns = extent.schemas[chunk.version].columns
        if chunk.staged is not None:
            return self.unpack_staged(columns, chunk.last, *chunk.staged)
        return self.unpack(columns, extent.after, extent.upto)

    def unpack(self, columns: pa.Schema, after: Lsn, upto: Lsn) -> pa.RecordBatch:
        """Return the images in (after, upto]."""
        transactions = self._transactions()
        stored = _within(self._images(columns), transactions.column(0).to_numpy(), after, upto)
        lsn, xid, committed_at = (pc.take(transactions.column(i), stored.column(0)) for i in range(3))
        return _images(stored, columns, lsn, xid, committed_at)

    def unpack_staged(
        self, columns: pa.Schema, lsn: int, xid: int, committed_at: int, aborted: bytes | None
    ) -> pa.RecordBatch:
        """Return the images of a transaction that was staged, without those of rolled-back subtransactions."""
        stored = self._images(columns)
        if aborted is not None:
            lost = np.isin(stored.column(0).to_numpy(), np.frombuffer(aborted, np.int32))
            stored = stored.filter(pa.array(~lost))
        time = pa.scalar(committed_at, pa.int64()).cast(_TRANSACTIONS.field(2).type)
        constants = (pa.scalar(lsn, pa.int64()), pa.scalar(xid, pa.int64()), time)
        return _images(stored, columns, *(pa.repeat(value, len(stored)) for value in constants))

    def without(self, columns: pa.Schema, aborted: Collection[int]) -> tuple[npt.NDArray[np.int32], int, int]:
        """Return the rows of the given subtransactions, and the number of images and of changes of the other ones."""
        xids = self._transactions().column(1).to_numpy()
        lost = np.flatnonzero(np.isin(xids, list(aborted))).astype(np.int32)
        images = self._images(columns)
        kept = np.isin(images.column(0).to_numpy(), lost, invert=True)
        changed = kept & is_change(images.column("_image").to_numpy())
        return lost, int(kept.sum()), int(changed.sum())

    def _transactions(self) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self.transactions), _TRANSACTIONS)

    def _images(self, columns: pa.Schema) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self.images), stored_schema(columns))


def widened(images: pa.RecordBatch, columns: pa.Schema, table: TableName) -> pa.RecordBatch:
    """Return images with all of `columns`: added columns have the value that earlier rows have in them."""
    row = images.column("row")
    names = [field.name for field in row.type]
    if names == columns.names:
        return images
    if names != columns.names[: len(names)]:
        message = (
            f"{table} changed its columns upstream after this reader started: it now ends with {', '.join(names[-3:])}"
        )
        raise DefiniteError(message, "Restart the query: it then reads the table with its new columns.")
    kinds = images.column("_image").to_numpy()
    whole = pa.array(np.where(_WHOLE[kinds], 0, -1), mask=~_WHOLE[kinds])
    added = [pc.take(missing_value(columns.field(i)), whole) for i in range(len(names), len(columns))]
    arrays = [*(row.field(i) for i in range(len(names))), *added]
    wide = pa.StructArray.from_arrays(arrays, fields=list(columns), mask=row.is_null())
    return pa.RecordBatch.from_arrays([*images.columns[:-1], wide], schema=image_schema(columns))


_WHOLE = np.array([image not in (Image.TRUNCATE, Image.BEFORE_KEY, Image.DELETED_KEY) for image in Image])
"""Whether an image of each kind holds a whole row."""


def _images(
    stored: pa.RecordBatch, columns: pa.Schema, lsn: pa.Array, xid: pa.Array, committed_at: pa.Array
) -> pa.RecordBatch:
    ordinal, image, unchanged, row = stored.columns[1:]
    arrays = [lsn, ordinal, image, xid, committed_at, unchanged, row]
    return pa.RecordBatch.from_arrays(arrays, schema=image_schema(columns))


def _within(stored: pa.RecordBatch, lsns: np.ndarray, after: Lsn, upto: Lsn) -> pa.RecordBatch:
    """Return the rows of the transactions in (after, upto]; transactions and rows are both in commit order."""
    first = int(np.searchsorted(lsns, after, side="right"))
    last = int(np.searchsorted(lsns, upto, side="right"))
    if first == 0 and last == len(lsns):
        return stored
    tx = stored.column(0).to_numpy()
    start = int(np.searchsorted(tx, first))
    return stored.slice(start, max(0, int(np.searchsorted(tx, last)) - start))


_ROWS, _BYTES = 8192, 1 << 20
"""A run ends when it reaches this size."""
_SINGLE_THREADED = pa.ipc.IpcReadOptions(use_threads=False)
_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end of an Arrow stream."""


def runs(chunks: Sequence[ChunkRef]) -> Iterator[list[ChunkRef]]:
    """Group chunks, in order, into runs; a chunk that cannot be combined is a run of one."""
    run: list[ChunkRef] = []
    rows, size = 0, 0
    for chunk in chunks:
        separate = chunk.staged is not None or (
            run and (run[-1].staged is not None or run[-1].version != chunk.version)
        )
        if run and (separate or rows + chunk.rows > _ROWS or size + chunk.size > _BYTES):
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
    combined = transactions.combine_chunks()
    (batch,) = images.combine_chunks().to_batches()
    begins = np.repeat(_begins(transactions, len(run)), [chunk.rows for chunk in run])
    rows = pa.array(batch.column(0).to_numpy() + begins)
    shared = [pc.take(combined.column(i).chunk(0), rows) for i in range(3)]
    ordinal, image, unchanged, row = batch.columns[1:]
    arrays = [shared[0], ordinal, image, shared[1], shared[2], unchanged, row]
    return _within_extent(pa.RecordBatch.from_arrays(arrays, schema=image_schema(columns)), extent)


def _joined(schema: pa.Schema, messages: Sequence[pa.Buffer | bytes]) -> pa.Table:
    stream = b"".join([schema.serialize(), *messages, _END])
    return pa.ipc.open_stream(pa.py_buffer(stream), options=_SINGLE_THREADED).read_all()


def _begins(transactions: pa.Table, chunks: int) -> npt.NDArray[np.int64]:
    """Return the index of each chunk's first transaction among the transactions of the run."""
    if len(transactions) == chunks:
        return np.arange(chunks)
    return np.cumsum([0, *(len(part) for part in transactions.column(0).chunks[:-1])])


def _within_extent(images: pa.RecordBatch, extent: Extent) -> pa.RecordBatch:
    lsns = images.column(0).to_numpy()
    first, last = (int(np.searchsorted(lsns, lsn, side="right")) for lsn in (extent.after, extent.upto))
    return images if first == 0 and last == len(lsns) else images.slice(first, max(0, last - first))
