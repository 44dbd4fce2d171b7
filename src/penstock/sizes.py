"""Amounts of bytes as people write them: ``16 MB``, ``512 kB``, ``1.5 GB``. As in Postgres, a kB is 1024 bytes."""

from __future__ import annotations

import re
from fractions import Fraction

from penstock.errors import UsageError

__all__ = ["parse_size", "size_text"]

_UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_FACTORS = {unit.lower(): factor for unit, factor in _UNITS.items()}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]+)\s*", re.IGNORECASE | re.ASCII)
_LARGEST = (1 << 63) - 1


def parse_size(text: str) -> int:
    """Read an amount of bytes; a number alone, a part of a byte, or anything else is a `UsageError`."""
    found = _SIZE.fullmatch(text)
    factor = _FACTORS.get(found[2].lower()) if found else None
    size = Fraction(found[1]) * factor if found and factor else Fraction(-1)
    if size < 0 or size.denominator != 1 or size > _LARGEST:
        message = f"{text!r} is not an amount of bytes"
        raise UsageError(message, "Write it like '16 MB', '512 kB' or '1 GB'; units are B, kB, MB, GB and TB.")
    return int(size)


def size_text(size: int) -> str:
    """Write an amount of bytes in the largest unit that it is a whole number of."""
    unit = max((unit for unit in _UNITS if size % _UNITS[unit] == 0), key=_UNITS.__getitem__) if size else "B"
    return f"{size // _UNITS[unit]} {unit}"
