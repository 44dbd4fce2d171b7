"""Parse numbers, dates and times from text, exactly or not at all.

Every function takes the bytes of one value and returns an `ErrorCode`, which is `OK` for a valid value. Nothing is
rounded, truncated or wrapped around: a number that its column cannot represent is an error. Floating-point columns are
the one exception, by nature: they accept up to 17 significant digits, which is what distinguishes neighbouring values,
and integers only if the value is exact.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.binary_values import within_precision
from penstock.formats.decode_errors import ErrorCode
from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import byte

__all__ = ["date_days", "decimal_value", "float_problem", "integer_value", "is_number", "timestamp_micros"]

_OK = constant(ErrorCode.OK)
_NUMBER_RANGE = constant(ErrorCode.NUMBER_RANGE)
_NOT_WHOLE = constant(ErrorCode.NOT_WHOLE)
_NUMBER_TEXT = constant(ErrorCode.NUMBER_TEXT)
_SCALE = constant(ErrorCode.SCALE)
_DECIMAL = constant(ErrorCode.DECIMAL)
_TIME_TEXT = constant(ErrorCode.TIME_TEXT)
_NANOSECONDS = constant(ErrorCode.NANOSECONDS)
_INEXACT = constant(ErrorCode.INEXACT)
_DIGITS = constant(ErrorCode.DIGITS)

_ZERO, _NINE, _MINUS, _PLUS, _POINT = 48, 57, 45, 43, 46
_MAX_TENTH = (2**63 - 1) // 10
_M32 = np.uint64(0xFFFFFFFF)
_U32 = np.uint64(32)
_U10 = np.uint64(10)
_MAX_EXPONENT = 100_000
_LARGEST = constant(64)
_SMALL_POWERS = np.array([10**exponent for exponent in range(19)], np.int64)


@inner
def _digit(byte: int) -> bool:
    return byte >= _ZERO and byte <= _NINE


@inner
def is_number(at: int, end: int) -> int:
    """Return the end of the number in JSON's grammar that begins at `at`; -1 if there is none."""
    if at < end and byte(at) == _MINUS:
        at += 1
    if at >= end or not _digit(byte(at)):
        return -1
    if byte(at) == _ZERO:
        at += 1
    else:
        while at < end and _digit(byte(at)):
            at += 1
    if at < end and byte(at) == _POINT:
        at += 1
        if at >= end or not _digit(byte(at)):
            return -1
        while at < end and _digit(byte(at)):
            at += 1
    if at < end and (byte(at) | 32) == 101:
        at += 1
        if at < end and (byte(at) == _PLUS or byte(at) == _MINUS):
            at += 1
        if at >= end or not _digit(byte(at)):
            return -1
        while at < end and _digit(byte(at)):
            at += 1
    return at


@inner
def integer_value(at: int, end: int, bits: int) -> tuple[int, int]:
    """Parse an integer that fits in `bits`; the text is known to be a number."""
    negative = byte(at) == _MINUS
    if negative:
        at += 1
    result = np.int64(0)
    for index in range(at, end):
        if not _digit(byte(index)):
            return 0, _NOT_WHOLE
        digit = byte(index) - _ZERO
        if result > _MAX_TENTH or (result == _MAX_TENTH and digit > (8 if negative else 7)):
            return 0, _NUMBER_RANGE
        # The smallest integer has no positive counterpart: it results from wrapping around once.
        result = result * 10 + digit
    if negative:
        result = -result
    limit = np.int64(1) << (bits - 1)
    if bits < 64 and (result >= limit or result < -limit):
        return 0, _NUMBER_RANGE
    return result, _OK


@inner
def _parts(at: int, end: int) -> tuple[int, int, int, int]:
    """Return the start and end of the digits of a number, the address of its decimal point, and its exponent."""
    if byte(at) == _MINUS:
        at += 1
    point, exponent, stop = -1, np.int64(0), end
    for index in range(at, end):
        if byte(index) == _POINT:
            point = index
        elif (byte(index) | 32) == 101:
            stop = index
            sign = -1 if byte(index + 1) == _MINUS else 1
            for place in range(index + 1, end):
                if _digit(byte(place)):
                    exponent = min(exponent * 10 + byte(place) - _ZERO, _MAX_EXPONENT)
            exponent *= sign
            break
    return at, stop, point, exponent


