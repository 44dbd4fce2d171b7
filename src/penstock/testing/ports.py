"""Ports of this machine that nobody listens on, for servers that are told theirs."""

from __future__ import annotations

import socket

__all__ = ["free_ports"]


def free_ports() -> tuple[int, int]:
    """Find two at once, so that they differ. Whoever asked binds them later, and again after a restart."""
    with socket.socket() as one, socket.socket() as other:
        for taken in (one, other):
            taken.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]
