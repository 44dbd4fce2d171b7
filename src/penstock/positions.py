"""Positions in the history of a Postgres database.

A *position* is the end LSN of a commit record. Transactions become visible in that order, so the position of a
transaction, unlike the LSN of a row, is monotone. Within a transaction the *ordinal* of its changes rises, over all
tables. It is given when a change comes: what is rolled back later, or is of a table that is not captured, leaves gaps.

The past is asked for by a position or by a *moment*, a time with its zone: what had committed by then.
"""

from __future__ import annotations

from datetime import datetime
from typing import Self

from penstock.errors import UsageError

__all__ = ["Lsn", "parse_as_of"]


class Lsn(int):
    """A log sequence number; prints as Postgres prints it (``16/B374D848``)."""

    __slots__ = ()

    ZERO: Lsn
    LAST: Lsn
    """Beyond all others."""

    def __new__(cls, value: int = 0) -> Self:
        """Reject what is not a 64-bit position."""
        if not 0 <= value < 1 << 63:
            message = f"an LSN lies between 0 and 2^63, this is {value}"
            raise ValueError(message)
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Postgres's own form, two hexadecimal halves; anything else raises `ValueError`."""
        high, slash, low = text.strip().partition("/")
        if not slash or not 1 <= len(high) <= 8 or not 1 <= len(low) <= 8:
            message = f"an LSN looks like 16/B374D848, not {text!r}"
            raise ValueError(message)
        if not all(c in "0123456789abcdefABCDEF" for c in high + low):
            message = f"an LSN is hexadecimal, like 16/B374D848, not {text!r}"
            raise ValueError(message)
        return cls(int(high, 16) << 32 | int(low, 16))

    def __str__(self) -> str:
        """Postgres's form."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        """Name and value."""
        return f"Lsn('{self}')"

    def __format__(self, spec: str) -> str:
        """Format like the text form, so that f-strings show it."""
        return format(str(self), spec)


Lsn.ZERO = Lsn(0)
Lsn.LAST = Lsn((1 << 63) - 1)


def parse_as_of(asked: Lsn | datetime | str) -> Lsn | datetime:
    """Read a position or a moment, in whichever form; refuse a time that does not say its zone."""
    found = _read(asked) if isinstance(asked, str) else asked
    if isinstance(found, datetime) and found.utcoffset() is None:
        message = f"the time {found.isoformat(sep=' ')} does not say its time zone"
        raise UsageError(message, f"Write it with one: {found.isoformat()}Z for UTC, or {found.isoformat()}+02:00.")
    if not isinstance(found, Lsn | datetime):
        message = f"a {type(found).__name__} is neither a position nor a moment"
        raise UsageError(message, "Give an Lsn, a datetime with its zone, or the text of one.")
    return found


def _read(text: str) -> Lsn | datetime:
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"{text!r} is neither an LSN nor a time"
        raise UsageError(message, "Give an LSN like 16/B374D848, or a time like 2026-11-15T12:00:00Z.") from error
