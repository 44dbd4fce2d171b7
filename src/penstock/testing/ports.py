"""Free local ports for test servers."""

from __future__ import annotations

import socket

__all__ = ["free_ports"]


def free_ports() -> tuple[int, int]:
    """Return two different free ports; the caller binds them later, and again after a restart."""
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