@inner
def decimal_value(at: int, end: int, precision: int, scale: int) -> tuple[int, np.uint64, int]:
    """Parse a number as its unscaled 128-bit value; the text is known to be a number."""
    negative = byte(at) == _MINUS
    begin, stop, point, exponent = _parts(at, end)
    shift = scale + exponent - (stop - point - 1 if point >= 0 else 0)
    count = stop - begin - (1 if point >= 0 else 0)
    kept = count + shift if shift < 0 else count
    if count + max(shift, 0) < len(_SMALL_POWERS):
        number, code = _small_decimal(begin, stop, kept, shift, precision)
        number = -number if negative else number
        return number >> 63, np.uint64(number), code
    high, low, seen, any_digit = np.uint64(0), np.uint64(0), 0, False
    for index in range(begin, stop):
        if byte(index) == _POINT:
            continue
        digit = np.uint64(byte(index) - _ZERO)
        if seen >= kept:
            if digit != np.uint64(0):
                return 0, low, _SCALE
        else:
            any_digit = any_digit or digit != np.uint64(0)
            if any_digit:
                # Check before multiplying: ten times a 38-digit number overflows 128 bits.
                if not within_precision(np.int64(high), np.int64(low), precision - 1):
                    return 0, low, _DECIMAL
                high, low = _ten_times(high, low, digit)
        seen += 1
    if any_digit:
        for _ in range(min(shift, 40)):
            if not within_precision(np.int64(high), np.int64(low), precision - 1):
                return 0, low, _DECIMAL
            high, low = _ten_times(high, low, np.uint64(0))
    if negative:
        low = ~low + np.uint64(1)
        high = ~high + np.uint64(low == np.uint64(0))
    return np.int64(high), low, _OK


@inner
def _small_decimal(begin: int, stop: int, kept: int, shift: int, precision: int) -> tuple[int, int]:
    """Parse a number whose digits all fit in 64 bits, as most do."""
    number, seen, dropped = NIL, 0, False
    for index in range(begin, stop):
        if byte(index) == _POINT:
            continue
        if seen < kept:
            number = number * 10 + byte(index) - _ZERO
        elif byte(index) != _ZERO:
            dropped = True
        seen += 1
    for _ in range(shift):
        number *= 10
    if precision < len(_SMALL_POWERS) and number >= _SMALL_POWERS[precision]:
        return NIL, _DECIMAL
    return number, _SCALE if dropped else _OK


@inner
def _ten_times(high: np.uint64, low: np.uint64, digit: np.uint64) -> tuple[np.uint64, np.uint64]:
    first = (low & _M32) * _U10 + digit
    second = (low >> _U32) * _U10 + (first >> _U32)
    return high * _U10 + (second >> _U32), (second << _U32) | (first & _M32)


@inner
def float_problem(at: int, end: int, bits: int) -> int:
    """Return the error that keeps a number out of a floating-point column; the text is known to be a number."""
    begin, stop, point, exponent = _parts(at, end)
    significant, zeros, before = 0, 0, 0
    for index in range(begin, stop):
        if byte(index) == _POINT:
            continue
        if significant or byte(index) != _ZERO:
            zeros = zeros + 1 if byte(index) == _ZERO else 0
            significant += 1
        if point < 0 or index < point:
            before += 1 if significant else 0
        elif not significant:
            before -= 1
    if significant == 0:
        return _OK
    if significant - zeros > 17:
        return _DIGITS
    size = before - 1 + exponent
    if (size >= 38 or size <= -45) and not _in_range(size, _leading(begin, stop), bits):
        return _NUMBER_RANGE
    if point < 0 and stop == end and significant <= 18:
        whole, _ = integer_value(at, end, _LARGEST)
        if (np.int64(np.float64(whole)) if bits == 64 else np.int64(np.float32(whole))) != whole:
            return _INEXACT
    return _OK


