"""Spans of time as people write them: ``1 day``, ``90 s``, ``1 hour 30 minutes``."""

from __future__ import annotations

import re
from datetime import timedelta

from penstock.errors import UsageError

__all__ = ["duration_text", "parse_duration"]

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
    """Read a span of time; a number alone, or anything else, is a `UsageError`."""
    seconds, at = 0.0, 0
    while at < len(text) and (part := _PART.match(text.lower(), at)):
        if part[2] not in _FACTORS:
            break
        seconds += float(part[1]) * _FACTORS[part[2]]
        at = part.end()
    if not text.strip() or at != len(text) or seconds > _LONGEST.total_seconds():
        message = f"{text!r} is not a span of time"
        raise UsageError(message, "Write it like '1 day', '90 minutes' or '500 ms'; 100 years at most.")
    return timedelta(seconds=seconds)


def duration_text(span: timedelta) -> str:
    """Write a span of time so that `parse_duration` reads it, in its largest units."""
    left, parts = span // timedelta(microseconds=1), []
    for unit in ("d", "h", "min", "s"):
        count, left = divmod(left, int(_SECONDS[unit] * 1_000_000))
        parts += [f"{count} {unit}"] if count else []
    if left or not parts:
        parts.append(f"{left / 1000:g} ms" if left % 1000 else f"{left // 1000} ms")
    return " ".join(parts)
