"""real, double precision → float32, float64.

Binary is IEEE 754 in network order and is copied bit by bit: NaN payloads, infinities, -0 and subnormals are preserved.

Text is `NaN`, `Infinity`, `-Infinity`, or decimal digits with an optional fraction and exponent. Arrow rounds it to the
nearest value, ties to even. Arrow also accepts what Postgres never sends (`.5`, `1.`, `+1`, `nan(1)`), and returns 0 or
infinity for a number outside the range of the type. So a kernel then rejects these; it relies on Arrow for the rest of
the grammar.

Doubles as decimal text: the digits that Postgres prints for a double.

These are the fewest digits that are strictly nearer to this double than to any other, and of those the
nearest: Ryū (Ulf Adams, PLDI 2018) without the bounds of the interval, because a reader need not round ties to even. A
library that includes the bounds, as Arrow and Python do, prints 5.239629890872934e+16 where Postgres prints
5.2396298908729344e+16.

The interval around the double is multiplied by a power of five from a table and shifted. That gives its bounds as
integers, exact except for digits that the shift drops; digits are then removed as long as the bounds differ.

Any `extra_float_digits` above 0 prints like this, and sessions set 3. From 1e-4 up to 1e15 (1e6 for reals) there is no
exponent.
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
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, start, uint
from penstock.sources.postgres.types.text_output import fixed_room, text_output_codec

__all__ = ["DOUBLE", "DOUBLE_TEXT", "REAL", "REAL_TEXT", "put_double"]


_0, _1, _2, _4, _5, _10 = (np.uint64(v) for v in (0, 1, 2, 4, 5, 10))
_32 = np.uint64(32)
_64 = np.uint64(64)
_MASK32 = np.uint64(2**32 - 1)
_MASK52 = np.uint64(2**52 - 1)


@inlined
def _product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the 128 bits of a × b, high and low."""
    a0, a1 = a & _MASK32, a >> _32
    b0, b1 = b & _MASK32, b >> _32
    low = a0 * b0
    middle = a1 * b0 + (low >> _32)
    other = a0 * b1 + (middle & _MASK32)
    return a1 * b1 + (middle >> _32) + (other >> _32), (other << _32) | (low & _MASK32)


_INVERSE_BITS, _BITS = 122, 121


def _split(powers: list[int]) -> Any:
    return np.array([(power & (2**64 - 1), power >> 64) for power in powers], np.uint64)


