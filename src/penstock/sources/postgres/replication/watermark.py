"""Watermarks: what an incremental snapshot or a repair writes into the stream before and after it reads rows.

::

    write LOW n ─▶ read the rows of window n ─▶ write HIGH n        capture sees both, in commit order

A watermark is committed separately. It is a logical message, which needs no object upstream, or an update of the single
row of ``dblog_meta.watermarks``. Either way it carries a token that identifies the source.

A token is one line of JSON. Each token has exactly one valid encoding; any other text is rejected, so that nothing
foreign is mistaken for a watermark of this source.
"""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Any, Self

import psycopg

from penstock.errors import DefiniteError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.options import Watermarks
from penstock.sources.postgres.replication.wal import wal_insert_position

__all__ = ["MalformedTokenError", "Mark", "Watermark", "check_fields", "read_token", "write_token", "write_watermark"]

_LOCK_SECONDS = 10
_MESSAGE = "SELECT pg_logical_emit_message(true, 'penstock.watermark', %s::text)"
_UPDATE = "UPDATE dblog_meta.watermarks SET token = %s WHERE id = 1"


class Mark(enum.StrEnum):
    """Which end of a window a watermark is."""

    LOW = "low"
    """Written before the rows of a window are read."""
    HIGH = "high"
    """Written after they are read."""


@dataclass(frozen=True)
class Watermark:
    """One end of a window of rows that are read beside the stream."""

    identity: str
    """The source instance that wrote it."""
    window: str
    """A random hexadecimal id of one incremental snapshot or repair."""
    number: int
    """The number of the window, from 1 on."""
    mark: Mark

    def __post_init__(self) -> None:
        """Validate the fields."""
        check_fields(self.number, self.identity, self.window)

    def token(self) -> str:
        """Return the token as written to the stream."""
        return write_token(
            {"source": self.identity, "window": self.window, "number": self.number, "mark": str(self.mark)}
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a token; a text that `token` would not have written raises `MalformedTokenError`."""
        identity, window, number, mark = read_token(text, "source", "window", "number", "mark")
        try:
            return cls(identity, window, number, Mark(mark))
        except (ValueError, TypeError) as error:
            raise MalformedTokenError from error


def write_watermark(connection: psycopg.Connection[Any], kind: Watermarks, watermark: Watermark) -> Lsn:
    """Write a watermark over a connection in autocommit mode; return a position at or after its commit."""
    if kind is Watermarks.MESSAGE:
        connection.execute(_MESSAGE, (watermark.token(),))
    else:
        _update(connection, watermark.token())
    return wal_insert_position(connection)


def _update(connection: psycopg.Connection[Any], token: str) -> None:
    """Replace the token in the single row; do not wait indefinitely for a lock on it."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            updated = connection.execute(_UPDATE, (token,)).rowcount
    except psycopg.errors.LockNotAvailable as error:
        message = "the row of dblog_meta.watermarks is locked by another session"
        raise TransientError(
            message, "Find the session in pg_locks and pg_stat_activity, and end its transaction."
        ) from error
    except psycopg.errors.UndefinedTable as error:
        message = "table dblog_meta.watermarks, which holds the watermarks of Penstock, is gone"
        raise DefiniteError(message, "Drop the source and create it again.") from error
    if updated != 1:
        message = "the row of dblog_meta.watermarks, which holds the watermarks of Penstock, is gone"
        raise DefiniteError(
            message, "Run `penstock status`: the error of the source names the transaction that deleted it."
        )


_VERSION = 1
_HEX = re.compile(r"[0-9a-f]{8,64}")


class MalformedTokenError(ValueError):
    """A text that is not a token of Penstock."""


def check_fields(number: int, *ids: str) -> None:
    """Validate the fields of a token: a number from 1 on, ids in hexadecimal."""
    if type(number) is not int or not 1 <= number < 1 << 63:  # JSON also has true and 1.0
        raise MalformedTokenError
    if not all(_HEX.fullmatch(text) for text in ids):
        raise MalformedTokenError


def write_token(fields: dict[str, Any]) -> str:
    """Encode fields as a token."""
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":"))


def read_token(text: str, *names: str) -> list[Any]:
    """Return the fields of these names; reject a text that `write_token` would not have written."""
    try:
        read = json.loads(text)
        values = [read[name] for name in names]
        again = write_token(dict(zip(names, values, strict=True)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MalformedTokenError from error
    if again != text:
        raise MalformedTokenError
    return values
