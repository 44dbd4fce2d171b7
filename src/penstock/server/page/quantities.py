"""Numbers of the status page as text: counts, rates, sizes and times, short enough to be read at a glance.

``page.js`` formats the values under the pointer of a chart in the same way.
"""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = [
    "age_text",
    "count_text",
    "lag_text",
    "number_text",
    "parse_moment",
    "rate_text",
    "short_count_text",
    "size_text",
]

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_SHORT = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


def count_text(count: float) -> str:
    """Format a count in full, with separators."""
    return f"{count:,.0f}"


def number_text(count: int, what: str) -> str:
    """Return a count of things: ``1 table``, ``2 tables``."""
    return f"{count} {what}" if count == 1 else f"{count:,} {what}s"


def short_count_text(count: float) -> str:
    """Format a count in four digits at most: ``9,999``, ``12.3 k``, ``4.5 M``."""
    for factor, unit in _SHORT:
        if count >= factor:
            divided = count / (1e3 if unit == "k" else factor)
            return f"{divided:.0f} {unit}" if divided >= 100 else f"{divided:.1f} {unit}"
    return count_text(count)


def rate_text(rate: float) -> str:
    """Format a rate per second."""
    return f"{rate:.1f}/s" if 0 < rate < 9.95 else f"{short_count_text(rate)}/s"


def size_text(size: float) -> str:
    """Format a size in bytes; as in Postgres, a kB is 1024 bytes."""
    power, left = 0, float(size)
    while left >= 1000 and power < len(_SIZES) - 1:
        power, left = power + 1, left / 1024
    return f"{left:.0f} {_SIZES[power]}" if power == 0 or left >= 99.95 else f"{left:.1f} {_SIZES[power]}"


def lag_text(milliseconds: float) -> str:
    """Format a duration from milliseconds to days, in its largest unit."""
    seconds = milliseconds / 1000
    if milliseconds < 1:
        return "under 1 ms"
    if seconds < 0.9995:
        return f"{milliseconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    for limit, unit, size in ((3600, "min", 60), (86400 * 2, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def parse_moment(moment: str | None) -> datetime | None:
    """Parse a time of the status document; a time without a zone is in UTC."""
    if not moment:
        return None
    parsed = datetime.fromisoformat(moment)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def age_text(moment: str | None, now: datetime) -> str | None:
    """Format the time since a moment: ``3.1 s ago``; None if the moment is unknown."""
    parsed = parse_moment(moment)
    if parsed is None:
        return None
    seconds = (now - parsed).total_seconds()
    return "just now" if seconds < 1 else f"{lag_text(seconds * 1000)} ago"
