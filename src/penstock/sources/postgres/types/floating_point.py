"""real, double precision → float32, float64.

Binary is IEEE 754 in network order and is copied bit by bit: NaN payloads, infinities, -0 and subnormals are preserved.

Text is `NaN`, `Infinity`, `-Infinity`, or decimal digits with an optional fraction and exponent, rounded to the nearest
value, ties to even. `nearest_double` resolves almost all of them in the kernel; Arrow's exact parser gets only the
remaining rows. For float32 the nearest double is rounded once more. That is correct unless the double lies exactly
between two floats (rounding never crosses such a point, it can only land on it); these, subnormals and overflow go to
Arrow too. A number too large for the type, or so small that it would become 0, is a bad value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import fixed_width, gather_bytes
from penstock.sources.postgres.types.double_text import nearest_double
from penstock.sources.postgres.types.integer import network_order
from penstock.sources.postgres.types.kernel import F32, F64, FINE, I32, IN8, IN32, blame, inlined, kernel, start

__all__ = ["DOUBLE", "REAL"]

_REASONS = ("malformed float",)
_OUT_OF_RANGE = "float outside the range of its type"

_EXPONENT_CAP = 100_000
_LEAST_NORMAL = 2.0**-126
_MOST = (2.0**24 - 1) * 2.0**104
_BELOW_FLOAT = np.uint64(2**29 - 1)
_HALF_FLOAT = np.uint64(2**28)


@inlined
def _equals(buf: Bytes, at: int, end: int, word: Bytes) -> bool:
    if end - at != word.size:
        return False
    for k in range(word.size):  # noqa: SIM110 - numba supports no generators here
        if buf[at + k] != word[k]:
            return False
    return True


_NAN = np.frombuffer(b"NaN", np.uint8).copy()
_INFINITY = np.frombuffer(b"Infinity", np.uint8).copy()


@inlined
def _exponent(buf: Bytes, at: int, end: int) -> tuple[int, bool]:
    """Return the signed number after the `e`, capped, and whether it is a number."""
    minus = at < end and buf[at] == 45
    if at < end and (minus or buf[at] == 43):
        at += 1
    value: Any = 0
    is_number = at < end
    while at < end:
        digit = np.uint8(buf[at] - 48)
        if digit > 9:
            return 0, False
        value = min(value * 10 + digit, _EXPONENT_CAP)
        at += 1
    return (-value if minus else value), is_number


@inlined
def _decimal(buf: Bytes, at: int, end: int) -> tuple[Any, int, bool, bool]:
    """Return significant digits (uint64), power of ten, whether all digits are included, whether it is a number."""
    digits = np.uint64(0)
    significant = 0
    power: Any = 0
    start = at
    point: Any = np.int64(-1)
    while at < end:
        byte = buf[at]
        digit = np.uint8(byte - 48)
        if digit <= 9:
            if significant < 19:
                digits = digits * np.uint64(10) + np.uint64(digit)
            if digits != np.uint64(0):
                significant += 1
        elif byte == 46 and point < 0 and at > start:
            point = at
        else:
            break
        at += 1
    if at == start or point == at - 1:
        return digits, 0, False, False
    if point >= 0:
        power = point + 1 - at
    is_number = True
    if at < end:
        exponent, is_number = _exponent(buf, at + 1, end)
        is_number = is_number and (buf[at] | 32) == 101
        power += exponent
    return digits, power, significant <= 19, is_number


@inlined
def _rounds_once(value: float) -> bool:
    """Return whether rounding this double, the nearest to some number, gives the float nearest to that number."""
    if value == 0.0:
        return True
    within = _LEAST_NORMAL <= value <= _MOST
    return within and np.float64(value).view(np.uint64) & _BELOW_FLOAT != _HALF_FLOAT


@kernel(*((IN8, IN32, IN32, nb.boolean, out, I32) for out in (F32, F64)))
def _parse(buf: Bytes, off: Ints, length: Ints, single: bool, out: Any, unresolved: Ints) -> tuple[int, int]:
    left = 0
    for r in range(length.size):
        out[r] = 0.0
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        minus = at < end and buf[at] == 45
        if minus:
            at += 1
        if at < end and buf[at] > 57:
            if _equals(buf, at, end, _INFINITY):
                out[r] = -np.inf if minus else np.inf
            elif _equals(buf, at, end, _NAN) and not minus:
                out[r] = np.nan
            else:
                return blame(r, 0), left
            continue
        digits, power, complete, is_number = _decimal(buf, at, end)
        if not is_number:
            return blame(r, 0), left
        value, found = nearest_double(digits, power)
        if complete and found and (not single or _rounds_once(value)):
            out[r] = -value if minus else value
        else:
            unresolved[left] = r
            left += 1
    return FINE, left


def _parse_exactly(buf: Bytes, off: Ints, length: Ints, unresolved: Ints, arrow: pa.DataType, out: Any) -> None:
    """Let Arrow round the rows that the kernel left; all of them are well-formed and none is zero."""
    strings = gather_bytes(pa.string(), buf, off[unresolved], length[unresolved])
    try:
        values = pc.cast(strings, arrow).to_numpy()
    except pa.ArrowInvalid:
        values = np.array([_parse_one(text, arrow) for text in strings.to_pylist()], out.dtype)
    bad = np.flatnonzero(np.isinf(values) | (values == 0))
    if bad.size:
        raise BadValueError(int(unresolved[bad[0]]), _OUT_OF_RANGE)
    out[unresolved] = values


def _parse_one(text: str, arrow: pa.DataType) -> float:
    try:
        return float(pa.scalar(text).cast(arrow).as_py())
    except pa.ArrowInvalid:
        return np.inf


def _codec(arrow: pa.DataType, dtype: Any, bits: Any) -> ColumnCodec:
    single = dtype is np.float32

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, dtype)
        unresolved = np.empty(length.size, np.int32)
        verdict, left = _parse(buf, off, length, single, out, unresolved)
        if left:
            _parse_exactly(buf, off, length, unresolved[:left], arrow, out)
        BadValueError.check(verdict, _REASONS)
        return fixed_width(arrow, out, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, bits)
        network_order(buf, off, length, out)
        return fixed_width(arrow, out, length)

    return ColumnCodec(arrow, text, binary)


REAL = _codec(pa.float32(), np.float32, np.int32)
DOUBLE = _codec(pa.float64(), np.float64, np.int64)
