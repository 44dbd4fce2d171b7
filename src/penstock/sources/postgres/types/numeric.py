"""numeric(p, s) → decimal128(p, s), for 1 <= p <= 38 and 0 <= s <= p; any other numeric → string.

Text is an optional minus, digits, and an optional fraction. Binary is four 16-bit words (number of digits, weight,
sign, display scale) and then digits of base 10000, the first of which counts 10000^weight.

**decimal128.** Both forms push digits into an unsigned 128-bit integer of two 64-bit limbs, counting significant
decimal digits; more than 38 of them are never pushed, so nothing wraps (10^38 < 2^127), and more than p are rejected.
Digits beyond the scale must be zero: no value is ever rounded. NaN and the infinities have no decimal128 and are bad
values.

**string.** A numeric without precision, wider than 38 digits, or with a scale outside 0..p is stored as the text that
Postgres prints, with trailing zeros, `NaN` and infinities. For the binary form, a first pass checks a value and
measures its text, a second pass prints it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, Bytes, ColumnCodec, Ints, Mask
from penstock.sources.postgres.types.column import fixed_width, gather_bytes, variable_width
from penstock.sources.postgres.types.kernel import (
    FINE,
    I32,
    IN8,
    IN32,
    STRICT,
    U8,
    U64,
    Kernel,
    blame,
    inlined,
    kernel,
    read16,
    start,
)
from penstock.sources.postgres.types.text_output import TOO_LONG

__all__ = ["NUMERIC_OID", "numeric"]

_WIDEST = 38
_NEGATIVE, _NAN, _PLUS_INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_POW10 = np.array([1, 10, 100, 1000, 10000], np.int64)


# -- decimal128 --------------------------------------------------------------------------------------------------------

_MALFORMED, _TOO_WIDE, _BEYOND_SCALE, _SPECIAL = range(4)
_DECIMAL_REASONS = (
    "malformed numeric",
    f"numeric with more digits than its precision{KEEP_TEXT}",
    f"numeric with digits beyond its scale{KEEP_TEXT}",
    f"numeric NaN or infinity, which no decimal can hold{KEEP_TEXT}",
)

_MASK32 = np.uint64(2**32 - 1)
_32 = np.uint64(32)
_0 = np.uint64(0)
_MAX_SINGLE_LIMB = np.uint64((2**64 - 10_000) // 10_000)


@inlined
def _push(high: Any, low: Any, factor: Any, digit: Any) -> tuple[Any, Any]:
    """Return (high, low) × factor + digit, where factor and digit are at most 10000."""
    by = np.uint64(factor)
    add = np.uint64(digit)
    if high == _0 and low <= _MAX_SINGLE_LIMB:
        return high, low * by + add
    first = (low & _MASK32) * by + add
    second = (low >> _32) * by + (first >> _32)
    return high * by + (second >> _32), (second << _32) | (first & _MASK32)


@inlined
def _pad(high: Any, low: Any, zeros: int) -> tuple[Any, Any]:
    while zeros >= 4:
        high, low = _push(high, low, 10000, 0)
        zeros -= 4
    return _push(high, low, _POW10[zeros], 0)


@inlined
def _store(out: Any, r: int, high: Any, low: Any, minus: bool) -> None:
    if minus:
        high = ~high + np.uint64(low == _0)
        low = ~low + np.uint64(1)
    out[2 * r] = low
    out[2 * r + 1] = high


@inlined
def _is_special(buf: Bytes, at: int, end: int) -> Any:
    """Return whether it is NaN, Infinity or -Infinity."""
    if at < end and buf[at] == 45:
        at += 1
    if end - at == 3:
        return buf[at] == 78 and buf[at + 1] == 97 and buf[at + 2] == 78
    return end - at == 8 and buf[at] == 73 and buf[at + 1] == 110 and buf[at + 7] == 121


@inlined
def _text_value(buf: Bytes, at: Any, end: Any, precision: int, scale: int) -> tuple[Any, Any, int]:
    """Return high limb, low limb, and the reason why it is bad (or FINE); `at` is after the sign."""
    high, low = _0, _0
    significant = 0
    fraction = -1
    reason = FINE
    if at >= end or buf[at] == 46 or buf[end - 1] == 46:
        return high, low, _MALFORMED
    while at < end:
        digit = np.int64(np.uint8(buf[at] - 48))
        if digit <= 9:
            fraction += fraction >= 0
            if fraction > scale:
                reason = max(reason, _BEYOND_SCALE) if digit else reason
            elif significant or digit:
                significant += 1
                if significant <= _WIDEST:
                    high, low = _push(high, low, 10, digit)
        elif buf[at] == 46 and fraction < 0:
            fraction = 0
        else:
            return high, low, _MALFORMED
        at += 1
    zeros = scale - min(max(fraction, 0), scale)
    if significant and significant + zeros > precision:
        return high, low, max(reason, _TOO_WIDE)
    high, low = _pad(high, low, zeros)
    return high, low, reason


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, nb.int64, U64, U8))
def _text_decimals(buf: Bytes, off: Ints, length: Ints, precision: int, scale: int, out: Any, found: Bytes) -> int:
    for r in range(length.size):
        out[2 * r] = 0
        out[2 * r + 1] = 0
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        minus = at < end and buf[at] == 45
        high, low, reason = _text_value(buf, at + np.int64(minus), end, precision, scale)
        if reason != FINE:
            reason = _SPECIAL if reason == _MALFORMED and _is_special(buf, at, end) else reason
            if reason == _MALFORMED or not found.size:
                return blame(r, reason)
            found[r] = 1
            continue
        _store(out, r, high, low, minus)
    return FINE


@inlined
def _decimal_digits(digit: int) -> int:
    return 1 + (digit >= 10) + (digit >= 100) + (digit >= 1000)


@inlined
def _binary_value(buf: Bytes, at: int, count: int, power: int, precision: int) -> tuple[Any, Any, int]:
    """Like `_text_value`; the first digit of `count` counts 10^power units of the scale."""
    high, low = _0, _0
    significant = 0
    for k in range(count):
        digit = read16(buf, at + 2 * k)
        if digit > 9999:
            return high, low, _MALFORMED
        kept = min(max(4 + power, 0), 4)
        if kept < 4:
            if digit % _POW10[4 - kept]:
                return high, low, _BEYOND_SCALE
            digit //= _POW10[4 - kept]
        if significant:
            significant += kept
        elif digit:
            significant = _decimal_digits(digit)
        if significant > precision:
            return high, low, _TOO_WIDE
        if significant:
            high, low = _push(high, low, _POW10[kept], digit)
        power -= 4
    zeros = max(power + 4, 0)
    if significant == 0:
        return high, low, FINE
    if significant + zeros > precision:
        return high, low, _TOO_WIDE
    high, low = _pad(high, low, zeros)
    return high, low, FINE


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, nb.int64, U64, U8))
def _binary_decimals(buf: Bytes, off: Ints, length: Ints, precision: int, scale: int, out: Any, found: Bytes) -> int:
    for r in range(length.size):
        out[2 * r] = 0
        out[2 * r + 1] = 0
        if length[r] < 0:
            continue
        at = start(off, r)
        if length[r] < 8 or length[r] != 8 + 2 * read16(buf, at):
            return blame(r, _MALFORMED)
        sign = read16(buf, at + 4)
        if sign in (_NAN, _PLUS_INFINITY, _MINUS_INFINITY):
            if not found.size:
                return blame(r, _SPECIAL)
            found[r] = 1
            continue
        if sign != 0 and sign != _NEGATIVE:
            return blame(r, _MALFORMED)
        weight = (read16(buf, at + 2) ^ 0x8000) - 0x8000
        high, low, reason = _binary_value(buf, at + 8, read16(buf, at), 4 * weight + scale, precision)
        if reason != FINE:
            if reason == _MALFORMED or not found.size:
                return blame(r, reason)
            found[r] = 1
            continue
        _store(out, r, high, low, sign == _NEGATIVE)
    return FINE


# -- string ------------------------------------------------------------------------------------------------------------

_TEXT_REASONS = ("malformed numeric", TOO_LONG)
_MOST_BYTES = 2**31 - 1
_MOST_SCALE = 0x3FFF
_WORDS = np.frombuffer(b"NaNInfinity-Infinity", np.uint8).copy()


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
        if total > _MOST_BYTES:
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


def _copy_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.string(), buf, off, length)


def _print_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    total = _measure(buf, off, length, offsets)
    BadValueError.check(total, _TEXT_REASONS)
    data = np.empty(~total, np.uint8)
    _print(buf, off, length, offsets, data)
    return variable_width(pa.string(), offsets, data, length)


_NUMERIC_TEXT = ColumnCodec(pa.string(), _copy_text, _print_binary)


# -- codec -------------------------------------------------------------------------------------------------------------

NUMERIC_OID = 1700


def _declared(typmod: int) -> tuple[int, int]:
    """Return precision and scale of a typmod, as Postgres 15 and later pack them (earlier ones are compatible)."""
    packed = typmod - 4
    return (packed >> 16) & 0xFFFF, ((packed & 0x7FF) ^ 1024) - 1024


@lru_cache(maxsize=1024)
def numeric(typmod: int) -> ColumnCodec:
    """Return the codec of a numeric: decimal128 if that holds every value, otherwise text."""
    precision, scale = _declared(typmod) if typmod >= 4 else (0, 0)
    if not 1 <= precision <= _WIDEST or not 0 <= scale <= precision:
        return _NUMERIC_TEXT
    arrow = pa.decimal128(precision, scale)

    def decode(fill: Kernel, buf: Bytes, off: Ints, length: Ints, found: Bytes = STRICT) -> pa.Array:
        out: npt.NDArray[np.uint64] = np.empty(2 * length.size, np.uint64)
        BadValueError.check(fill(buf, off, length, precision, scale, out, found), _DECIMAL_REASONS)
        return fixed_width(arrow, out, length)

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return decode(_text_decimals, buf, off, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return decode(_binary_decimals, buf, off, length)

    def unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
        found = np.zeros(length.size, np.uint8)
        decode(_text_decimals if is_text else _binary_decimals, buf, off, length, found)
        return found.view(np.bool_)

    return ColumnCodec(arrow, text, binary, unrepresentable=unrepresentable)
