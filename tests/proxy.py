"""A proxy for a server that all tests share: a test stops it, or lets it forward nothing, as if it were the server."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress

__all__ = ["Proxy"]


class Proxy:
    """Forwards bytes to a server, unless it is frozen or stopped."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._flows = threading.Event()
        self._flows.set()
        self.port = 0
        self.start()

    def start(self) -> None:
        """Accept connections, on the same port as before."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def close(self) -> None:
        """Refuse new connections, until `start`."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # `accept` returns
        self._listener.close()

    def freeze(self) -> None:
        """Keep connections open, but forward nothing."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward again."""
        self._flows.set()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._to)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError), closing(one), closing(other):
            while data := one.recv(65536):
                self._flows.wait()
                other.sendall(data)
