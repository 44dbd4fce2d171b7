"""The capture process: ``python -m penstock.engine.capture_process HOME SOURCE [DIED]``.

The process runs until its standard input ends: the parent closes the pipe to stop it, and the pipe also closes when the
parent dies. Transient errors are retried here, with backoff. A permanent error is recorded in the catalog and ends the
process. An unexpected exception is recorded, too, but capture restarts inside the process; the error stays in the
catalog until capture has made progress, or has run for a minute. The same applies to a process that replaces one that
died: `DIED` is the number of consecutive deaths.

When the disk of the home is nearly full, capture pauses, and only removes history (see `disk_space`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.engine.as_of import durable_now
from penstock.engine.capture_errors import count_capture_error
from penstock.engine.catalog_records import instance_of
from penstock.engine.disk_space import pausing_when_full, wait_for_space
from penstock.engine.error_policy import Tries
from penstock.errors import DefiniteError, InUseError, PenstockError, TransientError
from penstock.layout import catalog_path, state_path
from penstock.positions import Lsn
from penstock.sources.interface import Instance
from penstock.sources.kinds import kind
from penstock.unexpected_errors import trace, unexpected

__all__ = ["capture", "main"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0
_IN_USE_SECONDS = 15.0
_STOP_SECONDS = 15.0
_POLL_SECONDS = 0.5
_WORKING_SECONDS = 60.0
"""Capture that runs for this long counts as working."""


def main(arguments: list[str]) -> int:
    """Capture one source until standard input ends."""
    home, name = Path(arguments[0]), arguments[1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the parent process
    stop = threading.Event()
    threading.Thread(target=_wait_for_end_of_input, args=(stop,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return capture(home, name, stop, int(arguments[2]) if len(arguments) > 2 else 0)


def capture(home: Path, name: str, stop: threading.Event, died: int = 0) -> int:
    """Capture one source until `stop` is set, or until a permanent error, which is recorded in the catalog.

    Return the exit code. `died` is the number of earlier attempts that made no progress.
    """
    catalog = Catalog(catalog_path(home))
    if catalog.source(name) is None:
        return DefiniteError.exit_code
    tries = Tries(died)
    while True:
        try:
            record = catalog.source(name)
            if record is None:
                return DefiniteError.exit_code
            factory = kind(record.kind).factory()
            instance = factory.instantiate(instance_of(record), catalog.log(name), state_path(home, name))
            with _ProgressWatch(catalog, name, instance, tries) as watch:
                _run_until_stopped(home, instance, catalog, name, stop, watch)
            return 0
        except PenstockError as error:
            count_capture_error(home, name, error)
            catalog.set_source(name, SourceState.FAILED, error=error.message, hint=error.hint)
            return error.exit_code
        except Exception as error:
            if stop.is_set():
                return 0
            count_capture_error(home, name, error)
            _record_error(catalog, name, error, tries)
            if stop.wait(tries.pause):
                return 0


def _record_error(catalog: Catalog, name: str, error: Exception, tries: Tries) -> None:
    """Record an unexpected exception; after several attempts without progress, the source is `failed`, but retried."""
    tries.failed()
    sys.stderr.write(f"{trace(error)}\n")  # into the log of this process
    sys.stderr.flush()
    hint = "Capture is retried automatically, at least once a minute. Live tables stay readable."
    failure = unexpected(f"capture of {name}", error, hint)
    times = f" ({tries.count} times without progress)" if tries.count > 1 else ""
    state = SourceState.FAILED if tries.spent else SourceState.READY
    catalog.note_source_error(name, f"{failure.message}{times}", failure.hint, state)


@dataclass
class _ProgressWatch:
    """Keeps the error of earlier attempts in the catalog until this attempt has made progress."""

    catalog: Catalog
    name: str
    instance: Instance
    tries: Tries

    def __post_init__(self) -> None:
        self._done = threading.Event()
        self._before: Lsn | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> _ProgressWatch:
        """Watch for progress in a thread, if earlier attempts failed."""
        if self.tries.count:
            self._before = durable_now(self.catalog.log(self.name))
            self._thread = threading.Thread(target=self._watch, name=f"penstock-watch-{self.name}", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def connected(self) -> None:
        """Store the instance config with which capture resumes: after a failover it has another timeline."""
        instance = self.instance.config().model_dump_json()
        record = self.catalog.source(self.name)
        if self.tries.count and record is not None and record.error:
            recorded = (record.error, record.hint or "")
            self.catalog.set_source(self.name, record.state, instance=instance, error=recorded[0], hint=recorded[1])
        else:
            self.catalog.set_source(self.name, SourceState.READY, instance=instance)

    def _watch(self) -> None:
        until = time.monotonic() + _WORKING_SECONDS
        while not self._done.wait(_POLL_SECONDS):
            if time.monotonic() > until or durable_now(self.catalog.log(self.name)) != self._before:
                self.tries.worked()
                self.catalog.forget_source_error(self.name)
                return


def _wait_for_end_of_input(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # unbuffered: the lock of a buffer aborts the interpreter at exit
        pass
    stop.set()
    time.sleep(_STOP_SECONDS)  # an unreachable broker may block the log; nothing that is not durable was confirmed
    os._exit(TransientError.exit_code)


def _note(catalog: Catalog, name: str, error: TransientError) -> None:
    """Record a transient error: the source stays `ready`."""
    catalog.set_source(name, SourceState.READY, error=error.message, hint=error.hint)


def _remove_history(catalog: Catalog, name: str, instance: Instance) -> None:
    """Remove expired history, as capture does while it runs; errors are left to capture."""
    with suppress(PenstockError), closing(catalog.log(name).writer()) as writer:
        writer.retain(datetime.now(UTC) - instance.config().retained())


def _run_until_stopped(
    home: Path, instance: Instance, catalog: Catalog, name: str, stop: threading.Event, watch: _ProgressWatch
) -> None:
    pause, failing_since = _FIRST_PAUSE, 0.0
    record = catalog.source(name)
    log_is_elsewhere = record is not None and record.log is not None
    while not stop.is_set():
        before = instance.durable_frontier()
        try:
            if log_is_elsewhere:
                instance.run(stop, watch.connected)
                continue
            with pausing_when_full(home, stop) as halted:
                instance.run(halted, watch.connected)
            wait_for_space(home, stop, partial(_note, catalog, name), partial(_remove_history, catalog, name, instance))
        except TransientError as error:
            count_capture_error(home, name, error)
            moved = instance.durable_frontier() != before
            pause = _FIRST_PAUSE if moved else min(pause * 2, _LONGEST_PAUSE)
            failing_since = time.monotonic() if moved or not failing_since else failing_since
            if isinstance(error, InUseError) and time.monotonic() - failing_since > _IN_USE_SECONDS:
                raise
            _note(catalog, name, error)
            stop.wait(min(pause, 1.0) if isinstance(error, InUseError) else pause)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
