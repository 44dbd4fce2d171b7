"""smallint, integer, bigint → int16, int32, int64.

Text is an optional minus and digits; binary is two's complement in network order, exactly as wide as the type. Digits
are accumulated in 64 unsigned bits, which hold any 19 digits, and the sum is then compared with the bound of the type:
nothing wraps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import fixed_width
from penstock.sources.postgres.types.kernel import FINE, I16, I32, I64, IN8, IN32, blame, kernel, start, uint

__all__ = ["BIGINT", "INTEGER", "SMALLINT", "network_order"]

_REASONS = ("malformed integer", "integer outside the range of its type")
_WRONG_WIDTH = ("binary value of the wrong length",)


@kernel(*(nb.int64(IN8, IN32, IN32, nb.uint64, out) for out in (I16, I32, I64)))
def _digits(buf: Bytes, off: Ints, length: Ints, most: int, out: Any) -> int:
    for r in range(length.size):
        if length[r] < 0:
            out[r] = 0
            continue
        at = start(off, r)
        end = at + length[r]
        minus = np.uint64(at < end and buf[at] == 45)
        at += np.int64(minus)
        if at >= end:
            return blame(r, 0)
        while at < end - 1 and buf[at] == 48:
            at += 1
        long = end - at > 19
        value = np.uint64(0)
        while at < end:
            digit = np.uint8(buf[at] - 48)
            if digit > 9:
                return blame(r, 0)
            value = value * np.uint64(10) + np.uint64(digit)
            at += 1
        if long or value > most + minus:
            return blame(r, 1)
        out[r] = np.uint64(0) - value if minus else value
    return FINE


@kernel(*(nb.int64(IN8, IN32, IN32, out) for out in (I16, I32, I64)))
def _fixed(buf: Bytes, off: Ints, length: Ints, out: Any) -> int:
    width = out.itemsize
    for r in range(length.size):
        if length[r] < 0:
            out[r] = 0
            continue
        if length[r] != width:
            return blame(r, 0)
        out[r] = uint(buf, start(off, r), width)
    return FINE


def network_order(buf: Bytes, off: Ints, length: Ints, out: Any) -> None:
    """Fill the signed integers of `out` from values of exactly their width."""
    BadValueError.check(_fixed(buf, off, length, out), _WRONG_WIDTH)


def _codec(arrow: pa.DataType, dtype: Any) -> ColumnCodec:
    most = int(np.iinfo(dtype).max)

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, dtype)
        BadValueError.check(_digits(buf, off, length, most, out), _REASONS)
        return fixed_width(arrow, out, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, dtype)
        network_order(buf, off, length, out)
        return fixed_width(arrow, out, length)

    return ColumnCodec(arrow, text, binary)


SMALLINT = _codec(pa.int16(), np.int16)
INTEGER = _codec(pa.int32(), np.int32)
BIGINT = _codec(pa.int64(), np.int64)
