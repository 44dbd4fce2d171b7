"""smallint, integer, bigint → int16, int32, int64; oid, xid, cid → int64; xid8 → decimal128(20, 0); boolean → bool.

The text of an integer is an optional minus and digits; binary is two's complement in network order, exactly as wide as
the type. Digits are accumulated in 64 unsigned bits, which hold any 19 digits, and the sum is then compared with the
bound of the type: nothing wraps.

Spark has no unsigned integers, so they become a wider type. Text is digits; binary is 32 or 64 bits in network order.

The text of a boolean is `t` or `f`; binary is one byte, 1 or 0. Anything else is malformed. The kernel writes Arrow's
packed bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import fixed_width
from penstock.sources.postgres.types.kernel import FINE, I16, I32, I64, IN8, IN32, U8, U64, blame, kernel, start, uint
from penstock.sources.postgres.types.numeric import numeric

__all__ = ["BIGINT", "BOOLEAN", "INTEGER", "SMALLINT", "UNSIGNED_32", "UNSIGNED_64", "network_order"]

_INTEGER_REASONS = ("malformed integer", "integer outside the range of its type")
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
        BadValueError.check(_digits(buf, off, length, most, out), _INTEGER_REASONS)
        return fixed_width(arrow, out, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, dtype)
        network_order(buf, off, length, out)
        return fixed_width(arrow, out, length)

    return ColumnCodec(arrow, text, binary)


SMALLINT = _codec(pa.int16(), np.int16)
INTEGER = _codec(pa.int32(), np.int32)
BIGINT = _codec(pa.int64(), np.int64)


# -- unsigned integers -------------------------------------------------------------------------------------------------

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
    BadValueError.check(_four_bytes(buf, off, length, out), _WRONG_WIDTH)
    return fixed_width(pa.int64(), out, length)


def _binary_64(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    out = np.empty(2 * length.size, np.uint64)
    BadValueError.check(_eight_bytes(buf, off, length, out), _WRONG_WIDTH)
    return fixed_width(_DECIMAL.arrow, out, length)


UNSIGNED_32 = ColumnCodec(pa.int64(), _text_32, _binary_32)
UNSIGNED_64 = ColumnCodec(_DECIMAL.arrow, _DECIMAL.text, _binary_64)


# -- boolean -----------------------------------------------------------------------------------------------------------

_BOOLEAN_REASONS = ("malformed boolean",)


@kernel(nb.int64(IN8, IN32, IN32, nb.uint8, nb.uint8, U8))
def _boolean_bits(buf: Bytes, off: Ints, length: Ints, true: int, false: int, out: Bytes) -> int:
    n = length.size
    for byte in range(out.size):
        bits = 0
        for k in range(min(8, n - (byte << 3))):
            r = (byte << 3) + k
            if length[r] >= 0:
                if length[r] != 1 or (buf[off[r]] != true and buf[off[r]] != false):
                    return blame(r, 0)
                bits |= (1 if buf[off[r]] == true else 0) << k
        out[byte] = bits
    return FINE


def _decode_boolean(buf: Bytes, off: Ints, length: Ints, true: int, false: int) -> pa.Array:
    out = np.empty((length.size + 7) >> 3, np.uint8)
    BadValueError.check(_boolean_bits(buf, off, length, true, false, out), _BOOLEAN_REASONS)
    return fixed_width(pa.bool_(), out, length)


def _boolean_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode_boolean(buf, off, length, ord("t"), ord("f"))


def _boolean_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode_boolean(buf, off, length, 1, 0)


BOOLEAN = ColumnCodec(pa.bool_(), _boolean_text, _boolean_binary)
