"""Every error that Penstock raises on purpose.

::

    PenstockError                 what happened, where, and what to do (`remedy`)
    ├── UsageError                the caller asked for something that makes no sense         exit 2
    ├── DefiniteError             stays until somebody acts; never retried                   exit 3
    │   ├── TableError            belongs to one table from one LSN on; others run on
    │   ├── ProtocolError         bytes from Postgres that do not follow the protocol
    │   ├── LogCorrupt            the change log does not hold what was written to it
    │   ├── HistoryGone           a range begins before `valid`: that history was removed
    │   ├── NoSource              what was to be dropped or changed is not there: IF EXISTS forgives it
    │   ├── SourceExists          what was to be made here is there already: IF NOT EXISTS forgives it
    │   ├── Taken                 what was to be made outside is there already: it is somebody else's
    │   ├── NotOurs               what was to be removed outside is somebody else's by now, or may be
    │   └── InternalError         an exception that nobody expected, by its type and place: a defect of ours
    └── TransientError            may pass by itself; retried with backoff, never data       exit 4
        └── InUse                 somebody else reads what this source reads; they may be about to end

Errors cross process borders (Spark workers, the capture process), so each of them pickles: the
constructor's arguments are the whole state. Messages name objects, never row values and never secrets.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "DefiniteError",
    "HistoryGone",
    "InUse",
    "InternalError",
    "LogCorrupt",
    "NoSource",
    "NotOurs",
    "PenstockError",
    "ProtocolError",
    "SourceExists",
    "TableError",
    "Taken",
    "TransientError",
    "UsageError",
]


class PenstockError(Exception):
    """The root: `message` says what happened and where, `remedy` what to do about it."""

    exit_code = 3

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        """Message and remedy, the way a terminal shows them."""
        return f"{self.message}\n{self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the constructor's arguments in another process."""
        return type(self), tuple(self.args)


class UsageError(PenstockError):
    """A wrong option, argument or statement."""

    exit_code = 2


class DefiniteError(PenstockError):
    """It will not go away by trying again."""

    exit_code = 3


class TableError(DefiniteError):
    """One table cannot go on from `lsn`; what lies before it stays readable."""

    def __init__(self, table: str, lsn: int, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.args = (table, lsn, message, remedy)
        self.table = table
        self.lsn = lsn


class ProtocolError(DefiniteError):
    """A malformed or unknown replication message: capture fails closed."""


class LogCorrupt(DefiniteError):
    """A chunk of the change log fails its checksum, or is missing."""


class HistoryGone(DefiniteError):
    """A range begins before `valid`: that history was removed."""


class NoSource(DefiniteError):
    """There is no source of this name in the home."""


class SourceExists(DefiniteError):
    """There is a source of this name in the home, whole or half made or half dropped."""


class Taken(DefiniteError):
    """What was to be made outside is there already, and somebody else's: it is not ours to remove."""


class NotOurs(DefiniteError):
    """What was to be removed outside is, or may be, somebody else's by now: it is left as it is."""


class InternalError(DefiniteError):
    """An exception that nobody expected, by its type and place: a defect of ours."""


class TransientError(PenstockError):
    """Worth another try: the network, a server that restarts, a slot still held by a dying session."""

    exit_code = 4


class InUse(TransientError):
    """Somebody else reads what this source reads: one who is about to end, or another Penstock."""
