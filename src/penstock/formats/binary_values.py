"""Values in binary encodings: varints, big-endian integers, UTF-8.

Functions that read return the value and the address after it; a negative address is an error code.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import byte, word

__all__ = ["ENDED", "OVERFLOW", "big_endian", "invalid_utf8", "signed", "varint", "within_precision"]

ENDED = constant(-1)
OVERFLOW = constant(-2)

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U8 = np.uint64(8)
_U56 = np.uint64(56)
_HIGH_BITS = constant(-0x7F7F7F7F7F7F7F80)  # 80 80 80 80 80 80 80 80
_POWERS = [10**exponent for exponent in range(39)]
_POWER_HIGH = np.array([power >> 64 for power in _POWERS], np.uint64)
_POWER_LOW = np.array([power & (2**64 - 1) for power in _POWERS], np.uint64)


@inner
def varint(at: int, end: int) -> tuple[int, int]:
    """Read a base-128 varint of at most 64 bits; a value with bit 63 set is negative here."""
    if at < end and byte(at) < 128:
        return byte(at), at + 1
    result, shift = np.int64(0), np.int64(0)
    while at < end:
        found = byte(at)
        at += 1
        if shift == 63 and found > 1:
            return result, OVERFLOW
        result |= (found & 127) << shift
        if found < 128:
            return result, at
        shift += 7
    return result, ENDED


@inner
def signed(number: int) -> int:
    """Decode a zigzag integer."""
    return np.int64(np.uint64(number) >> _U1) ^ -(number & 1)


@inner
def big_endian(at: int, width: int) -> tuple[int, int, bool]:
    """Read a two's complement integer of any width: its upper and lower 64 bits, and whether it fits in 128 bits."""
    negative = width > 0 and byte(at) >= 128
    sign = 255 if negative else 0
    high = np.uint64(0) - np.uint64(negative)
    low = high
    for index in range(width):
        if width - index > 16 and byte(at + index) != sign:
            return NIL, NIL, False
        high = (high << _U8) | (low >> _U56)
        low = (low << _U8) | np.uint64(byte(at + index))
    return np.int64(high), np.int64(low), (np.int64(high) < 0) == negative


@inner
def within_precision(high: int, low: int, precision: int) -> bool:
    """Return whether a 128-bit integer has at most `precision` decimal digits."""
    up, down = np.uint64(high), np.uint64(low)
    if high < 0:
        down = ~down + _U1
        up = ~up + np.uint64(down == _U0)
    limit = _POWER_HIGH[precision]
    return bool(up < limit or (up == limit and down < _POWER_LOW[precision]))


@inner
def invalid_utf8(at: int, end: int) -> int:
    """Return the address of the first invalid UTF-8 (overlong forms, surrogates, truncated sequences), or -1."""
    while at < end:
        while end - at >= 8 and word(at) & _HIGH_BITS == 0:
            at += 8
        if at >= end:
            break
        first = byte(at)
        if first < 0x80:
            at += 1
            continue
        if first < 0xC2 or first > 0xF4:
            return at
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if at + more >= end:
            return at
        lowest = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        highest = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if byte(at + 1) < lowest or byte(at + 1) > highest:
            return at
        for place in range(at + 2, at + more + 1):
            if byte(place) & 0xC0 != 0x80:
                return at
        at += more + 1
    return -1
