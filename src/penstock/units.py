"""Parsing and formatting of durations (``1 day``, ``90 s``, ``1 hour 30 minutes``) and sizes (``16 MB``, ``1.5 GB``).

As in Postgres, a kB is 1024 bytes.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from penstock.errors import UsageError

__all__ = ["duration_text", "parse_duration", "parse_size", "size_text"]

_UNITS = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "min": ("min", "mins", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_SECONDS = {"ms": 0.001, "s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_FACTORS = {word: _SECONDS[unit] for unit, words in _UNITS.items() for word in words}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_LONGEST = timedelta(days=36500)


def parse_duration(text: str) -> timedelta:
    """Parse a duration; raise `UsageError` for anything else, also for a number without a unit."""
    seconds, at = 0.0, 0
    while at < len(text) and (part := _PART.match(text.lower(), at)):
        if part[2] not in _FACTORS:
            break
        seconds += float(part[1]) * _FACTORS[part[2]]
        at = part.end()
    if not text.strip() or at != len(text) or seconds > _LONGEST.total_seconds():
        message = f"invalid duration {text!r}"
        raise UsageError(message, "Write it like '1 day', '90 minutes' or '500 ms'; the maximum is 100 years.")
    return timedelta(seconds=seconds)


def duration_text(span: timedelta) -> str:
    """Format a duration in its largest units, so that `parse_duration` reads it back."""
    left, parts = span // timedelta(microseconds=1), []
    for unit in ("d", "h", "min", "s"):
        count, left = divmod(left, int(_SECONDS[unit] * 1_000_000))
        parts += [f"{count} {unit}"] if count else []
    if left or not parts:
        parts.append(f"{left / 1000:g} ms" if left % 1000 else f"{left // 1000} ms")
    return " ".join(parts)


_SIZE_UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_SIZE_FACTORS = {unit.lower(): factor for unit, factor in _SIZE_UNITS.items()}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII)
_LARGEST = (1 << 63) - 1


def parse_size(text: str) -> int:
    """Parse a size in bytes; raise `UsageError` for anything else, also for a missing unit or a fraction of a byte."""
    found = _SIZE.fullmatch(text)
    factor = _SIZE_FACTORS.get(found[2].lower()) if found else None
    size = Fraction(found[1]) * factor if found and factor else Fraction(-1)
    if size < 0 or size.denominator != 1 or size > _LARGEST:
        message = f"invalid size {text!r}"
        raise UsageError(message, "Write it like '16 MB', '512 kB' or '1 GB'; the units are B, kB, MB, GB and TB.")
    return int(size)


def size_text(size: int) -> str:
    """Format a size in the largest unit of which it is a whole multiple."""
    unit = (
        max((unit for unit in _SIZE_UNITS if size % _SIZE_UNITS[unit] == 0), key=_SIZE_UNITS.__getitem__)
        if size
        else "B"
    )
    return f"{size // _SIZE_UNITS[unit]} {unit}"
