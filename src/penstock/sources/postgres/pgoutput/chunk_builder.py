"""Build a chunk of the change log from the changes of one table that the scan found: split them, decode each column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.changelog.chunk_codec import stored_schema
from penstock.changelog.interface import Chunk, transaction_schema
from penstock.errors import ProtocolError, SchemaChangeError, TableError
from penstock.sources.postgres.pgoutput import scan
from penstock.sources.postgres.pgoutput.bad_values import bad_values_hint, describe_bad_values
from penstock.sources.postgres.pgoutput.control_messages import PROTOCOL_HINT
from penstock.sources.postgres.pgoutput.relations import Shape
from penstock.sources.postgres.types import BadValueError
from penstock.sources.postgres.types.rescue import RescuedTexts, decode_and_rescue, rescued_column

__all__ = ["Changes", "RejectedChangeError", "build_chunk"]

_TRANSACTIONS = transaction_schema()


class RejectedChangeError(Exception):
    """A change that cannot be stored: its index among the given changes, the reason, a hint, the class of the error."""

    def __init__(self, change: int, why: str, hint: str = "", kind: type[TableError] = TableError) -> None:
        super().__init__(change, why, hint, kind)
        self.change, self.why, self.hint, self.kind = change, why, hint, kind


@dataclass(frozen=True)
class Changes:
    """Changes of one table in a buffer, and the transactions (or subtransactions) that `tx` refers to."""

    buf: npt.NDArray[np.uint8]
    off: npt.NDArray[np.int32]
    ordinal: npt.NDArray[np.int64]
    tx: npt.NDArray[np.int32]
    lsns: npt.NDArray[np.int64]
    xids: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    skip: int = 0
    """Bytes between the kind byte of a message and its relation: an xid, in streamed blocks."""


def build_chunk(changes: Changes, shape: Shape) -> Chunk:
    """Build a chunk; raises `RejectedChangeError` for the first change with a value that cannot be stored."""
    if not shape.table.columns:
        why = "it has no columns that can be captured"
        raise RejectedChangeError(
            *(0, why, f"Add a column, then take a new snapshot: ALTER SOURCES … RETRY TABLE {shape.name};"),
            SchemaChangeError,
        )
    columns, most = shape.width, 2 * len(changes.off)
    off, length = np.empty((columns, most), np.int32), np.empty((columns, most), np.int32)
    kinds, owner, tags = np.empty(most, np.int8), np.empty(most, np.int32), np.zeros(columns, np.uint8)
    images = scan.split(changes.buf, changes.off, changes.skip, columns, off, length, kinds, owner, tags)
    if images < 0:
        message = f"malformed change of {shape.name} received from Postgres"
        raise ProtocolError(message, PROTOCOL_HINT)
    column_indexes, kinds, owner = shape.column_indexes, kinds[:images], owner[:images]
    if shape.sent:
        off, length, tags = off[column_indexes], length[column_indexes], tags[column_indexes]
        absent = np.array(column_indexes) < 0
        off[absent], length[absent], tags[absent] = 0, -1, 0
    off, length = off[:, :images], length[:, :images]
    _reject_missing_keys(shape, length, owner)
    arrays: list[pa.Array] = []
    texts: list[RescuedTexts] = []
    for c in range(len(column_indexes)):
        array, rescued = _column(shape, c, int(tags[c]), changes.buf, off[c], length[c], owner)
        arrays.append(array)
        texts += [] if rescued is None else [rescued]
    if shape.table.rescued_index is not None:
        arrays.insert(shape.table.rescued_index, rescued_column(images, texts))
    unchanged = _unchanged(length, shape.table.rescued_index)
    tx, transactions = _transactions(changes, owner)
    row = pa.StructArray.from_arrays(arrays, fields=list(shape.schema.columns))
    stored = pa.RecordBatch.from_arrays(
        [pa.array(tx), pa.array(changes.ordinal[owner]), pa.array(kinds), unchanged, row],
        schema=stored_schema(shape.schema.columns),
    )
    mask = int(np.bitwise_or.reduce(np.int64(1) << kinds.astype(np.int64)))
    return Chunk(shape.name, shape.version, transactions, stored, mask, unchanged.null_count < images)


def _reject_missing_keys(shape: Shape, length: npt.NDArray[np.int32], owner: npt.NDArray[np.int32]) -> None:
    """Reject rows whose key was not sent: they cannot be identified."""
    names = [column.name for column in shape.table.columns]
    for name in shape.schema.key:
        left_out = np.flatnonzero(length[names.index(name)] == -2)
        if len(left_out):
            why = f"an UPDATE omits the value of key column {name}, which is stored in TOAST"
            identity = f"Run: ALTER TABLE {shape.name} REPLICA IDENTITY FULL; then RETRY TABLE {shape.name}."
            raise RejectedChangeError(int(owner[left_out[0]]), why, identity)


def _column(
    shape: Shape,
    index: int,
    tags: int,
    buf: npt.NDArray[np.uint8],
    off: npt.NDArray[np.int32],
    length: npt.NDArray[np.int32],
    owner: npt.NDArray[np.int32],
) -> tuple[pa.Array, RescuedTexts | None]:
    """Decode one column; all its values have the same wire format."""
    codec, column = shape.codecs[index], shape.table.columns[index]
    if tags == 3:
        message = f"column {column.name} of {shape.name} received both as text and as binary from Postgres"
        raise ProtocolError(message, PROTOCOL_HINT)
    try:
        if shape.table.can_rescue(column):
            return decode_and_rescue(column.name, column.type, codec, buf, off, length, is_text=tags == 1)
        return (codec.text if tags == 1 else codec.binary)(buf, off, length), None
    except BadValueError as bad:
        found = [(column, bad.reason)]
        raise RejectedChangeError(
            int(owner[bad.row]), describe_bad_values(found), bad_values_hint(shape.table, found)
        ) from bad


def _unchanged(length: npt.NDArray[np.int32], inserted: int | None) -> pa.Array:
    """List per image the columns that were not sent because they did not change; null if all were sent.

    Columns are listed by their index in the schema, which has another column at the index `inserted`.
    """
    kind = pa.list_(pa.field("item", pa.int32(), nullable=False))
    missing = length == -2
    if not missing.any():
        return pa.nulls(length.shape[1], kind)
    images, columns = np.nonzero(missing.T)
    if inserted is not None:
        columns = columns + (columns >= inserted)
    counts = np.bincount(images, minlength=length.shape[1])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    values = pa.array(columns.astype(np.int32))
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind, mask=pa.array(counts == 0))


def _transactions(changes: Changes, owner: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], pa.RecordBatch]:
    """Return the index of each image's transaction among those of the chunk, and these transactions."""
    own, index = np.unique(changes.tx[owner], return_inverse=True)
    times = pa.array(changes.times[own]).view(_TRANSACTIONS.field(2).type)
    batch = [pa.array(changes.lsns[own]), pa.array(changes.xids[own]), times]
    return index.astype(np.int32), pa.RecordBatch.from_arrays(batch, schema=_TRANSACTIONS)