_INVERSE = _split([(1 << ((5**q).bit_length() - 1 + _INVERSE_BITS)) // 5**q + 1 for q in range(292)])
_POWER = _split(
    [5**q >> b if (b := (5**q).bit_length() - _BITS) >= 0 else 5**q << -b for q in range(326)],
)

_HIDDEN, _HIDDEN_REAL = np.uint64(2**52), np.uint64(2**23)
_BIAS, _BIAS_REAL = 1077, 152


@inlined
def _shifted(m: Any, low: Any, high: Any, shift: int) -> Any:
    """Return (m × (high, low)) >> shift, for a shift of 65 to 127."""
    carry, _ = _product(m, low)
    top, middle = _product(m, high)
    middle += carry
    if middle < carry:
        top += _1
    by = np.uint64(shift - 64)
    return (top << (_64 - by)) | (middle >> by)


@inlined
def _divides_5(value: Any, power: int) -> bool:
    """Return whether 5^power divides the value."""
    for _ in range(power):
        if value % _5 != _0:
            return False
        value //= _5
    return True


@inlined
def _shortest(mantissa: Any, exponent: Any, hidden: Any, bias: int) -> tuple[Any, int]:
    """Return digits and power of ten of a finite nonzero float, given by the parts of its bits, without the sign."""
    wide = np.uint64(mantissa != _0 or exponent <= 1)  # below a power of two the interval is half as wide
    e2 = max(exponent, 1) - bias
    middle = _4 * (mantissa | hidden if exponent else mantissa)
    zeros = False
    if e2 >= 0:
        q = (e2 * 78913 >> 18) - (e2 > 3)
        power: Any = q
        shift = q - e2 + _INVERSE_BITS + (q * 1217359 >> 19)
        low, high = _INVERSE[q, 0], _INVERSE[q, 1]
    else:
        q = (-e2 * 732923 >> 20) - (-e2 > 1)
        power = q + e2
        five = -e2 - q
        shift = q - (five * 1217359 >> 19) - 1 + _BITS
        low, high = _POWER[five, 0], _POWER[five, 1]
    v = _shifted(middle, low, high, shift)
    above = _shifted(middle + _2, low, high, shift)
    below = _shifted(middle - _1 - wide, low, high, shift)
    if e2 >= 0:
        if q <= 21:
            if middle % _5 == _0:
                zeros = _divides_5(middle, q)
            elif _divides_5(middle + _2, q):
                above -= _1
    elif q <= 1:
        zeros = True
        above -= _1
    elif q < 63:
        zeros = middle & ((_1 << np.uint64(q - 1)) - _1) == _0
    last = _0
    while above // _10 > below // _10:
        zeros = zeros and last == _0
        last = v % _10
        v //= _10
        above //= _10
        below //= _10
        power += 1
    if zeros and last == _5 and v & _1 == _0:
        last = _4
    if v == below or last >= _5:
        v += _1
    return v, power


@inlined
def _put_digits(data: Bytes, end: Any, digits: Any, count: int, point: Any) -> Any:
    """Write digits with a point after the first `point` of them, if any digits follow it."""
    size = count + (point < count)
    for k in range(size - 1, -1, -1):
        if k == point:
            data[end + k] = 46
        else:
            data[end + k] = 48 + digits % _10
            digits //= _10
    return end + size


@inlined
def _put_word(data: Bytes, end: Any, nan: bool) -> Any:
    word = b"NaN" if nan else b"Infinity"
    for k in range(len(word)):
        data[end + k] = word[k]
    return end + len(word)


@inlined
def put_double(data: Bytes, end: Any, bits: Any) -> Any:
    """Write a double, given as its 64 bits, as Postgres does; return the offset after it."""
    size = bits & np.uint64(2**63 - 1)
    if size > np.uint64(0x7FF << 52):
        return _put_word(data, end, True)
    if bits != size:
        data[end] = 45
        end += 1
    if size == np.uint64(0x7FF << 52):
        return _put_word(data, end, False)
    if size == _0:
        data[end] = 48
        return end + 1
    digits, power = _shortest(size & _MASK52, np.int64(size >> np.uint64(52)), _HIDDEN, _BIAS)
    return _put_decimal(data, end, digits, power, 15)


@inlined
def _put_real(data: Bytes, end: Any, bits: Any) -> Any:
    """Write a float of 32 bits, as Postgres does; return the offset after it."""
    size = bits & np.uint64(2**31 - 1)
    if size > np.uint64(0xFF << 23):
        return _put_word(data, end, True)
    if bits != size:
        data[end] = 45
        end += 1
    if size == np.uint64(0xFF << 23):
        return _put_word(data, end, False)
    if size == _0:
        data[end] = 48
        return end + 1
    digits, power = _shortest(size & np.uint64(2**23 - 1), np.int64(size >> np.uint64(23)), _HIDDEN_REAL, _BIAS_REAL)
    return _put_decimal(data, end, digits, power, 6)


@inlined
def _put_decimal(data: Bytes, end: Any, digits: Any, power: Any, most: int) -> Any:
    """Write digits × 10^power; with an exponent below 1e-4, and from 10^most on."""
    while digits % _10 == _0:
        digits //= _10
        power += 1
    count = 1
    rest = digits // _10
    while rest:
        count += 1
        rest //= _10
    exponent = power + count - 1
    if exponent < -4 or exponent >= most:
        end = _put_digits(data, end, digits, count, 1)
        data[end] = 101
        data[end + 1] = 45 if exponent < 0 else 43
        end += 2
        exponent = abs(exponent)
        if exponent >= 100:
            data[end] = 48 + exponent // 100
            end += 1
        data[end] = 48 + exponent // 10 % 10
        data[end + 1] = 48 + exponent % 10
        return end + 2
    if exponent < 0:
        data[end] = 48
        data[end + 1] = 46
        end += 2
        for _ in range(-1 - exponent):
            data[end] = 48
            end += 1
        return _put_digits(data, end, digits, count, count)
    end = _put_digits(data, end, digits, count, exponent + 1)
    for _ in range(power):
        data[end] = 48
        end += 1
    return end


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


# -- floats as text ----------------------------------------------------------------------------------------------------

_MOST_PRINTED = 32
_WIDTH_REASONS = ("binary value of the wrong length",)


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, I32, U8))
def _print_floats(buf: Bytes, off: Ints, length: Ints, width: int, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != width:
            return blame(r, 0)
        bits = uint(buf, start(off, r), width)
        end = put_double(data, end, bits) if width == 8 else _put_real(data, end, bits)
    offsets[length.size] = end
    return FINE


def _text_codec(width: int) -> ColumnCodec:
    def print_all(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
        return int(_print_floats(buf, off, length, width, offsets, data))

    return text_output_codec(print_all, fixed_room(_MOST_PRINTED), _WIDTH_REASONS)


REAL_TEXT, DOUBLE_TEXT = _text_codec(4), _text_codec(8)
