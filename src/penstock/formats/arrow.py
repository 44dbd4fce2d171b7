"""Build Arrow arrays from the entries that kernels wrote to columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.column_buffers import ColumnBuffer
from penstock.formats.columns import Columns, Store
from penstock.formats.jit import Ints
from penstock.formats.memory import address
from penstock.formats.spans import copy_spans, total_size

__all__ = ["arrow_array"]

_MAX_BYTES = 2**31 - 1


def arrow_array(columns: Columns, entries: Sequence[ColumnBuffer], index: int = 0) -> pa.Array:
    """Build the array of a column and its children; the memory that spans point to must still be valid."""
    column, own = columns[index], entries[index]
    children = [arrow_array(columns, entries, child) for child in column.children]
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
