"""interval → struct<months: int, days: int, microseconds: bigint>, the three counts that Postgres stores.

They cannot be converted into each other (a month has no fixed number of days, a day none of hours), and no interval
type of Spark holds all three. Binary is microseconds (64 bits), days and months (32 bits each). Text is ISO 8601 as
`IntervalStyle = iso_8601` prints it, each part with its own sign: `P1Y-2M3DT-4H5M-6.5S`.

Infinite intervals (Postgres 17) have the greatest or least value in all three counts: they are bad values.

`INTERVAL_TEXT` prints the binary form in the same style, including `infinity`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, Bytes, ColumnCodec, Ints, Mask
from penstock.sources.postgres.types.column import fixed_width, structs
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
from penstock.sources.postgres.types.text_output import fixed_room, put_number, text_output_codec

__all__ = ["INTERVAL", "INTERVAL_TEXT"]

_MALFORMED, _INFINITE, _OUTSIDE, _WIDTH = range(4)
_REASONS = (
    "malformed interval; the session requires IntervalStyle = iso_8601",
    f"infinite interval, which no Spark type can hold{KEEP_TEXT}",
    "interval outside the range of its type",
    "binary value of the wrong length",
)
_MOST_32, _LEAST_32 = 2**31 - 1, -(2**31)
_MOST_64, _LEAST_64 = 2**63 - 1, -(2**63)
_CAP = 10**15
_MONTHS = np.array([12, 1, 0, 0, 0, 0], np.int64)
_MICROSECONDS = np.array([0, 0, 0, 3_600_000_000, 60_000_000, 1_000_000], np.int64)
_LETTERS = np.frombuffer(b"YMDHMS", np.uint8).copy()


@inlined
def _part(buf: Bytes, at: Any, end: int) -> tuple[Any, Any, Any, bool]:
    """Return a count, its millionths, the offset after them, and whether it is a number; both counts carry the sign."""
    minus = at < end and buf[at] == 45
    at += minus
    first = at
    value: Any = np.int64(0)
    while at < end and np.uint8(buf[at] - 48) <= 9:
        value = min(value * 10 + np.int64(buf[at] - 48), _CAP)
        at += 1
    is_number = at > first
    fraction: Any = np.int64(0)
    if at < end and buf[at] == 46:
        unit = 100_000
        at += 1
        is_number = is_number and at < end and np.uint8(buf[at] - 48) <= 9
        while at < end and unit and np.uint8(buf[at] - 48) <= 9:
            fraction += unit * np.int64(buf[at] - 48)
            unit //= 10
            at += 1
    return (-value, -fraction, at, is_number) if minus else (value, fraction, at, is_number)


@inlined
def _add(total: Any, value: Any, unit: Any) -> tuple[Any, bool]:
    """Return the sum of total and value × unit, and whether 64 bits hold it; `value` is at most _CAP."""
    if unit > 1 and abs(value) > _MOST_64 // unit:
        return total, False
    product = value * unit
    if (product > 0 and total > _MOST_64 - product) or (product < 0 and total < _LEAST_64 - product):
        return total, False
    return total + product, True


@inlined
def _parse(buf: Bytes, at: Any, end: int) -> tuple[Any, Any, Any, int]:
    months, days, micros = np.int64(0), np.int64(0), np.int64(0)
    if end - at < 3 or buf[at] != 80:
        return months, days, micros, _MALFORMED
    at += 1
    unit, timed, parts = 0, False, 0
    while at < end:
        if buf[at] == 84 and not timed:
            timed, unit, parts = True, 3, 0
            at += 1
        value, fraction, at, is_number = _part(buf, at, end)
        if not is_number or at >= end:
            return months, days, micros, _MALFORMED
        last = 6 if timed else 3
        while unit < last and _LETTERS[unit] != buf[at]:
            unit += 1
        if unit == last or (fraction and unit != 5):
            return months, days, micros, _MALFORMED
        months, fits_months = _add(months, value, _MONTHS[unit])
        micros, fits_micros = _add(micros, value, _MICROSECONDS[unit])
        micros, fits_fraction = _add(micros, fraction, 1)
        days = value if unit == 2 else days
        if not (fits_months and fits_micros and fits_fraction):
            return months, days, micros, _OUTSIDE
        at += 1
        unit += 1
        parts += 1
    if not parts:
        return months, days, micros, _MALFORMED
    within = _LEAST_32 <= months <= _MOST_32 and _LEAST_32 <= days <= _MOST_32
    return months, days, micros, FINE if within else _OUTSIDE


@inlined
def _is_infinite(buf: Bytes, at: Any, end: int) -> Any:
    if at < end and buf[at] == 45:
        at += 1
    return end - at == 8 and buf[at] == 105 and buf[at + 1] == 110 and buf[at + 2] == 102 and buf[at + 7] == 121


@kernel(nb.int64(IN8, IN32, IN32, I32, I32, I64, U8))
def _text(buf: Bytes, off: Ints, length: Ints, months: Ints, days: Ints, micros: Any, found: Bytes) -> int:
    for r in range(length.size):
        months[r], days[r], micros[r] = 0, 0, 0
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        months[r], days[r], micros[r], reason = _parse(buf, at, end)
        if reason != FINE:
            if not _is_infinite(buf, at, end):
                return blame(r, reason)
            if not found.size:
                return blame(r, _INFINITE)
            found[r] = 1
    return FINE


@inlined
def _signed(buf: Bytes, at: int) -> Any:
    return (np.int64(uint(buf, at, 4)) ^ 0x80000000) - 0x80000000


@inlined
def _infinity(months: Any, days: Any, micros: Any) -> int:
    """Return 1 for infinity, -1 for -infinity, 0 for any other interval."""
    if months == _MOST_32 and days == _MOST_32 and micros == _MOST_64:
        return 1
    return -1 if months == _LEAST_32 and days == _LEAST_32 and micros == _LEAST_64 else 0


@kernel(nb.int64(IN8, IN32, IN32, I32, I32, I64, U8))
def _binary(buf: Bytes, off: Ints, length: Ints, months: Ints, days: Ints, micros: Any, found: Bytes) -> int:
    for r in range(length.size):
        months[r], days[r], micros[r] = 0, 0, 0
        if length[r] < 0:
            continue
        if length[r] != 16:
            return blame(r, _WIDTH)
        at = start(off, r)
        m, d, us = _signed(buf, at + 12), _signed(buf, at + 8), np.int64(uint(buf, at, 8))
        if _infinity(m, d, us):
            if not found.size:
                return blame(r, _INFINITE)
            found[r] = 1
            continue
        months[r], days[r], micros[r] = m, d, us
    return FINE


_ARROW = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


def _decode(fill: Any, buf: Bytes, off: Ints, length: Ints, found: Bytes = STRICT) -> pa.Array:
    months, days = np.empty(length.size, np.int32), np.empty(length.size, np.int32)
    micros = np.empty(length.size, np.int64)
    BadValueError.check(fill(buf, off, length, months, days, micros, found), _REASONS)
    counts: list[Any] = [months, days, micros]
    children = [fixed_width(field.type, count, length) for field, count in zip(_ARROW, counts, strict=True)]
    return structs(_ARROW, children, length)


def _from_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(_text, buf, off, length)


def _from_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(_binary, buf, off, length)


def _unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
    found = np.zeros(length.size, np.uint8)
    _decode(_text if is_text else _binary, buf, off, length, found)
    return found.view(np.bool_)


INTERVAL = ColumnCodec(_ARROW, _from_text, _from_binary, unrepresentable=_unrepresentable)


# -- intervals as text -------------------------------------------------------------------------------------------------

_MOST_PRINTED = 64
_INFINITY = np.frombuffer(b"-infinity", np.uint8).copy()
_ZERO = np.frombuffer(b"PT0S", np.uint8).copy()


@inlined
def _toward_zero(value: Any, unit: Any) -> Any:
    """Divide as C does, so that all parts of a count have its sign."""
    quotient = value // unit
    return quotient + 1 if quotient < 0 and quotient * unit != value else quotient


@inlined
def _put_part(data: Bytes, end: Any, value: Any, letter: int) -> Any:
    """Write a count and its letter, unless it is 0; return the offset after it."""
    if value == 0:
        return end
    if value < 0:
        data[end] = 45
        end += 1
    end = put_number(data, end, np.uint64(abs(value)))
    data[end] = letter
    return end + 1


@inlined
def _put_seconds(data: Bytes, end: Any, micros: Any) -> Any:
    """Write less than a minute, with its fraction, and its letter, unless it is 0."""
    if micros == 0:
        return end
    if micros < 0:
        data[end] = 45
        end += 1
    rest = abs(micros)
    end = put_number(data, end, np.uint64(rest // 1_000_000))
    rest %= 1_000_000
    if rest:
        data[end] = 46
        end += 1
        unit = 100_000
        while rest:
            data[end] = 48 + rest // unit
            rest %= unit
            unit //= 10
            end += 1
    data[end] = 83
    return end + 1


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 16:
            return blame(r, _WIDTH)
        at = start(off, r)
        months, days, micros = _signed(buf, at + 12), _signed(buf, at + 8), np.int64(uint(buf, at, 8))
        sign = _infinity(months, days, micros)
        if sign:
            for k in range(1 if sign > 0 else 0, 9):
                data[end] = _INFINITY[k]
                end += 1
            continue
        if months == 0 and days == 0 and micros == 0:
            for k in range(4):
                data[end + k] = _ZERO[k]
            end += 4
            continue
        data[end] = 80
        years = _toward_zero(months, 12)
        end = _put_part(data, end + 1, years, 89)
        end = _put_part(data, end, months - 12 * years, 77)
        end = _put_part(data, end, days, 68)
        if micros:
            data[end] = 84
            hours = _toward_zero(micros, 3_600_000_000)
            rest = micros - 3_600_000_000 * hours
            minutes = _toward_zero(rest, 60_000_000)
            end = _put_part(data, end + 1, hours, 72)
            end = _put_part(data, end, minutes, 77)
            end = _put_seconds(data, end, rest - 60_000_000 * minutes)
    offsets[length.size] = end
    return FINE


INTERVAL_TEXT = text_output_codec(_print, fixed_room(_MOST_PRINTED), _REASONS)
