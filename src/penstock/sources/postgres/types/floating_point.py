"""real, double precision → float32, float64.

Binary is IEEE 754 in network order and is copied bit by bit: NaN payloads, infinities, -0 and subnormals are preserved.

Text is `NaN`, `Infinity`, `-Infinity`, or decimal digits with an optional fraction and exponent. Arrow rounds it to the
nearest value, ties to even. Arrow also accepts what Postgres never sends (`.5`, `1.`, `+1`, `nan(1)`), and returns 0 or
infinity for a number outside the range of the type. So a kernel then rejects these; it relies on Arrow for the rest of
the grammar.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import fixed_width, gather_bytes
from penstock.sources.postgres.types.integer import network_order
from penstock.sources.postgres.types.kernel import FINE, IN8, IN32, blame, inlined, kernel, start

__all__ = ["DOUBLE", "REAL"]

_REASONS = ("malformed float", "float outside the range of its type")
_NAN = np.frombuffer(b"NaN", np.uint8).copy()
_INFINITY = np.frombuffer(b"Infinity", np.uint8).copy()


@inlined
def _equals(buf: Bytes, at: int, end: int, word: Bytes) -> bool:
    if end - at != word.size:
        return False
    for k in range(word.size):  # noqa: SIM110 - numba supports no generators here
        if buf[at + k] != word[k]:
            return False
    return True


@inlined
def _is_nonzero(buf: Bytes, at: int, end: int) -> bool:
    """Return whether a digit before the exponent is not 0."""
    while at < end and buf[at] <= 57:
        if buf[at] > 48:
            return True
        at += 1
    return False


@kernel(*(nb.int64(IN8, IN32, IN32, nb.Array(value, 1, "C", readonly=True)) for value in (nb.float32, nb.float64)))
def _check(buf: Bytes, off: Ints, length: Ints, values: Any) -> int:
    # Arrow accepted all texts. A number from Postgres starts with a digit and has one after the point; it is 0 only if
    # all its digits are, and never infinite.
    for r in range(length.size):
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        minus = at < end and buf[at] == 45
        if minus:
            at += 1
        if at >= end:
            return blame(r, 0)
        if buf[at] > 57:
            if not (_equals(buf, at, end, _INFINITY) or (_equals(buf, at, end, _NAN) and not minus)):
                return blame(r, 0)
            continue
        point = at
        while point < end and buf[point] != 46:
            point += 1
        if point == at or point == end - 1 or (point < end and buf[point + 1] > 57) or buf[at] == 43:
            return blame(r, 0)
        if (values[r] == 0 or np.isinf(values[r])) and _is_nonzero(buf, at, end):
            return blame(r, 1)
    return FINE


def _parse(buf: Bytes, off: Ints, length: Ints, arrow: pa.DataType, dtype: Any) -> pa.Array:
    strings = gather_bytes(pa.string(), buf, off, length)
    try:
        array = pc.cast(strings, arrow)
    except pa.ArrowInvalid:
        row = _first_rejected(strings, arrow)
        _parse(buf, off[:row], length[:row], arrow, dtype)  # raises if a row before it is bad
        raise BadValueError(row, _REASONS[0]) from None
    BadValueError.check(_check(buf, off, length, np.frombuffer(array.buffers()[1], dtype, length.size)), _REASONS)
    return array


def _first_rejected(strings: pa.Array, arrow: pa.DataType) -> int:
    """Return the first row that Arrow cannot parse, by bisection; there is one."""
    first, stop = 0, len(strings)
    while stop - first > 1:
        middle = (first + stop) // 2
        try:
            pc.cast(strings[first:middle], arrow)
        except pa.ArrowInvalid:
            stop = middle
        else:
            first = middle
    return first


def _codec(arrow: pa.DataType, dtype: Any, bits: Any) -> ColumnCodec:
    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return _parse(buf, off, length, arrow, dtype)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, bits)
        network_order(buf, off, length, out)
        return fixed_width(arrow, out, length)

    return ColumnCodec(arrow, text, binary)


REAL = _codec(pa.float32(), np.float32, np.int32)
DOUBLE = _codec(pa.float64(), np.float64, np.int64)
