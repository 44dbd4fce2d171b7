"""Which SQLSTATE a refused login had.

The server sends one with every refusal. libpq keeps it to itself: it gives a text, in the server's language. Asked
for its shortest messages, it prints the SQLSTATE instead of the text; psycopg has no way to ask, so one more
attempt is made here, with the libpq that psycopg brings. Where that cannot be found, or nobody answers, there is none.
"""

from __future__ import annotations

import ctypes
import functools
import re
import select
import time
from pathlib import Path

import psycopg
from psycopg import pq

__all__ = ["refusal_sqlstate"]

_ONLY_SQLSTATE = 3
_CODE = re.compile(rb":\s+([0-9A-Z]{5})\s*$", re.MULTILINE)
_DONE = (pq.PollingStatus.OK, pq.PollingStatus.FAILED)


def refusal_sqlstate(conninfo: str, seconds: float = 5.0) -> str | None:
    """Log in once more; return the SQLSTATE with which the server refuses, None where it does not answer or agrees."""
    set_verbosity = _verbosity_setter()
    if set_verbosity is None:
        return None
    connection = pq.PGconn.connect_start(conninfo.encode())
    try:
        set_verbosity(getattr(connection, "pgconn_ptr", None), _ONLY_SQLSTATE)
        _wait(connection, time.monotonic() + seconds)
        codes = _CODE.findall(connection.error_message)
    except psycopg.Error:
        return None
    finally:
        connection.finish()
    return codes[-1].decode() if codes else None


def _wait(connection: pq.abc.PGconn, deadline: float) -> None:
    status = connection.connect_poll()
    while status not in _DONE and time.monotonic() < deadline:
        event = select.POLLIN if status == pq.PollingStatus.READING else select.POLLOUT
        poll = select.poll()
        poll.register(connection.socket, event)
        if poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            status = connection.connect_poll()


@functools.cache
def _verbosity_setter() -> ctypes._NamedFuncPointer | None:
    """Find ``PQsetErrorVerbosity`` in the libpq of psycopg's wheel."""
    if pq.__impl__ != "binary":
        return None
    import psycopg_binary

    folder = Path(psycopg_binary.__file__).parent.parent / "psycopg_binary.libs"
    found = sorted(folder.glob("libpq-*.so*"))
    if len(found) != 1:
        return None
    function = ctypes.CDLL(str(found[0])).PQsetErrorVerbosity
    function.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return function
