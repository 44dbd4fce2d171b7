"""Messages of pgoutput that open, end or undo a transaction that does not come in one piece.

::

    protocol 2   S … E    a block of a transaction in progress (it outgrew the server's memory)
                 c        it committed          A   it, or a subtransaction of it, was rolled back
    protocol 3   b … P    a transaction that is prepared (two-phase commit)
                 K        it committed          r   it was rolled back          p   a transaction of blocks is prepared
    protocol 4   A with position and time, where blocks may be applied in parallel (we do not ask for that)

They are rare, so they are read here and not in the compiled scan. Each must have exactly its length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from penstock.errors import ProtocolError
from penstock.positions import Lsn

__all__ = [
    "REPORT",
    "Abort",
    "BeginPrepare",
    "BlockBegin",
    "BlockEnd",
    "CommitLater",
    "Control",
    "Prepare",
    "RollbackPrepared",
    "parse_control",
]

REPORT = "This server speaks a protocol that Penstock does not know: please report it with the server's version."
_EPOCH = 946_684_800_000_000  # microseconds from 1970 to 2000, where Postgres begins to count


@dataclass(frozen=True)
class BlockBegin:
    """A block of a transaction in progress begins."""

    xid: int
    first: bool


@dataclass(frozen=True)
class BlockEnd:
    """It ends; the transaction goes on."""


@dataclass(frozen=True)
class Abort:
    """A transaction (`subtransaction` is the same) or one of its subtransactions was rolled back."""

    xid: int
    subtransaction: int


@dataclass(frozen=True)
class BeginPrepare:
    """A transaction that is prepared begins; it comes in one piece."""

    xid: int


@dataclass(frozen=True)
class Prepare:
    """The transaction is prepared; what came of it is all of it."""

    xid: int
    lsn: Lsn


@dataclass(frozen=True)
class CommitLater:
    """A transaction whose changes came before has committed, here and at this time."""

    xid: int
    lsn: Lsn
    committed_at: int


@dataclass(frozen=True)
class RollbackPrepared:
    """A prepared transaction was rolled back."""

    xid: int


Control = BlockBegin | BlockEnd | Abort | BeginPrepare | Prepare | CommitLater | RollbackPrepared


def parse_control(message: bytes) -> Control:
    """Read a message, from its kind byte on; anything malformed raises `ProtocolError`."""
    try:
        return _PARSERS[message[0]](message[1:])
    except (struct.error, ValueError, IndexError, KeyError) as error:
        said = f"a malformed replication message ({message[:1].decode('latin-1')!r}) arrived from Postgres"
        raise ProtocolError(said, REPORT) from error


def _block_begin(rest: bytes) -> BlockBegin:
    xid, first = struct.unpack(">IB", rest)
    return BlockBegin(xid, bool(first))


def _block_end(rest: bytes) -> BlockEnd:
    struct.unpack("", rest)
    return BlockEnd()


def _abort(rest: bytes) -> Abort:
    return Abort(*struct.unpack(">II", rest))


def _block_commit(rest: bytes) -> CommitLater:
    xid, _flags, _commit, end, time = struct.unpack(">IBQQq", rest)
    return CommitLater(xid, Lsn(end), time + _EPOCH)


def _begin_prepare(rest: bytes) -> BeginPrepare:
    _prepared, _end, _time, xid = struct.unpack(">QQqI", _without_name(rest, 28))
    return BeginPrepare(xid)


def _prepare(rest: bytes) -> Prepare:
    _flags, _prepared, end, _time, xid = struct.unpack(">BQQqI", _without_name(rest, 29))
    return Prepare(xid, Lsn(end))


def _commit_prepared(rest: bytes) -> CommitLater:
    _flags, _commit, end, time, xid = struct.unpack(">BQQqI", _without_name(rest, 29))
    return CommitLater(xid, Lsn(end), time + _EPOCH)


def _rollback_prepared(rest: bytes) -> RollbackPrepared:
    *_, xid = struct.unpack(">BQQqqI", _without_name(rest, 37))
    return RollbackPrepared(xid)


def _without_name(rest: bytes, size: int) -> bytes:
    """Cut off the name of the prepared transaction, which ends the message."""
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
