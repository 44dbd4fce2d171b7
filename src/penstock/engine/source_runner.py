"""A running source: its capture process writes the log; snapshot and apply read it.

Snapshot and apply need the table store, that is, Spark. Without one (`suspend`), capture continues alone and the log
grows; with a new one (`resume`), each table continues at its position.

This process holds the lock of the source, and so does the capture process, which may outlive a parent that was killed:
no process removes, changes or captures a source while another one may still do so.

A supervisor restarts the capture process when it dies, unless it ended with a permanent error. If the process dies
repeatedly without progress (its durable frontier did not advance, and it did not run for a minute), that is recorded
with its source from the second time on: how it ended, and the type and place of the exception that it printed. After
five times, the source is `failed`; in the end it is restarted once a minute. Capture treats exceptions that it can
catch the same way, without dying (see `capture_process`).
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
from penstock.catalog.store import Catalog, TableRecord
from penstock.engine.as_of import durable_now
from penstock.engine.error_policy import LONGEST_PAUSE, TRIES, explained
from penstock.engine.instruments import CAPTURE_RESTARTS
from penstock.engine.locks import SourceLock
from penstock.engine.reconcile import alter, describe, give_up, is_set, set_options
from penstock.engine.table import Progress
from penstock.engine.table_loops import TableLoops
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.event_log import Event
from penstock.layout import capture_log_path, catalog_path, run_path
from penstock.positions import Lsn
from penstock.private_file import create_folder, private
from penstock.tables.interface import TableStore
from penstock.unexpected_errors import exception_in_output

__all__ = ["CaptureSupervisor", "SourceRunner", "how_it_ended"]


class SourceRunner:
    """Runs capture, snapshot and apply of one source, until `stop`."""

    def __init__(
        self, home: Path, catalog: Catalog, name: str, store: TableStore | None, progress: Progress, lock: SourceLock
    ) -> None:
        """Start capture, and the work on tables if there is a `store`."""
        self._home = home
        self._catalog = catalog
        self._name = name
        self._progress = progress
        self._lock = lock
        record = named_source(catalog, name)
        set_options(catalog, record)
        self._spec = record.spec
        """The spec whose options were applied last."""
        self._capture = self._start_capture()
        self._tables: TableLoops | None = None
        try:
            if store is not None:
                self.resume(store)
        except BaseException:
            self._capture.stop()
            raise

    def suspend(self) -> None:
        """Stop the work on tables; capture continues."""
        tables, self._tables = self._tables, None
        if tables is not None:
            tables.stop()

    def resume(self, store: TableStore) -> None:
        """Start the work on tables."""
        self._tables = TableLoops(self._home, self._catalog, self._name, store, self._progress)

    @property
    def merges(self) -> int:
        """The number of merges since the work on tables was last started."""
        return 0 if self._tables is None else self._tables.merges

    @property
    def capture_pid(self) -> int:
        """The pid of the capture process."""
        return self._capture.pid

    def failure(self) -> BaseException | None:
        """Return the error that stopped the source permanently, or None."""
        record = self._catalog.source(self._name)
        if self._capture.ended and record is not None and record.state is SourceState.FAILED:
            return DefiniteError(record.error or f"capture of {self._name} stopped", record.hint or "")
        return None if self._tables is None else self._tables.failure

    def record_failure(self) -> None:
        """Record a permanent error with the source: capture, which continues, may have set it to `ready` again."""
        failure = None if self._tables is None else self._tables.failure
        if failure is None or isinstance(failure, TransientError):  # Spark has ended: that concerns all sources
            return
        error = explained(f"source {self._name}", failure, "Restart: the source resumes where it stopped.")
        record = self._catalog.source(self._name)
        if record is not None and (record.state is SourceState.READY or record.error is None):
            self._catalog.note_source_error(self._name, error.message, error.hint, SourceState.FAILED)
            self._progress(Event.of_source(self._name, Event(error.message, "source_failed")))

    def set_options(self) -> None:
        """Apply changed options, if there are any: capture is restarted."""
        record = named_source(self._catalog, self._name)
        if record.spec == self._spec:
            return
        if not is_set(record):
            self._capture.stop()
            try:
                set_options(self._catalog, named_source(self._catalog, self._name))
            finally:
                self._capture = self._start_capture()
            if self._tables is not None:
                self._tables.reload()
            self._progress(Event.of_source(self._name, Event("resumed with changed options", "options_changed")))
        self._spec = record.spec

    def alter(self, requests: Sequence[TableRecord]) -> None:
        """Execute requests for tables: query the upstream first, then restart capture; snapshot and apply continue."""
        found = describe(named_source(self._catalog, self._name), requests)
        wanted = {request.upstream for request in requests}
        free = wanted if self._tables is None else self._tables.release_tables(wanted)
        ready = [request for request in requests if request.upstream in free]
        if not ready:
            return
        try:
            self._capture.stop()
            described = {name: table for name, table in found.items() if name in free}
            for message in alter(self._home, self._catalog, named_source(self._catalog, self._name), ready, described):
                self._progress(message)
        except DefiniteError as error:
            give_up(self._catalog, ready, error)
            raise
        finally:
            self._capture = self._start_capture()
            if self._tables is not None:
                self._tables.resume_tables()

    def stop(self) -> None:
        """Stop apply, then capture, each after its current work; release the lock of the source."""
        try:
            self.suspend()
        finally:
            try:
                self._capture.stop()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """Stop capture first, because the source is being dropped; then `stop`."""
        self._capture.stop()
        self.stop()

    def _start_capture(self) -> CaptureSupervisor:
        return CaptureSupervisor(self._home, self._name, [self._lock.handle])


# -- supervisor --------------------------------------------------------------------------------------------------------

_PERMANENT_EXITS = (DefiniteError.exit_code, TransientError.exit_code)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 10.0
_WORKING_SECONDS = 60.0
"""A process that ran for this long counts as working."""
_STOP_SECONDS = 20
_LAST_BYTES = 20_000
_MOST_BYTES = 1 << 20
"""The size of a capture log at which the next process begins it again."""


class CaptureSupervisor:
    """Runs the capture process of a source."""

    def __init__(self, home: Path, source: str, inherited: Sequence[int] = ()) -> None:
        self._home = home
        self._source = source
        self._inherited = inherited
        """File descriptors that capture inherits: the lock of its source, which is held until capture has ended."""
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._died = 0
        """The number of consecutive deaths without progress."""
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name=f"penstock-supervise-{source}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The pid of the current capture process."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether capture has stopped permanently; the catalog contains the error."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop capture after its current work, and wait for it."""
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
        """Start capture in a new session; it ends with its standard input, so also when this process is killed."""
        home = str(self._home.absolute())
        command = [sys.executable, "-m", "penstock.engine.capture_process", home, self._source, str(self._died)]
        create_folder(run_path(self._home))
        path = capture_log_path(self._home, self._source)
        mode = "wb" if path.exists() and path.stat().st_size > _MOST_BYTES else "ab"
        with open(path, mode, opener=private) as log:
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
        while (code := self._process.wait()) not in _PERMANENT_EXITS and not self._stopping.is_set():
            pause = self._note_death(code)
            if self._stopping.wait(pause):
                return
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process.stdin.close() if self._process.stdin else None
                self._process = self._start()

    def _note_death(self, code: int) -> float:
        """Count a death, record it with the source from the second on; return the pause before the restart."""
        CAPTURE_RESTARTS.labels(self._source).inc()
        made_progress = time.monotonic() - self._started > _WORKING_SECONDS or self._reached() != self._durable
        self._died = 1 if made_progress else self._died + 1
        failed = self._died >= TRIES
        if self._died > 1:
            message = f"capture of {self._source} ended {self._died} times without progress: {self._how(code)}"
            path = capture_log_path(self._home, self._source)
            again = "It is restarted automatically, at least once a minute."
            hint = f"Fix the error in {path}, or report it as a defect in Penstock. {again}"
            self._record_error(message, hint, SourceState.FAILED if failed else SourceState.READY)
        longest = LONGEST_PAUSE if self._died > 2 * TRIES else _LONGEST_PAUSE
        return min(_FIRST_PAUSE * float(1 << min(self._died - 1, 20)), longest)

    def _record_error(self, error: str, hint: str, state: SourceState) -> None:
        with suppress(PenstockError):  # other writers of the catalog report that it cannot be written
            Catalog(catalog_path(self._home)).note_source_error(self._source, error, hint, state)

    def _how(self, code: int) -> str:
        with capture_log_path(self._home, self._source).open("rb") as log:
            log.seek(max(self._begins, log.seek(0, 2) - _LAST_BYTES))
            return how_it_ended(code, log.read().decode(errors="replace"))

    def _reached(self) -> Lsn | None:
        """Return the durable frontier of the log."""
        with suppress(PenstockError):
            return durable_now(Catalog(catalog_path(self._home)).log(self._source))
        return None


def how_it_ended(code: int, printed: str) -> str:
    """Describe how a process ended, with type and place of the last exception in its output, but not its text."""
    if code >= 0:
        ended = f"exit code {code}"
    else:
        known = {number.value: number.name for number in signal.Signals}
        ended = f"killed by {known.get(-code, f'signal {-code}')}"
    message = exception_in_output(printed)
    return f"{ended}, {message}" if message else ended
