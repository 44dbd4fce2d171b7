"""Handling of Ctrl-C: the first one requests a clean stop, the second one ends the process immediately.

An exception in the middle of a JVM call would leave that connection unusable for the clean stop that follows.
Therefore the first signal only sets a flag. All child processes end with this process, however it ends: capture and
the JVM when their standard input closes, the embedded Postgres by its guard.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["Interrupt"]

_INTERRUPTED = 130


class Interrupt:
    """Catches SIGINT and SIGTERM inside its ``with`` block, and records that the user requested a stop."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def asked(self) -> bool:
        """Whether a stop was requested."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the timeout or until a stop is requested; return whether one was."""
        return self._asked.wait(seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            os._exit(_INTERRUPTED)
        self._asked.set()
