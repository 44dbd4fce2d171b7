"""time, timetz → string `HH:MM:SS[.ffffff]`, timetz with its offset: Spark has no such types, and none holds 24:00:00.

Binary is microseconds since midnight (64 bits), and for timetz the seconds west of UTC (32 bits).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types as nb

from penstock.sources.postgres.types.codec import Bytes, Ints
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, start, uint
from penstock.sources.postgres.types.text_output import fixed_room, put_two_digits, text_output_codec

__all__ = ["TIME", "TIMETZ"]

_REASONS = ("malformed time of day",)
_DAY = 86_400_000_000
_ZONES = 16 * 3600


@inlined
def _put_time(data: Bytes, end: Any, value: Any) -> Any:
    seconds = value // 1_000_000
    end = put_two_digits(data, end, seconds // 3600)
    data[end] = 58
    end = put_two_digits(data, end + 1, seconds // 60 % 60)
    data[end] = 58
    end = put_two_digits(data, end + 1, seconds % 60)
    rest = value % 1_000_000
    if rest:
        data[end] = 46
        end += 1
        unit = 100_000
        while rest:
            data[end] = 48 + rest // unit
            rest %= unit
            unit //= 10
            end += 1
    return end


@inlined
def _put_offset(data: Bytes, end: Any, west: Any) -> Any:
    data[end] = 45 if west > 0 else 43
    seconds = abs(west)
    end = put_two_digits(data, end + 1, seconds // 3600)
    if seconds % 3600:
        data[end] = 58
        end = put_two_digits(data, end + 1, seconds // 60 % 60)
    if seconds % 60:
        data[end] = 58
        end = put_two_digits(data, end + 1, seconds % 60)
    return end


@inlined
def _print(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes, zoned: bool) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != (12 if zoned else 8):
            return blame(r, 0)
        at = start(off, r)
        value = np.int64(uint(buf, at, 8))
        if value < 0 or value > _DAY:
            return blame(r, 0)
        end = _put_time(data, end, value)
        if zoned:
            west = (np.int64(uint(buf, at + 8, 4)) ^ 0x80000000) - 0x80000000
            if abs(west) >= _ZONES:
                return blame(r, 0)
            end = _put_offset(data, end, west)
    offsets[length.size] = end
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_time(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    return _print(buf, off, length, offsets, data, False)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_timetz(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    return _print(buf, off, length, offsets, data, True)


TIME = text_output_codec(_print_time, fixed_room(15), _REASONS)
TIMETZ = text_output_codec(_print_timetz, fixed_room(24), _REASONS)
