"""A minimal pgoutput: replication messages as bytes, as the pump writes them into its buffer."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from penstock.model import TableName
from penstock.sources.postgres.captured_table import CapturedColumn, CapturedTable
from penstock.sources.postgres.pgoutput.relations import RelationColumn, Shape
from penstock.sources.postgres.types import PostgresType

INT8, TEXT = 20, 25
COLUMNS = (RelationColumn("id", INT8, -1, True), RelationColumn("name", TEXT, -1))
UNCHANGED = object()
"""A value that was not sent because it did not change."""

Value = int | str | bytes | None | object
_EPOCH = 946_684_800_000_000


def captured(name: str, oid: int, version: int = 1) -> Shape:
    """A table ``public.NAME (id bigint PRIMARY KEY, name text)``."""
    columns = tuple(CapturedColumn(c.name, PostgresType(c.oid, c.typmod), c.identity) for c in COLUMNS)
    return Shape.of(CapturedTable(name=TableName("public", name), oid=oid, key=("id",), columns=columns), version)


def framed(message: bytes) -> bytes:
    """Length and bytes, as the pump writes them."""
    return struct.pack("<I", len(message)) + message


def wal(payload: bytes) -> bytes:
    """A message of the output plugin."""
    return framed(b"w" + struct.pack(">QQQ", 1, 2, 3) + payload)


def keepalive(lsn: int, reply: int = 0) -> bytes:
    """A keepalive: the position up to which the server has sent."""
    return framed(b"k" + struct.pack(">QQB", lsn, 0, reply))


def begin(xid: int, lsn: int = 0, committed_at: int = 0) -> bytes:
    """A transaction begins; `committed_at` in microseconds since 1970."""
    return wal(b"B" + struct.pack(">QqI", lsn, committed_at - _EPOCH, xid))


def commit(end: int, committed_at: int = 0) -> bytes:
    """A transaction commits; `end` is its end LSN."""
    return wal(b"C" + struct.pack(">BQQq", 0, max(end - 1, 0), end, committed_at - _EPOCH))


def block(xid: int, *messages: tuple[int, bytes], first: bool = True) -> bytes:
    """A block of a streamed transaction: messages, each with the xid of its subtransaction."""
    begun = wal(b"S" + struct.pack(">IB", xid, first))
    return begun + b"".join(within(sub, message) for sub, message in messages) + wal(b"E")


def within(xid: int, message: bytes) -> bytes:
    """A message inside a block, with an xid after its kind."""
    payload = message[29:]
    return wal(payload[:1] + struct.pack(">I", xid) + payload[1:])


def block_commit(xid: int, end: int, committed_at: int = 0) -> bytes:
    """Stream Commit: a streamed transaction has committed."""
    return wal(b"c" + struct.pack(">IBQQq", xid, 0, max(end - 1, 0), end, committed_at - _EPOCH))


def abort(xid: int, subtransaction: int) -> bytes:
    """Stream Abort: a streamed transaction, or one of its subtransactions, was rolled back."""
    return wal(b"A" + struct.pack(">II", xid, subtransaction))


def begin_prepare(xid: int) -> bytes:
    """Begin Prepare: a transaction that will be prepared begins."""
    return wal(b"b" + struct.pack(">QQqI", 1, 2, 0, xid) + b"name\0")


def prepare(xid: int, end: int, streamed: bool = False) -> bytes:
    """Prepare, or Stream Prepare: the transaction is prepared."""
    return wal((b"p" if streamed else b"P") + struct.pack(">BQQqI", 0, end - 1, end, 0, xid) + b"name\0")


def commit_prepared(xid: int, end: int, committed_at: int = 0) -> bytes:
    """Commit Prepared."""
    return wal(b"K" + struct.pack(">BQQqI", 0, end - 1, end, committed_at - _EPOCH, xid) + b"name\0")


def rollback_prepared(xid: int, end: int) -> bytes:
    """Rollback Prepared."""
    return wal(b"r" + struct.pack(">BQQqqI", 0, 1, end, 0, 0, xid) + b"name\0")


def relation(
    oid: int, name: str, columns: Sequence[RelationColumn] = COLUMNS, identity: str = "d", schema: str = "public"
) -> bytes:
    """A Relation message: describes a table."""
    described = [
        struct.pack("B", c.identity) + c.name.encode() + b"\0" + struct.pack(">Ii", c.oid, c.typmod) for c in columns
    ]
    head = b"R" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
    return wal(head + identity.encode() + struct.pack(">H", len(columns)) + b"".join(described))


def row(values: Sequence[Value]) -> bytes:
    """A tuple: integers in binary, strings and bytes as binary text."""
    return struct.pack(">H", len(values)) + b"".join(_value(value) for value in values)


def _value(value: Value) -> bytes:
    if value is None:
        return b"n"
    if value is UNCHANGED:
        return b"u"
    if isinstance(value, int):
        return b"b" + struct.pack(">Iq", 8, value)
    data = value.encode() if isinstance(value, str) else value
    assert isinstance(data, bytes)
    return b"b" + struct.pack(">I", len(data)) + data


def insert(oid: int, *values: Value) -> bytes:
    """An INSERT."""
    return wal(b"I" + struct.pack(">I", oid) + b"N" + row(values))


def update(oid: int, new: Sequence[Value], old: Sequence[Value] | None = None, role: bytes = b"K") -> bytes:
    """An UPDATE; `role` says whether `old` is a key (K) or a whole row (O)."""
    before = b"" if old is None else role + row(old)
    return wal(b"U" + struct.pack(">I", oid) + before + b"N" + row(new))


def delete(oid: int, old: Sequence[Value], role: bytes = b"K") -> bytes:
    """A DELETE."""
    return wal(b"D" + struct.pack(">I", oid) + role + row(old))


def truncate(*oids: int) -> bytes:
    """A TRUNCATE of several tables."""
    return wal(b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids))


def message(prefix: str, content: str | bytes, lsn: int = 0) -> bytes:
    """A logical message: transactional, or non-transactional at an LSN."""
    data = content.encode() if isinstance(content, str) else content
    head = b"M" + struct.pack(">BQ", not lsn, lsn) + prefix.encode() + b"\0"
    return wal(head + struct.pack(">I", len(data)) + data)


def buffer(data: bytes, slack: int = 0) -> npt.NDArray[np.uint8]:
    """The bytes in the form that the decoder takes, followed by garbage."""
    return np.frombuffer(bytearray(data + b"\xfe" * slack), np.uint8)
