"""Ctrl-C: the first asks for a clean stop, the second ends the process at once.

An exception in the middle of a call into the JVM would leave that connection unusable for the clean stop that follows,
so the first one only raises a flag. Whatever we have started ends with this process, however that ends: capture and
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
    """Tells whether the user asked to stop, inside its ``with`` block."""

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
        """Whether to stop."""
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not longer than until the user asks to stop; say whether that is so."""
        return self._asked.wait(seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            os._exit(_INTERRUPTED)
        self._asked.set()
