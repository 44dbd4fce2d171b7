"""Capture in a thread of this process, in the place of the capture process: started at once, for tests of homes.

A process of its own takes two seconds to start, and the control plane starts one for every change of a source. What it
runs is the same, and so is the interface (`penstock.engine.supervisor.CaptureSupervisor`). It is not started again
after an unexpected exception, which pytest reports. Tests that kill capture, or that need its isolation, use the
process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.engine.capture_process import capture

__all__ = ["ThreadCapture"]


class ThreadCapture:
    """Captures one source until `stop`."""

    def __init__(self, home: Path, source: str, inherited: Sequence[int] = ()) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=capture, args=(home, source, self._stop), name=f"penstock-capture-{source}", daemon=True
        )
        self._thread.start()

    @property
    def pid(self) -> int:
        """The id of the thread, which tells one capture from another as that of a process does."""
        assert self._thread.native_id is not None
        return self._thread.native_id

    @property
    def ended(self) -> bool:
        """Whether capture has stopped; the catalog says why."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Let capture finish what it has in hand, and wait for it."""
        self._stop.set()
        self._thread.join()
