"""Clients of Spark Connect: their packages, which are fewer than those of PySpark, and a port for their server."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

__all__ = ["LOCK", "free_port", "install_client"]

LOCK = Path(__file__).with_name("connect.lock")


def install_client(folder: Path) -> Path:
    """Install the packages into `folder`, and return it."""
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--require-hashes", "--target", str(folder)]
    subprocess.run([*install, "-r", str(LOCK)], check=True)
    return folder


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
