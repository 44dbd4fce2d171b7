"""oid, xid, cid → int64; xid8 → decimal128(20, 0): Spark has no unsigned integers.

Text is digits; binary is 32 or 64 bits in network order.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import fixed_width
from penstock.sources.postgres.types.integer import BIGINT
from penstock.sources.postgres.types.kernel import FINE, I64, IN8, IN32, U64, blame, kernel, start, uint
from penstock.sources.postgres.types.numeric import numeric

__all__ = ["UNSIGNED_32", "UNSIGNED_64"]

_REASONS = ("binary value of the wrong length",)
_OUTSIDE = "integer outside the range of its type"
_DECIMAL = numeric((20 << 16) + 4)


@kernel(nb.int64(IN8, IN32, IN32, I64))
def _four_bytes(buf: Bytes, off: Ints, length: Ints, out: Ints) -> int:
    for r in range(length.size):
        out[r] = 0
        if length[r] < 0:
            continue
        if length[r] != 4:
            return blame(r, 0)
        out[r] = uint(buf, start(off, r), 4)
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, U64))
def _eight_bytes(buf: Bytes, off: Ints, length: Ints, out: Ints) -> int:
    for r in range(length.size):
        out[2 * r] = 0
        out[2 * r + 1] = 0
        if length[r] < 0:
            continue
        if length[r] != 8:
            return blame(r, 0)
        out[2 * r] = uint(buf, start(off, r), 8)
    return FINE


def _text_32(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    array = BIGINT.text(buf, off, length)
    values = np.frombuffer(array.buffers()[1], np.int64, length.size)
    outside = np.flatnonzero((values < 0) | (values >= 1 << 32))
    if outside.size:
        raise BadValueError(int(outside[0]), _OUTSIDE)
    return array


def _binary_32(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    out = np.empty(length.size, np.int64)
    BadValueError.check(_four_bytes(buf, off, length, out), _REASONS)
    return fixed_width(pa.int64(), out, length)


def _binary_64(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    out = np.empty(2 * length.size, np.uint64)
    BadValueError.check(_eight_bytes(buf, off, length, out), _REASONS)
    return fixed_width(_DECIMAL.arrow, out, length)


UNSIGNED_32 = ColumnCodec(pa.int64(), _text_32, _binary_32)
UNSIGNED_64 = ColumnCodec(_DECIMAL.arrow, _DECIMAL.text, _binary_64)
