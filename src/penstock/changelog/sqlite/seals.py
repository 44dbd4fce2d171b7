"""Seals: checksums over the rows of the file, and the word for a row that fails its own."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.errors import LogCorrupt

__all__ = ["RESTORE", "check", "check_numbers", "damaged", "seal", "tally"]

RESTORE = "Restore the home from a backup, or drop the source and capture it afresh."


def seal(*values: Any) -> int:
    """CRC-32 over the values of a row.

    It is taken of their notation, which tells types apart: a damaged row may hold any. That of integers, bytes and
    None is the same in every version of Python; texts are written as their bytes, with a mark.
    """
    return _sum(tuple(map(_plain, values)))


def _plain(value: Any) -> Any:
    """Return a value as SQLite will give it back: a position is an integer there."""
    if isinstance(value, int):
        return int(value)
    return ("text", value.encode()) if isinstance(value, str) else value


def tally(seals: Iterable[int]) -> int:
    """Return the sum that shows whether one of these seals is missing, or is there twice."""
    return sum(each + (1 << 32) for each in seals)


def check(row: tuple[Any, ...], what: str, path: Path) -> tuple[Any, ...]:
    """Return the values of a row whose last is their seal; refuse them if that does not fit."""
    check_numbers(tuple(map(_plain, row)), what, path)
    return row[:-1]


def check_numbers(row: tuple[Any, ...], what: str, path: Path) -> tuple[Any, ...]:
    """Do the same, in half the time, for a row that was written without texts."""
    values = row[:-1]
    if _sum(values) != row[-1]:
        raise damaged(path, f"what it says of {what} is not right")
    return values


def _sum(values: tuple[Any, ...]) -> int:
    return zlib.crc32(repr(values).encode())


def damaged(path: Path, what: str) -> LogCorrupt:
    """Say that the file does not hold what was written to it."""
    return LogCorrupt(f"the change log {path} is damaged: {what}", RESTORE)