@inner
def _in_range(size: int, leading: float, bits: int) -> bool:
    """Return whether a number with this exponent and these leading digits (1 to 10) is in the range of the type."""
    if bits == 64:
        largest = size < 308 or (size == 308 and leading < 1.797693134862315)
        return largest and (size > -324 or (size == -324 and leading >= 2.5))
    return (size < 38 or (size == 38 and leading < 3.4028234)) and size >= -45


@inner
def _leading(begin: int, stop: int) -> float:
    """Return the leading digits of a nonzero number, as a value from 1 to 10."""
    result, count = 0.0, 0
    for index in range(begin, stop):
        if byte(index) != _POINT and (count or byte(index) != _ZERO) and count < 17:
            result = result * 10.0 + (byte(index) - _ZERO)
            count += 1
    return result / 10.0 ** (count - 1)


@inner
def _two(at: int, end: int) -> int:
    if at + 2 > end or not _digit(byte(at)) or not _digit(byte(at + 1)):
        return -1
    return (byte(at) - _ZERO) * 10 + byte(at + 1) - _ZERO


@inner
def date_days(at: int, end: int) -> tuple[int, int]:
    """Parse YYYY-MM-DD as days since 1970."""
    if end - at != 10 or byte(at + 4) != _MINUS or byte(at + 7) != _MINUS:
        return 0, _TIME_TEXT
    century, rest = _two(at, end), _two(at + 2, end)
    month, day = _two(at + 5, end), _two(at + 8, end)
    if century < 0 or rest < 0 or month < 1 or month > 12 or day < 1:
        return 0, _TIME_TEXT
    year = century * 100 + rest
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    long = 28 + leap if month == 2 else 30 if month in (4, 6, 9, 11) else 31
    if day > long or year == 0:
        return 0, _TIME_TEXT
    # Days of the civil calendar, counted from March so that the leap day comes last.
    shifted = year - 1 if month <= 2 else year
    era, of_era = shifted // 400, shifted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468, _OK


@inner
def timestamp_micros(at: int, end: int, zoned: bool) -> tuple[int, int]:
    """Parse YYYY-MM-DDTHH:MM:SS with up to six fractional digits, and a time zone if and only if `zoned`."""
    if end - at < 19 or (byte(at + 10) != 84 and byte(at + 10) != 32):
        return 0, _TIME_TEXT
    days, code = date_days(at, at + 10)
    if code != _OK:
        return 0, code
    hour, minute, second = _two(at + 11, end), _two(at + 14, end), _two(at + 17, end)
    if byte(at + 13) != 58 or byte(at + 16) != 58 or min(hour, minute, second) < 0:
        return 0, _TIME_TEXT
    if hour > 23 or minute > 59 or second > 59:
        return 0, _TIME_TEXT
    at += 19
    fraction, unit = np.int64(0), 100_000
    if at < end and byte(at) == _POINT:
        at += 1
        if at >= end or not _digit(byte(at)):
            return 0, _TIME_TEXT
        while at < end and _digit(byte(at)):
            if unit == 0 and byte(at) != _ZERO:
                return 0, _NANOSECONDS
            fraction += (byte(at) - _ZERO) * unit
            unit //= 10
            at += 1
    offset, at = _zone(at, end)
    if at != end or (offset == _NO_ZONE) == zoned:
        return 0, _TIME_TEXT
    seconds = days * 86400 + hour * 3600 + minute * 60 + second - (offset if zoned else 0)
    return seconds * 1_000_000 + fraction, _OK


_NO_ZONE = 1_000_000


@inner
def _zone(at: int, end: int) -> tuple[int, int]:
    """Parse Z, +HH, +HHMM or +HH:MM as seconds."""
    if at >= end:
        return _NO_ZONE, at
    if byte(at) == 90:
        return 0, at + 1
    if byte(at) != _PLUS and byte(at) != _MINUS:
        return 0, -1
    sign = 1 if byte(at) == _PLUS else -1
    hours, at = _two(at + 1, end), at + 3
    if at < end and byte(at) == 58:
        at += 1
    minutes = 0
    if at < end:
        minutes = _two(at, end)
        at += 2
    if hours < 0 or hours > 18 or minutes < 0 or minutes > 59:
        return 0, -1
    return sign * (hours * 3600 + minutes * 60), at
