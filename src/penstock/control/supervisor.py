"""Keeps one capture process alive: started again when it dies, left alone when it ended for good."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.errors import DefiniteError, TransientError
from penstock.layout import capture_log_path, run_path

__all__ = ["CaptureSupervisor"]

_ENDED_FOR_GOOD = (0, DefiniteError.exit_code, TransientError.exit_code)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_STOP_SECONDS = 20


class CaptureSupervisor:
    """Runs the capture process of a source."""

    def __init__(self, home: Path, source: str, inherited: Sequence[int] = ()) -> None:
        self._home = home
        self._source = source
        self._inherited = inherited
        """Handles that capture has open, too: of the lock on its source, which is free when nobody writes any more."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name=f"penstock-supervise-{source}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process id of the capture that runs now."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether capture has stopped for good; the catalog says why."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Let capture finish what it has in hand, and wait for it."""
        self._stopping.set()
        with self._lock:
            self._process.stdin.close() if self._process.stdin else None
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start it in a session of its own; it ends when its standard input does, so also when we are killed."""
        command = [sys.executable, "-m", "penstock.control.capture", str(self._home.absolute()), self._source]
        run_path(self._home).mkdir(parents=True, exist_ok=True)
        with capture_log_path(self._home, self._source).open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._inherited,
            )

    def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while self._process.wait() not in _ENDED_FOR_GOOD and not self._stopping.wait(pause):
            pause = min(2 * pause, _LONGEST_PAUSE)
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process.stdin.close() if self._process.stdin else None
                self._process = self._start()
