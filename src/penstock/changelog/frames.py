"""How a chunk becomes bytes and comes back as images: Arrow IPC messages without their schema."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.interface import Chunk, transaction_schema
from penstock.errors import LogCorrupt
from penstock.model import image_schema
from penstock.positions import Lsn

__all__ = ["StoredChunk", "checksum", "stored_schema"]

_TRANSACTIONS = transaction_schema()


def stored_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of a stored chunk: images with ``_tx`` in place of what all rows of a transaction share."""
    images = image_schema(columns)
    return pa.schema([pa.field("_tx", pa.int32(), nullable=False), *(images.field(n) for n in _OWN)])


_OWN = ("_ordinal", "_image", "_unchanged", "row")


def checksum(transactions: pa.Buffer | bytes, images: pa.Buffer | bytes) -> int:
    """CRC-32 over both parts of a stored chunk."""
    return zlib.crc32(images, zlib.crc32(transactions))


class StoredChunk:
    """The bytes of a chunk, and their way back to images."""

    def __init__(self, transactions: pa.Buffer | bytes, images: pa.Buffer | bytes) -> None:
        self.transactions = transactions
        self.images = images

    @classmethod
    def pack(cls, chunk: Chunk) -> StoredChunk:
        """Serialise a chunk."""
        return cls(chunk.transactions.serialize(), chunk.images.serialize())

    def verify(self, expected: int, where: str) -> None:
        """Refuse bytes that are not those that were written."""
        if checksum(self.transactions, self.images) != expected:
            message = f"the change log is damaged: {where} fails its checksum"
            raise LogCorrupt(
                message,
                "Restore the home from a backup, or drop the source and capture it afresh.",
            )

    def unpack(self, columns: pa.Schema, after: Lsn, upto: Lsn, open_lsn: Lsn) -> pa.RecordBatch:
        """Return the images in (after, upto]; `open_lsn` is the LSN of a transaction that was staged."""
        transactions = pa.ipc.read_record_batch(pa.py_buffer(self.transactions), _TRANSACTIONS)
        stored = pa.ipc.read_record_batch(pa.py_buffer(self.images), stored_schema(columns))
        lsns = transactions.column(0).to_numpy()
        lsns = np.where(lsns < 0, open_lsn, lsns)
        stored = _within(stored, lsns, after, upto)
        tx = stored.column(0)
        arrays = [
            pc.take(pa.array(lsns), tx),
            stored.column(1),
            stored.column(2),
            pc.take(transactions.column(1), tx),
            pc.take(transactions.column(2), tx),
            stored.column(3),
            stored.column(4),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=image_schema(columns))


def _within(stored: pa.RecordBatch, lsns: np.ndarray, after: Lsn, upto: Lsn) -> pa.RecordBatch:
    """Cut the rows to the transactions in (after, upto]; transactions are in commit order, rows in theirs."""
    first = int(np.searchsorted(lsns, after, side="right"))
    last = int(np.searchsorted(lsns, upto, side="right"))
    if first == 0 and last == len(lsns):
        return stored
    tx = stored.column(0).to_numpy()
    start = int(np.searchsorted(tx, first))
    return stored.slice(start, max(0, int(np.searchsorted(tx, last)) - start))
