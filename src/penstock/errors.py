"""Every error that Penstock raises on purpose.

::

    PenstockError                 what happened, where, and what to do (`hint`)
    ├── UsageError                an invalid option, argument or statement                   exit 2
    ├── DefiniteError             permanent: stays until an operator acts                    exit 3
    │   ├── TableError            one table stops at one LSN; the others continue
    │   │   └── SchemaChangeError its definition changed upstream, and the stream cannot show what that did to its rows
    │   ├── ProtocolError         bytes from Postgres that violate the replication protocol
    │   ├── LogCorruptError       the change log does not contain what was written to it
    │   ├── HistoryExpiredError   a range begins before `valid`: that history was removed
    │   ├── SourceNotFoundError   no source of this name; IF EXISTS accepts it
    │   ├── SourceExistsError     a source of this name exists; IF NOT EXISTS accepts it
    │   ├── AlreadyExistsError    an object to be created upstream exists and was created by another owner
    │   ├── NotOwnedError         an object to be removed upstream has, or may have, another owner
    │   └── InternalError         an unexpected exception, by its type and place: a defect in Penstock
    └── TransientError            retried with backoff; never shown as data                  exit 4
        └── InUseError            another session reads the same slot or topic; it may be about to end

Errors cross process boundaries (Spark workers, the capture process), so each of them pickles: the constructor's
arguments are the whole state. Messages name objects, never row values and never secrets. They follow PostgreSQL's
style: a message in lower case without a full stop, and a hint in whole sentences, where there is something to do.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "AlreadyExistsError",
    "DefiniteError",
    "HistoryExpiredError",
    "InUseError",
    "InternalError",
    "LogCorruptError",
    "NotOwnedError",
    "PenstockError",
    "ProtocolError",
    "SchemaChangeError",
    "SourceExistsError",
    "SourceNotFoundError",
    "TableError",
    "TransientError",
    "UsageError",
    "table_error",
    "with_hint",
]


def with_hint(message: str, hint: str | None) -> str:
    """Return a message with its hint on a line of its own, the way psql prints them."""
    return f"{message}\nhint: {hint}" if hint else message


class PenstockError(Exception):
    """The root: `message` says what happened and where, `hint` what to do about it."""

    exit_code = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        """Return message and hint, the way a terminal shows them."""
        return with_hint(self.message, self.hint)

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild from the constructor's arguments in another process."""
        return type(self), tuple(self.args)


class UsageError(PenstockError):
    """An invalid option, argument or statement."""

    exit_code = 2


class DefiniteError(PenstockError):
    """A permanent error: trying again does not help."""

    exit_code = 3


class TableError(DefiniteError):
    """One table stops at `lsn`; what it shows before that position stays readable."""

    code: ClassVar[str] = ""
    """Identifies the class where an error is stored."""

    def __init__(self, table: str, lsn: int, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.args = (table, lsn, message, hint)
        self.table = table
        self.lsn = lsn


class SchemaChangeError(TableError):
    """The definition of a table changed upstream in a way that cannot be applied; a new snapshot restores the table.

    A table that was dropped or renamed is another case: there is nothing under its name to take a snapshot of.
    """

    code = "schema change"


def table_error(table: str, lsn: int, message: str, hint: str = "", code: str = "") -> TableError:
    """Return the error of a table that was stored with the `code` of its class."""
    kind = SchemaChangeError if code == SchemaChangeError.code else TableError
    return kind(table, lsn, message, hint)


class ProtocolError(DefiniteError):
    """A malformed or unknown replication message: capture fails closed."""


class LogCorruptError(DefiniteError):
    """A chunk of the change log fails its checksum, or is missing."""


class HistoryExpiredError(DefiniteError):
    """A range begins before `valid`: that history was removed."""


class SourceNotFoundError(DefiniteError):
    """The home has no source of this name."""


class SourceExistsError(DefiniteError):
    """The home has a source of this name, complete, half created or half dropped."""


class AlreadyExistsError(DefiniteError):
    """An object to be created upstream exists already and was not created by this source: it is not removed."""


class NotOwnedError(DefiniteError):
    """An object to be removed upstream is not, or may not be, this source's: it is left in place."""


class InternalError(DefiniteError):
    """An unexpected exception, by its type and place: a defect in Penstock."""


class TransientError(PenstockError):
    """An error that may pass: the network, a server that restarts, a slot still held by a session that is ending."""

    exit_code = 4


class InUseError(TransientError):
    """Another session reads what this source reads: one that is about to end, or another Penstock."""
