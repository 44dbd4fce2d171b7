"""Decoders: one per resolved format and set of writer schemas, for any number of batches.

::

    binary column ─▶ Messages ─▶ schema ids (framing) ─▶ plan per writer ─▶ kernel ─▶ columns ─▶ logical types ─▶ rows
                                       │                                        │
                                       └────────── error records ───────────────┴───▶ problems (text; null = no error)

One plan holds all writer schemas of a batch; each message starts at the root node of its schema. The entries that
kernels write to columns become Arrow arrays. A decoder does no I/O: it receives the schemas
(`penstock.formats.schema_registry`) as an argument, so that it can be sent to an executor.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.column_writer import ColumnBuffer, ColumnWriter, fill_columns
from penstock.formats.columns import Columns, Store
from penstock.formats.decode_errors import ErrorCode, Names, error_messages
from penstock.formats.format import CsvFormat, JsonFormat, ResolvedFormat
from penstock.formats.framing import read_ids
from penstock.formats.jit import Ints
from penstock.formats.json.kernel import KINDS
from penstock.formats.logical_types import convert_rows
from penstock.formats.memory import address
from penstock.formats.messages import Messages, messages_of
from penstock.formats.schema_registry import WriterSchemas
from penstock.formats.spans import copy_spans, total_size

__all__ = ["Decoded", "Decoder"]


class Decoded(NamedTuple):
    """Rows of the reader schema, and the problem of each message: one of the two is null; for a tombstone both are."""

    rows: pa.StructArray
    problems: pa.StringArray


class Decoder(abc.ABC):
    """Decodes batches of one format."""

    def __init__(self, resolved: ResolvedFormat, writers: WriterSchemas) -> None:
        textual = isinstance(resolved.format, JsonFormat | CsvFormat)
        self._resolved = resolved
        self._writers = writers
        self._columns = Columns(resolved.physical_type, numbers_as_text=textual)
        self._reasons: list[str] = []

    def decode(self, array: pa.Array | pa.ChunkedArray) -> Decoded:
        """Decode a binary column."""
        messages = messages_of(array)
        ids = np.full(len(messages), -1, np.int64)
        if self._resolved.is_framed:
            ids = read_ids(messages.start, messages.end, address(messages.errors))
            self._reject_unknown(messages, ids)
        rows = self._rows(messages, ids)
        names = Names(self._names(), self._reasons, KINDS)
        kind = self._resolved.format.kind
        problems = error_messages(kind, messages.errors, messages.sizes, ids, names)
        checked = self._check_schemas(Decoded(rows, problems))
        return Decoded(*convert_rows(*checked, self._resolved.logical_types))

    @abc.abstractmethod
    def _rows(self, messages: Messages, ids: Ints) -> pa.StructArray:
        """Return the rows; errors are written to the error records of the messages."""

    def _check_schemas(self, decoded: Decoded) -> Decoded:
        """Reject messages that decode but do not match the expected schema; runs before logical types are converted."""
        return decoded

    def _fill(self, messages: Messages, walk: Callable[[int, ColumnWriter], int]) -> pa.StructArray:
        """Run a kernel over all messages and return the rows."""
        return _arrow_array(self._columns, fill_columns(self._columns, len(messages), walk))

    def _names(self) -> Sequence[str]:
        """Return the field name of each node in an error record: here, the column paths."""
        return [column.path for column in self._columns]

    def _reject_unknown(self, messages: Messages, ids: Ints) -> None:
        for one in np.unique(ids):
            if one >= 0 and self._writers[int(one)] is None:
                messages.reject(np.flatnonzero(ids == one), ErrorCode.UNKNOWN_SCHEMA)

    def _add_reason(self, reason: str) -> int:
        self._reasons.append(reason)
        return len(self._reasons) - 1


# -- Arrow arrays ------------------------------------------------------------------------------------------------------

_MAX_BYTES = 2**31 - 1


def _arrow_array(columns: Columns, entries: Sequence[ColumnBuffer], index: int = 0) -> pa.Array:
    """Build the array of a column and its children; the memory that spans point to must still be valid."""
    column, own = columns[index], entries[index]
    children = [_arrow_array(columns, entries, child) for child in column.children]
    count = len(own.valid)
    bitmap = None if own.valid.all() else pa.py_buffer(np.packbits(own.valid, bitorder="little"))
    match column.store:
        case Store.STRUCT:
            return pa.Array.from_buffers(column.type, count, [bitmap], children=children)
        case Store.LIST:
            return pa.Array.from_buffers(column.type, count, [bitmap, _offsets(own.value)], children=children)
        case Store.MAP:
            pairs = pa.StructArray.from_arrays(children, fields=[column.type.key_field, column.type.item_field])
            return pa.Array.from_buffers(column.type, count, [bitmap, _offsets(own.value)], children=[pairs])
        case Store.SPAN:
            return _spans(column.type, own, bitmap)
        case Store.DECIMAL:
            both = np.column_stack((own.size, own.value))
            return pa.Array.from_buffers(column.type, count, [bitmap, pa.py_buffer(both)])
        case Store.NUMBER:
            return _spans(pa.string(), own, bitmap).cast(column.type)
        case _:
            return pa.Array.from_buffers(column.type, count, [bitmap, _values(column.type, own.value)])


def _values(kind: pa.DataType, value: Ints) -> pa.Buffer:
    if pa.types.is_boolean(kind):
        return pa.py_buffer(np.packbits(value.astype(np.uint8), bitorder="little"))
    return pa.py_buffer(value.astype(f"i{kind.bit_width // 8}"))


def _spans(kind: pa.DataType, entries: ColumnBuffer, bitmap: pa.Buffer | None) -> pa.Array:
    count, size = len(entries.valid), entries.size
    data = np.empty(_check_size(total_size(size)), np.uint8)
    offsets = np.empty(count + 1, np.int32)
    copy_spans(entries.value, size, address(offsets), address(data))
    return pa.Array.from_buffers(kind, count, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def _offsets(counts: Ints) -> pa.Buffer:
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    _check_size(int(offsets[-1]))
    return pa.py_buffer(offsets.astype(np.int32))


def _check_size(total: int) -> int:
    if total > _MAX_BYTES:
        message = f"batch of messages decodes to a column of {total} bytes or items, which exceeds the limit of Arrow"
        raise DefiniteError(message, "Read fewer messages per batch.")
    return total
