"""A running source: its capture process writes the log; snapshot and apply read it.

This process holds the lock of the source, and so does the capture process, which may outlive a parent that was killed:
no process removes, changes or captures a source while another one may still do so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog, TableRecord
from penstock.engine.error_policy import explained
from penstock.engine.locks import SourceLock
from penstock.engine.reconcile import alter, describe, give_up, is_set, set_options
from penstock.engine.supervisor import CaptureSupervisor
from penstock.engine.table import Progress
from penstock.engine.table_loops import TableLoops
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, TransientError
from penstock.tables.interface import TableStore

__all__ = ["SourceRunner"]


class SourceRunner:
    """Runs capture, snapshot and apply of one source, until `stop`."""

    def __init__(
        self, home: Path, catalog: Catalog, name: str, store: TableStore, progress: Progress, lock: SourceLock
    ) -> None:
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
        try:
            self._tables = TableLoops(home, catalog, name, store, progress)
        except BaseException:
            self._capture.stop()
            raise

    @property
    def capture_pid(self) -> int:
        """The pid of the capture process."""
        return self._capture.pid

    def failure(self) -> BaseException | None:
        """Return the error that stopped the source permanently, or None."""
        record = self._catalog.source(self._name)
        if self._capture.ended and record is not None and record.state is SourceState.FAILED:
            return DefiniteError(record.error or f"capture of {self._name} stopped", record.hint or "")
        return self._tables.failure

    def record_failure(self) -> None:
        """Record a permanent error with the source: capture, which continues, may have set it to `ready` again."""
        failure = self._tables.failure
        if failure is None or isinstance(failure, TransientError):  # Spark has ended: that stops all sources
            return
        error = explained(f"source {self._name}", failure, "Restart: the source resumes where it stopped.")
        record = self._catalog.source(self._name)
        if record is not None and (record.state is SourceState.READY or record.error is None):
            self._catalog.note_source_error(self._name, error.message, error.hint, SourceState.FAILED)
            self._progress(f"{self._name}: {error.message}")

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
            self._tables.reload()
            self._progress(f"{self._name}: resumed with changed options")
        self._spec = record.spec

    def alter(self, requests: Sequence[TableRecord]) -> None:
        """Execute requests for tables: query the upstream first, then restart capture; snapshot and apply continue."""
        found = describe(named_source(self._catalog, self._name), requests)
        free = self._tables.release_tables({request.upstream for request in requests})
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
            self._tables.resume_tables()

    def stop(self) -> None:
        """Stop apply, then capture, each after its current work; release the lock of the source."""
        try:
            self._tables.stop()
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
