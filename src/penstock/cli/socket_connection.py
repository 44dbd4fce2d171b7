"""HTTP over the Unix socket of the process that runs the home."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

__all__ = ["SocketConnection", "get_json"]


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float | None = None) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get_json(socket_path: str, path: str, timeout: float) -> Any:
    """Return a JSON document; raise `OSError`, `HTTPException` or `ValueError` if there is none."""
    connection = SocketConnection(socket_path, timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            message = f"the server answered with status {response.status}"
            raise http.client.HTTPException(message)
        return json.loads(response.read())
    finally:
        connection.close()
