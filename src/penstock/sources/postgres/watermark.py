"""Watermarks: what a chunked copy or a repair writes into the stream before and after it reads rows.

::

    write LOW n ─▶ read the rows of window n ─▶ write HIGH n        all of it is seen by capture, in commit order

A watermark has a commit of its own. It is a logical message, which nothing has to be made for upstream, or an update
of the one row of ``dblog_meta.watermarks``. Either way it carries a token that says whose it is; any text that we
would not have written is refused, so that nothing is taken for ours that is not.

Tokens: a line of JSON that says which source wrote it. There is one way to write each; any other text is refused.
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
from penstock.sources.postgres.wal import written

__all__ = ["MalformedTokenError", "Mark", "Watermark", "check_fields", "read_token", "write_token", "write_watermark"]

_LOCK_SECONDS = 10
_MESSAGE = "SELECT pg_logical_emit_message(true, 'penstock.watermark', %s::text)"
_UPDATE = "UPDATE dblog_meta.watermarks SET token = %s WHERE id = 1"


class Mark(enum.StrEnum):
    """Which end of a window a watermark is."""

    LOW = "low"
    """Written before the rows of a window are read."""
    HIGH = "high"
    """Written after that."""


@dataclass(frozen=True)
class Watermark:
    """One end of a window over rows that are read beside the stream."""

    identity: str
    """Of the source instance that wrote it."""
    window: str
    """A random id in hexadecimal: of one chunked copy, or one repair."""
    number: int
    """Which window of it, from 1 on."""
    mark: Mark

    def __post_init__(self) -> None:
        """Hold the fields to what a token may have."""
        check_fields(self.number, self.identity, self.window)

    def token(self) -> str:
        """Return it as it stands in the stream."""
        return write_token(
            {"source": self.identity, "window": self.window, "number": self.number, "mark": str(self.mark)}
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a token; a text that `token` would not have written raises `MalformedTokenError`."""
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
    return written(connection)


def _update(connection: psycopg.Connection[Any], token: str) -> None:
    """Replace the token in the one row; somebody who holds the row does not hold us forever."""
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
            updated = connection.execute(_UPDATE, (token,)).rowcount
    except psycopg.errors.LockNotAvailable as error:
        message = "the row of dblog_meta.watermarks is locked by another session"
        raise TransientError(message, "See pg_locks and pg_stat_activity for who holds it, and end that.") from error
    except psycopg.errors.UndefinedTable as error:
        message = "the table dblog_meta.watermarks, in which Penstock marks its windows, is gone"
        raise DefiniteError(message, "Drop the source and capture it again.") from error
    if updated != 1:
        message = "the row of dblog_meta.watermarks, in which Penstock marks its windows, is gone"
        raise DefiniteError(message, "See `penstock status`: capture says who deleted it, and what to do.")


_VERSION = 1
_HEX = re.compile(r"[0-9a-f]{8,64}")


class MalformedTokenError(ValueError):
    """A text that no token of ours is."""


def check_fields(number: int, *ids: str) -> None:
    """Hold the fields of a token to sense: a number from 1 on, ids in hexadecimal."""
    if type(number) is not int or not 1 <= number < 1 << 63:  # JSON has true and 1.0 as well
        raise MalformedTokenError
    if not all(_HEX.fullmatch(text) for text in ids):
        raise MalformedTokenError


def write_token(fields: dict[str, Any]) -> str:
    """Write fields as a token."""
    return json.dumps({"v": _VERSION, **fields}, separators=(",", ":"))


def read_token(text: str, *names: str) -> list[Any]:
    """Return the fields of these names; a text that `write_token` would not have written of them is refused."""
    try:
        read = json.loads(text)
        values = [read[name] for name in names]
        again = write_token(dict(zip(names, values, strict=True)))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise MalformedTokenError from error
    if again != text:
        raise MalformedTokenError
    return values
