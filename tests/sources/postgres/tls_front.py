"""A TLS proxy in front of the tests' Postgres, whose build has no TLS support; libpq cannot tell the difference.

It answers libpq's request for TLS, does the handshake with the certificates of a real server, requires a client
certificate if `client` is set, and forwards all bytes. So the login, the query and the stream are those of Postgres.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SSL_REQUEST = struct.pack(">II", 8, 80877103)


@dataclass
class TlsFront:
    """Listens on `port`; `seen` has the TLS version and the common name of the client of each connection."""

    port: int
    seen: list[tuple[str | None, str | None]] = field(default_factory=list)


@contextlib.contextmanager
def tls_front(folder: Path, upstream: int, *, client: bool = False) -> Iterator[TlsFront]:
    """Serve with ``server.crt`` of the folder, in front of the port `upstream`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    context.load_verify_locations(folder / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED if client else ssl.CERT_NONE
    with socket.create_server(("127.0.0.1", 0)) as listener:
        front = TlsFront(listener.getsockname()[1])
        threading.Thread(target=_accept, args=(listener, context, upstream, front), daemon=True).start()
        yield front


def _accept(listener: socket.socket, context: ssl.SSLContext, upstream: int, front: TlsFront) -> None:
    with contextlib.suppress(OSError):  # the listener is closed
        while True:
            plain, _ = listener.accept()
            threading.Thread(target=_serve, args=(plain, context, upstream, front), daemon=True).start()


def _serve(plain: socket.socket, context: ssl.SSLContext, upstream: int, front: TlsFront) -> None:
    with contextlib.suppress(OSError), plain:
        if plain.recv(8) != _SSL_REQUEST:
            return
        plain.sendall(b"S")
        with (
            context.wrap_socket(plain, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", upstream)) as to,
        ):
            front.seen.append((secure.version(), _common_name(secure)))
            _forward(secure, to)


def _common_name(secure: ssl.SSLSocket) -> str | None:
    subject: Any = (secure.getpeercert() or {}).get("subject", ())
    return next((str(value) for ((name, value),) in subject if name == "commonName"), None)


def _forward(secure: ssl.SSLSocket, to: socket.socket) -> None:
    while True:
        ready = [secure] if secure.pending() else select.select([secure, to], [], [])[0]
        for end in ready:
            data = end.recv(1 << 16)
            if not data:
                return
            (to if end is secure else secure).sendall(data)
