"""A door before a server that speaks plainly: TLS, for those who show a certificate of the right authority."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def tls_door(tls: Path, behind: int) -> Iterator[int]:
    """Open the door to a port of this machine; `tls` has the certificates. Yield the door's own port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "server.crt", tls / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED

    class Passing(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                socket.create_connection(("127.0.0.1", behind)) as server,
            ):
                back = threading.Thread(target=_pass_on, args=(server, client), daemon=True)
                back.start()
                _pass_on(client, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passing) as door:
        door.daemon_threads = True
        threading.Thread(target=door.serve_forever, daemon=True).start()
        yield door.server_address[1]
        door.shutdown()


def _pass_on(source: Any, target: Any) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
