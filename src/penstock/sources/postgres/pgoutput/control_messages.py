"""Parse the pgoutput messages that control streamed and prepared transactions.

::

    protocol 2   S … E    Stream Start … Stream Stop: a block of a transaction in progress (larger than
                          logical_decoding_work_mem)
                 c        Stream Commit         A   Stream Abort, of the transaction or a subtransaction
    protocol 3   b … P    Begin Prepare … Prepare (two-phase commit)
                 K        Commit Prepared       r   Rollback Prepared           p   Stream Prepare
    protocol 4   A with position and time, for parallel streaming (which we do not request)

These messages are rare, so they are parsed here and not in the compiled scan. Each must have exactly its length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import ProtocolError
from penstock.positions import Lsn

__all__ = [
    "MARKER_TABLE",
    "PROTOCOL_HINT",
    "Abort",
    "BeginPrepare",
    "Control",
    "DeferredCommit",
    "Prepare",
    "RollbackPrepared",
    "StreamStart",
    "StreamStop",
    "parse_control",
]

MARKER_TABLE = -3
"""The first slot of marker tables, whose changes the caller of the scan reads; further ones count down."""
PROTOCOL_HINT = (
    "The server uses a protocol that Penstock does not support. Please report it, with the version of the server."
)
_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, the epoch of Postgres timestamps


@dataclass(frozen=True)
class StreamStart:
    """Stream Start: a block of a transaction in progress begins."""

    xid: int
    first: bool


@dataclass(frozen=True)
class StreamStop:
    """Stream Stop: the block ends; the transaction is still in progress."""


@dataclass(frozen=True)
class Abort:
    """Stream Abort: one subtransaction was rolled back, or the whole transaction if `subtransaction` equals `xid`."""

    xid: int
    subtransaction: int


@dataclass(frozen=True)
class BeginPrepare:
    """Begin Prepare: a prepared transaction begins; it is not split into blocks."""

    xid: int


@dataclass(frozen=True)
class Prepare:
    """Prepare or Stream Prepare: the transaction is prepared and complete."""

    xid: int
    lsn: Lsn


@dataclass(frozen=True)
class DeferredCommit:
    """Stream Commit or Commit Prepared: a transaction whose changes were sent before has committed."""

    xid: int
    lsn: Lsn
    committed_at: int


@dataclass(frozen=True)
class RollbackPrepared:
    """Rollback Prepared: a prepared transaction was rolled back."""

    xid: int


Control = StreamStart | StreamStop | Abort | BeginPrepare | Prepare | DeferredCommit | RollbackPrepared


def parse_control(message: bytes) -> Control:
    """Parse a message that begins with its type byte; raise `ProtocolError` if it is malformed."""
    try:
        return _PARSERS[message[0]](message[1:])
    except (struct.error, ValueError, IndexError, KeyError) as error:
        text = f"malformed replication message of type {message[:1].decode('latin-1')!r}"
        raise ProtocolError(text, PROTOCOL_HINT) from error


def _block_begin(rest: bytes) -> StreamStart:
    xid, first = struct.unpack(">IB", rest)
    return StreamStart(xid, bool(first))


def _block_end(rest: bytes) -> StreamStop:
    struct.unpack("", rest)
    return StreamStop()


def _abort(rest: bytes) -> Abort:
    return Abort(*struct.unpack(">II", rest))


def _block_commit(rest: bytes) -> DeferredCommit:
    xid, _flags, _commit, end, time = struct.unpack(">IBQQq", rest)
    return DeferredCommit(xid, Lsn(end), time + _EPOCH)


def _begin_prepare(rest: bytes) -> BeginPrepare:
    _prepared, _end, _time, xid = struct.unpack(">QQqI", _without_name(rest, 28))
    return BeginPrepare(xid)


def _prepare(rest: bytes) -> Prepare:
    _flags, _prepared, end, _time, xid = struct.unpack(">BQQqI", _without_name(rest, 29))
    return Prepare(xid, Lsn(end))


def _commit_prepared(rest: bytes) -> DeferredCommit:
    _flags, _commit, end, time, xid = struct.unpack(">BQQqI", _without_name(rest, 29))
    return DeferredCommit(xid, Lsn(end), time + _EPOCH)


def _rollback_prepared(rest: bytes) -> RollbackPrepared:
    *_, xid = struct.unpack(">BQQqqI", _without_name(rest, 37))
    return RollbackPrepared(xid)


def _without_name(rest: bytes, size: int) -> bytes:
    """Remove the name (gid) of the prepared transaction, the last field of the message."""
    if rest.index(0, size) != len(rest) - 1:
        raise ValueError(size)
    return rest[:size]


_PARSERS: dict[int, Callable[[bytes], Control]] = {
    ord("S"): _block_begin,
    ord("E"): _block_end,
    ord("c"): _block_commit,
    ord("A"): _abort,
    ord("b"): _begin_prepare,
    ord("P"): _prepare,
    ord("K"): _commit_prepared,
    ord("r"): _rollback_prepared,
    ord("p"): _prepare,
}
