"""Numbers and text as binary formats write them: varints, little-endian words, decimals, UTF-8.

Functions that read return the value and the place after it; a negative place says why there is none.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.sink import Bytes, inner

__all__ = [
    "ENDED",
    "OVERFLOW",
    "big_endian",
    "invalid_utf8",
    "little_endian",
    "signed",
    "varint",
    "within_precision",
]

ENDED = np.int64(-1)
OVERFLOW = np.int64(-2)

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U7 = np.uint64(7)
_U8 = np.uint64(8)
_U56 = np.uint64(56)
_LOW7 = np.uint64(127)
_POWERS = [10**exponent for exponent in range(39)]
_POWER_HIGH = np.array([power >> 64 for power in _POWERS], np.uint64)
_POWER_LOW = np.array([power & (2**64 - 1) for power in _POWERS], np.uint64)


@inner
def varint(data: Bytes, at: int, end: int) -> tuple[np.uint64, int]:
    """Read a base-128 number of at most 64 bits."""
    result, shift = _U0, _U0
    for index in range(10):
        if at >= end:
            return result, ENDED
        byte = np.uint64(data[at])
        at += 1
        if index == 9 and byte > _U1:
            return result, OVERFLOW
        result |= (byte & _LOW7) << shift
        if byte <= _LOW7:
            return result, at
        shift += _U7
    return result, OVERFLOW


@inner
def signed(number: np.uint64) -> int:
    """Undo the zigzag that keeps small negative numbers short."""
    return np.int64(number >> _U1) ^ -np.int64(number & _U1)


@inner
def little_endian(data: Bytes, at: int, width: int) -> np.uint64:
    """Read `width` bytes, least first; the caller knows that they are there."""
    result = _U0
    for index in range(width - 1, -1, -1):
        result = (result << _U8) | np.uint64(data[at + index])
    return result


@inner
def big_endian(data: Bytes, at: int, width: int) -> tuple[int, np.uint64, bool]:
    """Read a two's complement number of any width: its upper and lower 64 bits, and whether 128 are enough."""
    negative = width > 0 and data[at] >= 128
    sign = 255 if negative else 0
    high = np.uint64(0) - np.uint64(negative)
    low = high
    for index in range(width):
        if width - index > 16 and data[at + index] != sign:
            return 0, _U0, False
        high = (high << _U8) | (low >> _U56)
        low = (low << _U8) | np.uint64(data[at + index])
    return np.int64(high), low, (np.int64(high) < 0) == negative


@inner
def within_precision(high: int, low: np.uint64, precision: int) -> bool:
    """Say whether a number of 128 bits has at most `precision` decimal digits."""
    up, down = np.uint64(high), low
    if high < 0:
        down = ~low + _U1
        up = ~np.uint64(high) + np.uint64(down == _U0)
    limit = _POWER_HIGH[precision]
    return bool(up < limit or (up == limit and down < _POWER_LOW[precision]))


@inner
def invalid_utf8(data: Bytes, at: int, end: int) -> int:
    """Return where text stops being UTF-8 (overlong forms, surrogates and halves included), or -1."""
    while at < end:
        first = data[at]
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
        if data[at + 1] < lowest or data[at + 1] > highest:
            return at
        for index in range(2, more + 1):
            if data[at + index] < 0x80 or data[at + index] > 0xBF:
                return at
        at += more + 1
    return -1
