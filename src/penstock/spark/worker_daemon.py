"""Spark's daemon of Python workers, less one noise: a worker whose reader has gone, as with LIMIT, ends in silence.

Run by Spark (``spark.python.daemon.module``). PySpark's own prints a traceback of BrokenPipeError there.
"""

from __future__ import annotations

import os
import socket

from pyspark import daemon

__all__: list[str] = []

_worker = daemon.worker


def _quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    daemon.worker = _quiet_worker
    daemon.manager()
