"""Positions in the history of a Postgres database.

A *position* is the end LSN of a commit record. Transactions become visible in that order, so the position of a
transaction, unlike the LSN of a row, is monotone. Within a transaction the *ordinal* of its changes rises, across all
tables. It is assigned when a change arrives, so changes that are rolled back later, and changes of tables that are not
captured, leave gaps.

AS OF takes a position, or a *timestamp* with a time zone: all transactions that had committed by then.
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
    """Greater than all others."""

    def __new__(cls, value: int = 0) -> Self:
        """Raise `ValueError` if the value is not a 64-bit position."""
        if not 0 <= value < 1 << 63:
            message = f"LSN out of range: {value} is not between 0 and 2^63"
            raise ValueError(message)
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the format of Postgres, two hexadecimal halves; anything else raises `ValueError`."""
        high, slash, low = text.strip().partition("/")
        if not slash or not 1 <= len(high) <= 8 or not 1 <= len(low) <= 8:
            message = f"invalid LSN {text!r}: expected two hexadecimal numbers, as in 16/B374D848"
            raise ValueError(message)
        if not all(c in "0123456789abcdefABCDEF" for c in high + low):
            message = f"invalid LSN {text!r}: expected hexadecimal digits, as in 16/B374D848"
            raise ValueError(message)
        return cls(int(high, 16) << 32 | int(low, 16))

    def __str__(self) -> str:
        """Return the format of Postgres."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        """Return class name and value."""
        return f"Lsn('{self}')"

    def __format__(self, spec: str) -> str:
        """Format the text form, so that f-strings contain it."""
        return format(str(self), spec)


Lsn.ZERO = Lsn(0)
Lsn.LAST = Lsn((1 << 63) - 1)


def parse_as_of(value: Lsn | datetime | str) -> Lsn | datetime:
    """Return a position or timestamp from its value or its text; raise `UsageError` if a time zone is missing."""
    found = _read(value) if isinstance(value, str) else value
    if isinstance(found, datetime) and found.utcoffset() is None:
        message = f"the timestamp {found.isoformat(sep=' ')} has no time zone"
        raise UsageError(message, f"Add one: {found.isoformat()}Z for UTC, or {found.isoformat()}+02:00.")
    if not isinstance(found, Lsn | datetime):
        message = f"invalid AS OF value of type {type(found).__name__}: expected an LSN or a timestamp"
        raise UsageError(message, "Pass an Lsn, a datetime with a time zone, or the text of one.")
    return found


def _read(text: str) -> Lsn | datetime:
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"{text!r} is neither an LSN nor a timestamp"
        raise UsageError(message, "Write an LSN like 16/B374D848, or a time like 2026-11-15T12:00:00Z.") from error
