"""Numbers, dates and times written as text, read exactly or not at all.

Every function takes the bytes of one value and says with a `Problem` what is wrong with it, `FINE` if nothing.
Nothing is rounded, cut off or wrapped around: a number that its column cannot hold is a problem. Floating-point
columns are the one exception that lies in their nature; they take what they can tell apart from its neighbours, that
is 17 digits, and whole numbers only if they hold them exactly.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.memory import byte
from penstock.formats.problems import Problem
from penstock.formats.wire import within_precision

__all__ = ["date_days", "decimal_value", "float_problem", "integer_value", "is_number", "timestamp_micros"]

_FINE = constant(Problem.FINE)
_NUMBER_RANGE = constant(Problem.NUMBER_RANGE)
_NOT_WHOLE = constant(Problem.NOT_WHOLE)
_NUMBER_TEXT = constant(Problem.NUMBER_TEXT)
_SCALE = constant(Problem.SCALE)
_DECIMAL = constant(Problem.DECIMAL)
_TIME_TEXT = constant(Problem.TIME_TEXT)
_NANOSECONDS = constant(Problem.NANOSECONDS)
_INEXACT = constant(Problem.INEXACT)
_DIGITS = constant(Problem.DIGITS)

_ZERO, _NINE, _MINUS, _PLUS, _POINT = 48, 57, 45, 43, 46
_MOST_TENTH = (2**63 - 1) // 10
_M32 = np.uint64(0xFFFFFFFF)
_U32 = np.uint64(32)
_U10 = np.uint64(10)
_MOST_EXPONENT = 100_000
_LARGEST = constant(64)
_SMALL_POWERS = np.array([10**exponent for exponent in range(19)], np.int64)


@inner
def _digit(byte: int) -> bool:
    return byte >= _ZERO and byte <= _NINE


@inner
def is_number(at: int, end: int) -> int:
    """Return where a number in JSON's grammar ends that begins at `at`; -1 if none does."""
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
    """Read a whole number that fits so many bits; the text is known to be a number."""
    negative = byte(at) == _MINUS
    if negative:
        at += 1
    result = np.int64(0)
    for index in range(at, end):
        if not _digit(byte(index)):
            return 0, _NOT_WHOLE
        digit = byte(index) - _ZERO
        if result > _MOST_TENTH or (result == _MOST_TENTH and digit > (8 if negative else 7)):
            return 0, _NUMBER_RANGE
        # The smallest number has no positive counterpart: it is reached by wrapping around, once.
        result = result * 10 + digit
    if negative:
        result = -result
    limit = np.int64(1) << (bits - 1)
    if bits < 64 and (result >= limit or result < -limit):
        return 0, _NUMBER_RANGE
    return result, _FINE


@inner
def _shape(at: int, end: int) -> tuple[int, int, int, int]:
    """Return where the digits of a number begin and end, where its point is, and its exponent."""
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
                    exponent = min(exponent * 10 + byte(place) - _ZERO, _MOST_EXPONENT)
            exponent *= sign
            break
    return at, stop, point, exponent


@inner
def decimal_value(at: int, end: int, precision: int, scale: int) -> tuple[int, np.uint64, int]:
    """Read a number as its unscaled value, in 128 bits; the text is known to be a number."""
    negative = byte(at) == _MINUS
    begin, stop, point, exponent = _shape(at, end)
    shift = scale + exponent - (stop - point - 1 if point >= 0 else 0)
    count = stop - begin - (1 if point >= 0 else 0)
    kept = count + shift if shift < 0 else count
    if count + max(shift, 0) < len(_SMALL_POWERS):
        number, problem = _small_decimal(begin, stop, kept, shift, precision)
        number = -number if negative else number
        return number >> 63, np.uint64(number), problem
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
                # Asked before: ten times what 38 digits hold is more than 128 bits do.
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
    return np.int64(high), low, _FINE


@inner
def _small_decimal(begin: int, stop: int, kept: int, shift: int, precision: int) -> tuple[int, int]:
    """Read a number of which 64 bits hold all digits, as most are."""
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
    return number, _SCALE if dropped else _FINE


@inner
def _ten_times(high: np.uint64, low: np.uint64, digit: np.uint64) -> tuple[np.uint64, np.uint64]:
    first = (low & _M32) * _U10 + digit
    second = (low >> _U32) * _U10 + (first >> _U32)
    return high * _U10 + (second >> _U32), (second << _U32) | (first & _M32)


@inner
def float_problem(at: int, end: int, bits: int) -> int:
    """Say what keeps a number from a floating-point column; the text is known to be a number."""
    begin, stop, point, exponent = _shape(at, end)
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
        return _FINE
    if significant - zeros > 17:
        return _DIGITS
    size = before - 1 + exponent
    if (size >= 38 or size <= -45) and not _in_range(size, _leading(begin, stop), bits):
        return _NUMBER_RANGE
    if point < 0 and stop == end and significant <= 18:
        whole, _ = integer_value(at, end, _LARGEST)
        if (np.int64(np.float64(whole)) if bits == 64 else np.int64(np.float32(whole))) != whole:
            return _INEXACT
    return _FINE


@inner
def _in_range(size: int, leading: float, bits: int) -> bool:
    """Say whether a number of this size (its exponent) and these first digits (1 to 10) is one of so many bits."""
    if bits == 64:
        largest = size < 308 or (size == 308 and leading < 1.797693134862315)
        return largest and (size > -324 or (size == -324 and leading >= 2.5))
    return (size < 38 or (size == 38 and leading < 3.4028234)) and size >= -45


@inner
def _leading(begin: int, stop: int) -> float:
    """Return the first digits of a number that is not 0, as a number from 1 to 10."""
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
    """Read YYYY-MM-DD as days since 1970."""
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
    # Days from the civil calendar, counted from March so that the leap day comes last.
    shifted = year - 1 if month <= 2 else year
    era, of_era = shifted // 400, shifted % 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468, _FINE


@inner
def timestamp_micros(at: int, end: int, zoned: bool) -> tuple[int, int]:
    """Read YYYY-MM-DDTHH:MM:SS with up to six digits of a fraction, and a zone if and only if `zoned`."""
    if end - at < 19 or (byte(at + 10) != 84 and byte(at + 10) != 32):
        return 0, _TIME_TEXT
    days, problem = date_days(at, at + 10)
    if problem != _FINE:
        return 0, problem
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
    return seconds * 1_000_000 + fraction, _FINE


_NO_ZONE = 1_000_000


@inner
def _zone(at: int, end: int) -> tuple[int, int]:
    """Read Z, +HH, +HHMM or +HH:MM as seconds."""
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
