"""Read a replication connection into one large buffer, without a Python object per message.

libpq keeps the connection (TLS, SCRAM and multiple hosts remain its business). A compiled loop that does not hold the
GIL calls its functions: read from the socket, get each message, append it to the buffer. A message in the buffer is its
length (4 bytes, native order) followed by its bytes. The loop counts the messages that end a transaction, so that the
caller can skip pages that hold only a part of one.

The functions are bound by symbol name, not by address, so that the compiled loop can be cached on disk. Where the libpq
that psycopg bundles cannot be found, `get_copy_data` does the same, more slowly.
"""

from __future__ import annotations

import ctypes
import enum
from pathlib import Path

import llvmlite.binding
import numpy as np
import numpy.typing as npt
import psycopg.pq
from numba import njit, types

from penstock.errors import TransientError
from penstock.kernel_cache import cached_njit

__all__ = ["Drained", "Pump"]


class Drained(enum.IntEnum):
    """The result of a drain."""

    IDLE = 0
    """The buffer holds everything that has arrived."""
    FULL = 1
    """The next message needs more room."""
    ENDED = -1
    """The server has ended the COPY; the connection's next result has the reason."""
    FAILED = -2
    """The connection is lost."""


_IDLE, _FULL, _FAILED = int(Drained.IDLE), int(Drained.FULL), int(Drained.FAILED)
_COALESCED = 8192
_HEADER = 4
_KEEPALIVE = ord("k")
_ENDS = np.zeros(256, np.bool_)
_ENDS[np.frombuffer(b"CEcAPKrp", np.uint8)] = True  # messages that end a transaction, or a part of one
_XLOG_HEADER = 25

_get_copy_data = types.ExternalFunction("penstock_PQgetCopyData", types.int32(types.intp, types.intp, types.int32))
_consume_input = types.ExternalFunction("penstock_PQconsumeInput", types.int32(types.intp))
_free = types.ExternalFunction("penstock_PQfreemem", types.void(types.intp))
_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))

_BUFFER = types.Array(types.uint8, 1, "C")
_PENDING = types.Array(types.int64, 1, "C")
_SIGNATURE = types.UniTuple(types.int64, 2)(types.intp, _PENDING, types.intp, _BUFFER, types.intp, types.int64)


def _bind_libpq() -> bool:
    """Make the libpq that psycopg uses available to the compiled loop; return False if it cannot be found."""
    if psycopg.pq.__impl__ != "binary":
        return False
    import psycopg_binary

    folder = Path(psycopg_binary.__file__).parent.parent / "psycopg_binary.libs"
    found = sorted(folder.glob("libpq-*.so*"))
    if len(found) != 1:
        return False
    libpq = ctypes.CDLL(str(found[0]))
    for name in ("PQgetCopyData", "PQconsumeInput", "PQfreemem"):
        address = ctypes.cast(getattr(libpq, name), ctypes.c_void_p).value
        llvmlite.binding.add_symbol(f"penstock_{name}", address)
    return True


_NATIVE = _bind_libpq()  # before the loops below, which are compiled and linked when this module is imported


@njit(inline="always")
def _is_boundary(buffer, at, length):  # type: ignore[no-untyped-def]
    """Return whether the message is a keepalive or ends a transaction, or a part of one."""
    return buffer[at] == _KEEPALIVE or (length > _XLOG_HEADER and _ENDS[buffer[at + _XLOG_HEADER]])


@cached_njit(_SIGNATURE, nogil=True)
def _drain(connection, pending, pending_address, buffer, address, fill):  # type: ignore[no-untyped-def]
    """Copy messages until libpq has none.

    `pending` is (pointer, length) of a message that did not fit, and the number of boundaries so far.
    """
    capacity = buffer.shape[0]
    while True:
        if pending[0] == 0:
            length = _get_copy_data(connection, pending_address, 1)  # type: ignore[call-overload]
            if length <= 0:
                return fill, np.int64(length)
            pending[1] = length
        length = pending[1]
        if fill + _HEADER + length > capacity:
            return fill, np.int64(_FULL)
        for i in range(_HEADER):
            buffer[fill + i] = (length >> (8 * i)) & 255
        _memcpy(address + fill + _HEADER, pending[0], length)
        _free(pending[0])
        pending[0] = 0
        pending[2] += _is_boundary(buffer, fill + _HEADER, length)
        fill += _HEADER + length


@cached_njit(_SIGNATURE, nogil=True)
def _pump(connection, pending, pending_address, buffer, address, fill):  # type: ignore[no-untyped-def]
    """Read from the socket and drain until it is (nearly) empty or the buffer is full."""
    while True:
        before = fill
        if _consume_input(connection) == 0:
            return fill, np.int64(_FAILED)
        fill, status = _drain(connection, pending, pending_address, buffer, address, fill)
        if status != _IDLE or fill - before < _COALESCED:
            return fill, status


class Pump:
    """Drains one connection in COPY mode; used by one thread."""

    def __init__(self, pgconn: psycopg.pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._pending = np.zeros(3, np.int64)
        self._pointer: int | None = getattr(pgconn, "pgconn_ptr", None) if _NATIVE else None
        self._left: bytes | None = None

    def drain(self, buffer: npt.NDArray[np.uint8], fill: int) -> tuple[int, Drained]:
        """Append the received messages at `fill`; return the new fill and why it stopped there."""
        if self._pointer is not None:
            fill, status = _pump(
                self._pointer, self._pending, self._pending.ctypes.data, buffer, buffer.ctypes.data, fill
            )
        else:
            fill, status = self._drain_plain(buffer, fill)
        if status == Drained.FAILED:
            message = f"lost the connection to Postgres: {self._reason()}"
            raise TransientError(message, "Penstock reconnects automatically.")
        return fill, Drained(status)

    @property
    def boundaries(self) -> int:
        """The number of commits and keepalives written to buffers so far."""
        return int(self._pending[2])

    def needed(self) -> int:
        """Return the room that the pending message needs."""
        waiting = int(self._pending[1]) if self._pointer is not None else len(self._left or b"")
        return waiting + _HEADER

    def _drain_plain(self, buffer: npt.NDArray[np.uint8], fill: int) -> tuple[int, int]:
        self._pgconn.consume_input()
        while True:
            if self._left is None:
                length, data = self._pgconn.get_copy_data(1)
                if length <= 0:
                    return fill, length
                self._left = bytes(data)
            length = len(self._left)
            if fill + _HEADER + length > len(buffer):
                return fill, _FULL
            buffer[fill : fill + _HEADER] = np.frombuffer(length.to_bytes(_HEADER, "little"), np.uint8)
            buffer[fill + _HEADER : fill + _HEADER + length] = np.frombuffer(self._left, np.uint8)
            self._pending[2] += _is_boundary.py_func(np.frombuffer(self._left, np.uint8), 0, length)
            self._left = None
            fill += _HEADER + length

    def _reason(self) -> str:
        return self._pgconn.error_message.decode(errors="replace").strip() or "closed by the server"
