"""Keeps one capture process alive: started again when it dies, left alone when it ended for good.

A process that dies again and again without getting on (what it made durable has not moved, and it did not live for a
while, either) is shown with its source: how it ended, and the type and place of the exception where it printed one. So
is it after the second time; after five, the source has failed, and is tried again once a minute only. What capture
itself can catch, it treats the same way without dying (see `capture_process`).
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.engine.as_of import durable_now
from penstock.engine.error_policy import LONGEST_PAUSE, TRIES
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.layout import capture_log_path, catalog_path, run_path
from penstock.positions import Lsn
from penstock.unexpected import told_by

__all__ = ["CaptureSupervisor", "how_it_ended"]

_ENDED_FOR_GOOD = (DefiniteError.exit_code, TransientError.exit_code)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_LIVED_SECONDS = 60.0
"""Who lived that long has got on."""
_STOP_SECONDS = 20
_LAST_BYTES = 20_000


class CaptureSupervisor:
    """Runs the capture process of a source."""

    def __init__(self, home: Path, source: str, inherited: Sequence[int] = ()) -> None:
        self._home = home
        self._source = source
        self._inherited = inherited
        """Handles that capture has open, too: of the lock on its source, which is free when nobody writes any more."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._died = 0
        """How often in a row it died without having got on."""
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
        home = str(self._home.absolute())
        command = [sys.executable, "-m", "penstock.engine.capture_process", home, self._source, str(self._died)]
        run_path(self._home).mkdir(parents=True, exist_ok=True)
        path = capture_log_path(self._home, self._source)
        with path.open("ab") as log:
            self._begins = log.tell()
            self._started, self._durable = time.monotonic(), self._reached()
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=self._inherited,
            )

    def _watch(self) -> None:
        while (code := self._process.wait()) not in _ENDED_FOR_GOOD and not self._stopping.is_set():
            pause = self._note_death(code)
            if self._stopping.wait(pause):
                return
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process.stdin.close() if self._process.stdin else None
                self._process = self._start()

    def _note_death(self, code: int) -> float:
        """Count it, show it where it is one of several; return how long to wait."""
        got_on = time.monotonic() - self._started > _LIVED_SECONDS or self._reached() != self._durable
        self._died = 1 if got_on else self._died + 1
        failed = self._died >= TRIES
        if self._died > 1:
            told = f"capture of {self._source} ended {self._died} times without getting on: {self._how(code)}"
            path = capture_log_path(self._home, self._source)
            again = "It is started again by itself, once a minute in the end."
            hint = f"Mend what {path} says, or report it as a defect in Penstock. {again}"
            self._show(told, hint, SourceState.FAILED if failed else SourceState.READY)
        longest = LONGEST_PAUSE if self._died > 2 * TRIES else _LONGEST_PAUSE
        return min(_FIRST_PAUSE * float(1 << min(self._died - 1, 20)), longest)

    def _show(self, error: str, hint: str, state: SourceState) -> None:
        with suppress(PenstockError):  # whoever else finds that the catalog cannot be written will say so
            Catalog(catalog_path(self._home)).note_source_error(self._source, error, hint, state)

    def _how(self, code: int) -> str:
        with capture_log_path(self._home, self._source).open("rb") as log:
            log.seek(max(self._begins, log.seek(0, 2) - _LAST_BYTES))
            return how_it_ended(code, log.read().decode(errors="replace"))

    def _reached(self) -> Lsn | None:
        """Say what capture has made durable."""
        with suppress(PenstockError):
            return durable_now(Catalog(catalog_path(self._home)).log(self._source))
        return None


def how_it_ended(code: int, printed: str) -> str:
    """Say how a process ended, and of what it printed the type and place of an exception, which hold no values."""
    if code >= 0:
        ended = f"exit code {code}"
    else:
        known = {number.value: number.name for number in signal.Signals}
        ended = f"killed by {known.get(-code, f'signal {-code}')}"
    told = told_by(printed)
    return f"{ended}, {told}" if told else ended
