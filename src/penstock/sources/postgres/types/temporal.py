"""date → date32, timestamp → timestamp[us], timestamptz → timestamp[us, UTC]; time, timetz → string.

The binary form of a date or timestamp is a count of days (32 bits) or microseconds (64 bits) since 2000-01-01,
converted to the epoch 1970. Text is ISO 8601 as `DateStyle = ISO` prints it: `2026-11-15`,
`2026-11-15 05:38:00.123456`, and an offset `+00`, `-03`, `+05:30` or `+01:02:03` after a timestamptz. Sessions set
`TimeZone = UTC`, but any numeric offset is correct: it is subtracted.

Both forms hold microseconds, so nothing is rounded. Infinities, BC and years past 9999 exist in Postgres but not in
Spark's calendar of 0001..9999: they are bad values with a separate reason.

Where a column of dates or timestamps is stored as text, the binary form is printed as Postgres does with these
settings: `infinity`, `0044-03-15 BC`, `294276-12-31 23:59:59.999999+00`.

A time becomes `HH:MM:SS[.ffffff]`, a timetz has its offset after that: Spark has no such types, and none holds
24:00:00. Binary is microseconds since midnight (64 bits), and for timetz the seconds west of UTC (32 bits).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, Bytes, ColumnCodec, Ints, Mask
from penstock.sources.postgres.types.column import fixed_width
from penstock.sources.postgres.types.kernel import (
    FINE,
    I32,
    I64,
    IN8,
    IN32,
    STRICT,
    U8,
    blame,
    inlined,
    kernel,
    start,
    uint,
)
from penstock.sources.postgres.types.text_output import fixed_room, put_number, put_two_digits, text_output_codec

__all__ = [
    "DATE",
    "DATE_TEXT",
    "TIME",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "TIMESTAMPTZ_TEXT",
    "TIMESTAMP_TEXT",
    "TIMETZ",
]

_DAY = 86_400_000_000

_MALFORMED, _INFINITE, _OUTSIDE, _WIDTH = range(4)
_REASONS = (
    "malformed date or time; the session requires DateStyle = ISO",
    f"infinity, which no date type of Spark can hold{KEEP_TEXT}",
    f"date outside the years 0001 to 9999{KEEP_TEXT}",
    "binary value of the wrong length",
)

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_EPOCH_DAYS = 10_957
_FIRST_US, _LAST_US = _FIRST_DAY * _DAY, (_LAST_DAY + 1) * _DAY - 1
_EPOCH_US = _EPOCH_DAYS * _DAY
_NOT_A_DAY = -(10**9)
_NOT_A_TIME = -(2**63)
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_FRACTION = np.array([0, 100_000, 10_000, 1_000, 100, 10, 1], np.int64)
_DATE, _TIMESTAMP, _TIMESTAMPTZ = range(3)


@inlined
def _two_digits(buf: Bytes, at: int) -> Any:
    """Return the number of two digits, or -1."""
    tens = np.uint8(buf[at] - 48)
    ones = np.uint8(buf[at + 1] - 48)
    return np.int64(tens) * 10 + np.int64(ones) if tens <= 9 and ones <= 9 else np.int64(-1)


@inlined
def _days(buf: Bytes, at: int) -> Any:
    """Return the days since 1970 of the ten bytes `YYYY-MM-DD`, or _NOT_A_DAY."""
    century, year, month, day = (
        _two_digits(buf, at),
        _two_digits(buf, at + 2),
        _two_digits(buf, at + 5),
        _two_digits(buf, at + 8),
    )
    if (century | year | month | day) < 0 or buf[at + 4] != 45 or buf[at + 7] != 45:
        return _NOT_A_DAY
    year += 100 * century
    leap = (year & 3) == 0 and (year % 100 != 0 or year % 400 == 0)
    if month < 1 or month > 12 or day < 1 or day > _MONTH_DAYS[month] + (leap and month == 2):
        return _NOT_A_DAY
    # Years start in March, so that the leap day is the last one; 400 of them are an era of 146097 days.
    if month <= 2:
        year -= 1
        month += 12
    return year * 365 + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 1 - 719_468


@inlined
def _offset(buf: Bytes, at: int, end: int) -> Any:
    """Return the microseconds of `+HH[:MM[:SS]]` up to `end`, or _NOT_A_TIME."""
    size = end - at
    if (size != 3 and size != 6 and size != 9) or (buf[at] != 43 and buf[at] != 45):
        return _NOT_A_TIME
    hours = _two_digits(buf, at + 1)
    minutes = 0
    seconds = 0
    if size >= 6:
        minutes = _two_digits(buf, at + 4) if buf[at + 3] == 58 else -1
    if size == 9:
        seconds = _two_digits(buf, at + 7) if buf[at + 6] == 58 else -1
    if (hours | minutes | seconds) < 0 or hours > 15 or minutes > 59 or seconds > 59:
        return _NOT_A_TIME
    total = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return total if buf[at] == 43 else -total


@inlined
def _microseconds(buf: Bytes, at: int, end: int, zoned: bool) -> Any:
    """Return the microseconds since 1970 of a timestamp, or _NOT_A_TIME."""
    if end - at < 19:
        return _NOT_A_TIME
    days = _days(buf, at)
    hours, minutes, seconds = _two_digits(buf, at + 11), _two_digits(buf, at + 14), _two_digits(buf, at + 17)
    is_invalid = days == _NOT_A_DAY or (hours | minutes | seconds) < 0 or hours > 23 or minutes > 59 or seconds > 59
    if is_invalid or buf[at + 10] != 32 or buf[at + 13] != 58 or buf[at + 16] != 58:
        return _NOT_A_TIME
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000_000
    at += 19
    if at < end and buf[at] == 46:
        at += 1
        first = at
        fraction: Any = 0
        while at < end and at < first + 6 and np.uint8(buf[at] - 48) <= 9:
            fraction = fraction * 10 + np.int64(buf[at] - 48)
            at += 1
        if at == first:
            return _NOT_A_TIME
        total += fraction * _FRACTION[at - first]
    if not zoned:
        return total if at == end else _NOT_A_TIME
    offset = _offset(buf, at, end)
    return total - offset if offset != _NOT_A_TIME else _NOT_A_TIME


@inlined
def _reason(buf: Bytes, at: int, end: int) -> int:
    """Return the reason why a text is not a date of the years 0001 to 9999."""
    if end - at > 3 and buf[end - 3] == 32 and buf[end - 2] == 66 and buf[end - 1] == 67:
        return _OUTSIDE
    digits = at
    while digits < end and np.uint8(buf[digits] - 48) <= 9:
        digits += 1
    if digits - at > 4 and digits < end and buf[digits] == 45:
        return _OUTSIDE
    if at < end and buf[at] == 45:
        at += 1
    infinite = end - at == 8 and buf[at] == 105 and buf[at + 1] == 110 and buf[at + 2] == 102 and buf[at + 7] == 121
    return _INFINITE if infinite else _MALFORMED


@kernel(*(nb.int64(IN8, IN32, IN32, nb.int64, nb.int64, nb.int64, out, U8) for out in (I32, I64)))
def _text(buf: Bytes, off: Ints, length: Ints, kind: int, first: int, last: int, out: Any, found: Bytes) -> int:
    # If `found` is not empty, values that the type cannot hold are marked there, and not blamed.
    for r in range(length.size):
        if length[r] < 0:
            out[r] = 0
            continue
        at = start(off, r)
        end = at + length[r]
        if kind == _DATE:
            value = _days(buf, at) if end - at == 10 else _NOT_A_DAY
            is_valid = value != _NOT_A_DAY
        else:
            value = _microseconds(buf, at, end, kind == _TIMESTAMPTZ)
            is_valid = value != _NOT_A_TIME
        if not is_valid or value < first or value > last:
            reason = _OUTSIDE if is_valid else _reason(buf, at, end)
            if reason == _MALFORMED or not found.size:
                return blame(r, reason)
            found[r] = 1
            continue
        out[r] = value
    return FINE


@kernel(*(nb.int64(IN8, IN32, IN32, nb.int64, nb.int64, nb.int64, out, U8) for out in (I32, I64)))
def _binary(buf: Bytes, off: Ints, length: Ints, epoch: int, first: int, last: int, out: Any, found: Bytes) -> int:
    width = out.itemsize
    spare = np.uint64(64 - 8 * width)
    most = np.int64((1 << (8 * width - 1)) - 1)
    for r in range(length.size):
        if length[r] < 0:
            out[r] = 0
            continue
        if length[r] != width:
            return blame(r, _WIDTH)
        value = np.int64(uint(buf, start(off, r), width) << spare) >> np.int64(spare)
        if value < first - epoch or value > last - epoch:
            if not found.size:
                return blame(r, _INFINITE if value == most or value == -most - 1 else _OUTSIDE)
            found[r] = 1
            continue
        out[r] = value + epoch
    return FINE


def _codec(arrow: pa.DataType, dtype: Any, kind: int, epoch: int, first: int, last: int) -> ColumnCodec:
    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, dtype)
        BadValueError.check(_text(buf, off, length, kind, first, last, out, STRICT), _REASONS)
        return fixed_width(arrow, out, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        out = np.empty(length.size, dtype)
        BadValueError.check(_binary(buf, off, length, epoch, first, last, out, STRICT), _REASONS)
        return fixed_width(arrow, out, length)

    def unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
        out, found = np.empty(length.size, dtype), np.zeros(length.size, np.uint8)
        fill, of = (_text, kind) if is_text else (_binary, epoch)
        BadValueError.check(fill(buf, off, length, of, first, last, out, found), _REASONS)
        return found.view(np.bool_)

    return ColumnCodec(arrow, text, binary, unrepresentable=unrepresentable)


DATE = _codec(pa.date32(), np.int32, _DATE, _EPOCH_DAYS, _FIRST_DAY, _LAST_DAY)
TIMESTAMP = _codec(pa.timestamp("us"), np.int64, _TIMESTAMP, _EPOCH_US, _FIRST_US, _LAST_US)
TIMESTAMPTZ = _codec(pa.timestamp("us", "UTC"), np.int64, _TIMESTAMPTZ, _EPOCH_US, _FIRST_US, _LAST_US)


# -- time, timetz ------------------------------------------------------------------------------------------------------

_TIME_REASONS = ("malformed time of day",)
_MOST_OFFSET = 16 * 3600


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
def _print_times(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes, zoned: bool) -> int:
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
            if abs(west) >= _MOST_OFFSET:
                return blame(r, 0)
            end = _put_offset(data, end, west)
    offsets[length.size] = end
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_time(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    return _print_times(buf, off, length, offsets, data, False)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_timetz(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    return _print_times(buf, off, length, offsets, data, True)


TIME = text_output_codec(_print_time, fixed_room(15), _TIME_REASONS)
TIMETZ = text_output_codec(_print_timetz, fixed_room(24), _TIME_REASONS)


# -- dates and timestamps as text --------------------------------------------------------------------------------------

_PRINTED_REASONS = ("malformed date or timestamp",)
_FIRST_PRINTED, _END_PRINTED = -2_451_545 + _EPOCH_DAYS, 2_145_031_949 + _EPOCH_DAYS
"""The days since 1970 that Postgres has: from 4714-11-24 BC, until before 5874898-01-01."""
_INFINITY = np.frombuffer(b"-infinity", np.uint8).copy()


@inlined
def _put_infinity(data: Bytes, end: Any, skipped: int) -> Any:
    """Write `-infinity`, or `infinity` if one byte of it is skipped."""
    for k in range(skipped, 9):
        data[end] = _INFINITY[k]
        end += 1
    return end


@inlined
def _put_day(data: Bytes, end: Any, days: Any) -> tuple[Any, bool]:
    """Write the date of some days since 1970, without its era; return the offset after it, and whether it is BC."""
    shifted = days + 719_468  # since 0000-03-01: years start in March here, too
    era = shifted // 146_097
    day = shifted - era * 146_097
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += 400 * era
    if month >= 10:
        year += 1
        month -= 12
    is_bc = year <= 0
    if is_bc:
        year = 1 - year
    if year > 9999:
        end = put_number(data, end, np.uint64(year))
    else:
        end = put_two_digits(data, end, year // 100)
        end = put_two_digits(data, end, year % 100)
    data[end] = 45
    end = put_two_digits(data, end + 1, month + 3)
    data[end] = 45
    return put_two_digits(data, end + 1, day + 1), is_bc


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, I32, U8))
def _print_moments(buf: Bytes, off: Ints, length: Ints, kind: int, offsets: Ints, data: Bytes) -> int:
    width = 4 if kind == _DATE else 8
    spare = np.uint64(64 - 8 * width)
    most = np.int64((1 << (8 * width - 1)) - 1)
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != width:
            return blame(r, 0)
        value = np.int64(uint(buf, start(off, r), width) << spare) >> np.int64(spare)
        if value == most or value == -most - 1:
            end = _put_infinity(data, end, 1 if value > 0 else 0)
            continue
        days = value if kind == _DATE else value // _DAY
        time = 0 if kind == _DATE else value - days * _DAY
        days += _EPOCH_DAYS
        if days < _FIRST_PRINTED or days >= _END_PRINTED:
            return blame(r, 0)
        end, is_bc = _put_day(data, end, days)
        if kind != _DATE:
            data[end] = 32
            end = _put_time(data, end + 1, time)
        if kind == _TIMESTAMPTZ:
            end = _put_offset(data, end, 0)
        if is_bc:
            data[end] = 32
            data[end + 1] = 66
            data[end + 2] = 67
            end += 3
    offsets[length.size] = end
    return FINE


def _moments_text(kind: int, width: int) -> ColumnCodec:
    def print_all(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
        return int(_print_moments(buf, off, length, kind, offsets, data))

    return text_output_codec(print_all, fixed_room(width), _PRINTED_REASONS)


DATE_TEXT = _moments_text(_DATE, 16)
TIMESTAMP_TEXT = _moments_text(_TIMESTAMP, 32)
TIMESTAMPTZ_TEXT = _moments_text(_TIMESTAMPTZ, 35)
