"""Capture in a thread of this process instead of a capture process, for fast tests of homes.

A capture process takes two seconds to start, and the control plane starts one for every change of a source. A thread
runs the same code behind the same interface (`CaptureSupervisor` of `penstock.engine.source_runner`). It is not
restarted after an unexpected exception, which pytest reports. Tests that kill capture, or that need its isolation, use
the process.
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
        """The id of the thread, which identifies this capture as a process id would."""
        assert self._thread.native_id is not None
        return self._thread.native_id

    @property
    def ended(self) -> bool:
        """Whether capture has stopped; the catalog contains the reason."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop capture cleanly, and wait until it has ended."""
        self._stop.set()
        self._thread.join()
