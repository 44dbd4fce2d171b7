"""A TLS proxy for a plaintext server, which requires a client certificate of the right authority."""

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
def tls_proxy(tls: Path, target_port: int) -> Iterator[int]:
    """Forward to a local port; `tls` has the certificates. Yield the proxy's port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "server.crt", tls / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED

    class Forwarding(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                socket.create_connection(("127.0.0.1", target_port)) as server,
            ):
                back = threading.Thread(target=_forward, args=(server, client), daemon=True)
                back.start()
                _forward(client, server)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Forwarding) as proxy:
        proxy.daemon_threads = True
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy.server_address[1]
        proxy.shutdown()


def _forward(source: Any, target: Any) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
