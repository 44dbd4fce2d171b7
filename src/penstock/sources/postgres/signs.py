"""Signs: what the stream says of watermarks and heartbeats, before anybody judges it.

::

    logical message, prefix penstock.watermark or penstock.heartbeat ─┐
    change of dblog_meta.watermarks or dblog_meta.heartbeats ─────────┴─▶ Sign: subject, token, or what is wrong

They are rare, so they are read here and not in the compiled scan. Bytes in, values out. A message that does not
follow the protocol raises; one that does, and says what none of ours may say, is a sign with something wrong.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from penstock.errors import ProtocolError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.control import REPORT
from penstock.sources.postgres.relation import Relation

__all__ = ["Sign", "Subject", "read_change", "read_message"]

_COLUMNS = (("id", 23), ("token", 25))
"""What the tables of ``dblog_meta`` have: an integer and a text."""
_FOREIGN_WRITES = {"I": "a row was inserted", "D": "a row was deleted", "T": "the table was truncated"}


class Subject(enum.StrEnum):
    """What a sign is of."""

    WATERMARK = "watermark"
    HEARTBEAT = "heartbeat"

    @property
    def prefix(self) -> str:
        """The prefix of its logical messages."""
        return f"penstock.{self}"

    @property
    def table(self) -> TableName:
        """The table of which it is the one row."""
        return TableName("dblog_meta", f"{self}s")


@dataclass(frozen=True)
class Sign:
    """A watermark or heartbeat, or what stands in the place of one."""

    subject: Subject
    in_table: bool
    """Whether it is a change of a table; else it is a logical message."""
    token: str = ""
    wrong: str = ""
    """What was done that we never do; then there is no token."""

    def place(self) -> str:
        """Name where it stands, for people."""
        return str(self.subject.table) if self.in_table else f"logical messages with the prefix {self.subject.prefix}"


def read_message(message: bytes) -> tuple[Sign | None, Lsn | None]:
    """Read a logical message, from its kind byte on; None for a prefix that we do not know.

    With its own position when it is not part of a transaction.
    """
    try:
        flags, lsn = struct.unpack_from(">BQ", message, 1)
        end = message.index(0, 10)
        (size,) = struct.unpack_from(">I", message, end + 1)
        prefix, content = message[10:end].decode("utf-8", "replace"), message[end + 5 :]
        if size != len(content):
            raise ValueError(size)
        position = None if flags & 1 else Lsn(lsn)
    except (struct.error, ValueError) as error:
        raise _malformed(message) from error
    subject = next((subject for subject in Subject if subject.prefix == prefix), None)
    return None if subject is None else _with_token(subject, content, in_table=False), position


def read_change(message: bytes, relation: Relation) -> Sign:
    """Read a change of one of the tables, from its kind byte on: only an update of row 1 is one of ours."""
    subject = next(subject for subject in Subject if subject.table == relation.table)
    kind = chr(message[0])
    if kind in _FOREIGN_WRITES:
        return Sign(subject, in_table=True, wrong=_FOREIGN_WRITES[kind])
    if tuple((column.name, column.oid) for column in relation.columns) != _COLUMNS:
        return Sign(subject, in_table=True, wrong="the columns of the table were changed")
    try:
        key, token = _new_row(message)
    except (struct.error, ValueError, IndexError) as error:
        raise _malformed(message) from error
    if key not in (b"1", struct.pack(">i", 1)):
        return Sign(subject, in_table=True, wrong="a row other than id = 1 was updated")
    if token is None:
        return Sign(subject, in_table=True, wrong="its row was updated without a token")
    return _with_token(subject, token, in_table=True)


def _with_token(subject: Subject, content: bytes, *, in_table: bool) -> Sign:
    try:
        return Sign(subject, in_table, content.decode())
    except UnicodeDecodeError:
        return Sign(subject, in_table, wrong="it holds no text")


def _new_row(message: bytes) -> tuple[bytes | None, ...]:
    """Return the values of an update's new row; an old row or key may stand before it."""
    at = 5
    if message[at : at + 1] in (b"K", b"O"):
        _, at = _row(message, at + 1)
    if message[at : at + 1] != b"N":
        raise ValueError(at)
    values, end = _row(message, at + 1)
    if end != len(message) or len(values) != len(_COLUMNS):
        raise ValueError(end)
    return values


def _row(message: bytes, at: int) -> tuple[tuple[bytes | None, ...], int]:
    (count,) = struct.unpack_from(">H", message, at)
    values: list[bytes | None] = []
    at += 2
    for _ in range(count):
        tag, at = message[at : at + 1], at + 1
        if tag in (b"t", b"b"):
            (size,) = struct.unpack_from(">I", message, at)
            value = message[at + 4 : at + 4 + size]
            if len(value) != size:
                raise ValueError(size)
            values.append(value)
            at += 4 + size
        elif tag in (b"n", b"u"):
            values.append(None)
        else:
            raise ValueError(tag)
    return tuple(values), at


def _malformed(message: bytes) -> ProtocolError:
    said = f"a malformed replication message ({message[:1].decode('latin-1')!r}) arrived from Postgres"
    return ProtocolError(said, REPORT)
