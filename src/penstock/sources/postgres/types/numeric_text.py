"""numeric that no decimal128 holds (without precision, of more than 38 digits, of an unusual scale) → string.

The string is what Postgres prints, with trailing zeros, `NaN` and infinities. The binary form is described in
`numeric`; a first pass checks a value and measures its text, a second pass prints it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes, variable_width
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, read16, start
from penstock.sources.postgres.types.text_output import TOO_LONG

__all__ = ["NUMERIC_TEXT"]

_REASONS = ("malformed numeric", TOO_LONG)
_MOST = 2**31 - 1
_NEGATIVE, _NAN, _PLUS_INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_MOST_SCALE = 0x3FFF
_WORDS = np.frombuffer(b"NaNInfinity-Infinity", np.uint8).copy()
_POW10 = np.array([1, 10, 100, 1000, 10000], np.int64)


@inlined
def _word(sign: int) -> tuple[int, int]:
    """Return offset in _WORDS and size of the word for a value without digits; (0, 0) if there is no such word."""
    if sign == _NAN:
        return 0, 3
    if sign == _PLUS_INFINITY:
        return 3, 8
    if sign == _MINUS_INFINITY:
        return 11, 9
    return 0, 0


@inlined
def _digit(buf: Bytes, at: int, count: int, weight: int, place: int) -> Any:
    """Return the decimal digit that counts 10^place."""
    group = weight - (place >> 2)
    if group < 0 or group >= count:
        return 0
    return read16(buf, at + 2 * group) // _POW10[place & 3] % 10


@inlined
def _top(buf: Bytes, at: int, count: int, weight: int) -> Any:
    """Return the highest nonzero place before the point; 0 if there is none."""
    for k in range(min(count, weight + 1)):
        digit = read16(buf, at + 2 * k)
        if digit:
            return 4 * (weight - k) + (digit >= 10) + (digit >= 100) + (digit >= 1000)
    return 0


@inlined
def _well_formed(buf: Bytes, at: int, count: int, weight: int, scale: int) -> bool:
    """Return whether all digits are valid and none is beyond the scale."""
    for k in range(count):
        digit = read16(buf, at + 2 * k)
        hidden = min(max(4 * (k - weight) - scale, 0), 4)
        if digit > 9999 or digit % _POW10[hidden]:
            return False
    return scale <= _MOST_SCALE


@kernel(nb.int64(IN8, IN32, IN32, I32))
def _measure(buf: Bytes, off: Ints, length: Ints, offsets: Ints) -> Any:
    # Any negative verdict means success: the complement of this one is the number of bytes.
    total: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = total
        if length[r] < 0:
            continue
        at = start(off, r)
        if length[r] < 8 or length[r] != 8 + 2 * read16(buf, at):
            return blame(r, 0)
        sign, scale = read16(buf, at + 4), read16(buf, at + 6)
        _, size = _word(sign)
        if size == 0:
            weight = (read16(buf, at + 2) ^ 0x8000) - 0x8000
            count = read16(buf, at)
            if (sign != 0 and sign != _NEGATIVE) or not _well_formed(buf, at + 8, count, weight, scale):
                return blame(r, 0)
            size = 1 + _top(buf, at + 8, count, weight) + (sign != 0) + (scale + 1 if scale else 0)
        total += size
        if total > _MOST:
            return blame(r, 1)
    offsets[length.size] = total
    return ~total


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    for r in range(length.size):
        if length[r] < 0:
            continue
        at, end = start(off, r), np.int64(offsets[r])
        sign, scale = read16(buf, at + 4), read16(buf, at + 6)
        word, size = _word(sign)
        for k in range(size):
            data[end + k] = _WORDS[word + k]
        if size:
            continue
        weight, count = (read16(buf, at + 2) ^ 0x8000) - 0x8000, read16(buf, at)
        if sign:
            data[end] = 45
            end += 1
        for place in range(_top(buf, at + 8, count, weight), -1, -1):
            data[end] = 48 + _digit(buf, at + 8, count, weight, place)
            end += 1
        if scale:
            data[end] = 46
            end += 1
        for place in range(-1, -1 - scale, -1):
            data[end] = 48 + _digit(buf, at + 8, count, weight, place)
            end += 1
    return FINE


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.string(), buf, off, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    total = _measure(buf, off, length, offsets)
    BadValueError.check(total, _REASONS)
    data = np.empty(~total, np.uint8)
    _print(buf, off, length, offsets, data)
    return variable_width(pa.string(), offsets, data, length)


NUMERIC_TEXT = ColumnCodec(pa.string(), _text, _binary)
