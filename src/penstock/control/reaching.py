"""Waiting until a log has reached a position."""

from __future__ import annotations

import threading
from contextlib import closing

from penstock.changelog.interface import ChangeLog
from penstock.positions import Lsn

__all__ = ["reached"]

_LOOK_SECONDS = 0.1


def reached(log: ChangeLog, position: Lsn, stop: threading.Event) -> Lsn | None:
    """Return the durable frontier once it is at a position; None when told to stop before."""
    with closing(log.reader()) as reader:
        while not stop.is_set():
            durable = reader.wait(Lsn(position - 1), _LOOK_SECONDS).durable
            if durable >= position:
                return durable
    return None
