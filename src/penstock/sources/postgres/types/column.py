"""Turn filled numpy memory into an Arrow array, without a copy and without pyarrow's conversions.

A kernel packs the validity bits; a column without nulls has no bitmap. Kernels zero the slot of a null, so that no
uninitialized memory reaches a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import Bytes, Ints
from penstock.sources.postgres.types.kernel import I32, IN8, IN32, U8, kernel

__all__ = ["check_size", "fixed_width", "flags", "gather_bytes", "lists", "structs", "variable_width"]

_MAX_BYTES = 2**31 - 1

_memcpy = nb.ExternalFunction("memcpy", nb.intp(nb.intp, nb.intp, nb.uintp))


@kernel(nb.int64(IN32, U8))
def _validity(length: Ints, bitmap: Bytes) -> int:
    # The count alone is vectorized, and suffices for most columns.
    n = length.size
    nulls = 0
    for r in range(n):
        nulls += length[r] < 0
    if nulls:
        for byte in range(bitmap.size):
            bits = 0
            first = byte << 3
            for k in range(min(8, n - first)):
                bits |= (1 if length[first + k] >= 0 else 0) << k
            bitmap[byte] = bits
    return nulls


@kernel(nb.int64(IN32, nb.int64, I32))
def _offsets(length: Ints, skip: int, offsets: Ints) -> int:
    total = 0
    for r in range(length.size):
        offsets[r] = total
        if length[r] > skip:
            total += length[r] - skip
    offsets[length.size] = total
    return total


@kernel(nb.void(IN8, IN32, nb.int64, I32, U8))
def _gather(buf: Bytes, off: Ints, skip: int, offsets: Ints, data: Bytes) -> None:
    source = np.int64(buf.ctypes.data)
    target = np.int64(data.ctypes.data)
    for r in range(off.size):
        size = offsets[r + 1] - offsets[r]
        if size > 0:
            _memcpy(target + offsets[r], source + off[r] + skip, size)


def _nulls(length: Ints) -> tuple[pa.Buffer | None, int]:
    bitmap = np.empty((length.size + 7) >> 3, np.uint8)
    nulls = _validity(length, bitmap)
    return (pa.py_buffer(bitmap) if nulls else None), nulls


def fixed_width(arrow: pa.DataType, values: npt.NDArray[Any], length: Ints) -> pa.Array:
    """Return an array over `values`, which holds one slot (or packed bit) per row."""
    bitmap, nulls = _nulls(length)
    return pa.Array.from_buffers(arrow, length.size, [bitmap, pa.py_buffer(values)], nulls)


def variable_width(arrow: pa.DataType, offsets: Ints, data: Bytes, length: Ints) -> pa.Array:
    """Return a string or binary array over 32-bit `offsets` into `data`, without the unused end of `data`."""
    bitmap, nulls = _nulls(length)
    used = pa.py_buffer(data[: offsets[-1]])
    return pa.Array.from_buffers(arrow, length.size, [bitmap, pa.py_buffer(offsets), used], nulls)


def structs(arrow: pa.DataType, children: Sequence[pa.Array], length: Ints) -> pa.Array:
    """Return a struct array; a null row is null in each child too."""
    bitmap, nulls = _nulls(length)
    return pa.Array.from_buffers(arrow, length.size, [bitmap], nulls, children=list(children))


def lists(arrow: pa.DataType, offsets: Ints, values: pa.Array, length: Ints) -> pa.Array:
    """Return a list or map array over 32-bit `offsets` into `values`."""
    bitmap, nulls = _nulls(length)
    return pa.Array.from_buffers(arrow, length.size, [bitmap, pa.py_buffer(offsets)], nulls, children=[values])


def flags(values: Bytes, length: Ints) -> pa.Array:
    """Return a bool array of bytes that are 0 or 1."""
    return fixed_width(pa.bool_(), np.packbits(values, bitorder="little"), length)


def gather_bytes(arrow: pa.DataType, buf: Bytes, off: Ints, length: Ints, skip: int = 0) -> pa.Array:
    """Return a string or binary array of the unmodified values, each without its first `skip` bytes."""
    offsets = np.empty(length.size + 1, np.int32)
    data = np.empty(check_size(_offsets(length, skip, offsets)), np.uint8)
    _gather(buf, off, skip, offsets, data)
    return variable_width(arrow, offsets, data, length)


def check_size(total: int) -> int:
    """Return `total` if it fits 32-bit offsets; a larger batch is the caller's error, not a bad value."""
    if total > _MAX_BYTES:
        message = f"a column of {total} bytes requires 64-bit offsets; decode fewer rows at once"
        raise OverflowError(message)
    return total
