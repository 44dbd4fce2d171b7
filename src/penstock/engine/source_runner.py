"""One source at work: its capture process on one side of the log, copy and apply on the other.

Whoever runs it holds its lock, and so does the capture process, which may outlive a parent that was killed: nobody
removes, changes or captures a source while somebody else still may.
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
from penstock.engine.table_loops import Follower
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, TransientError
from penstock.tables.interface import TableStore

__all__ = ["RunningSource"]


class RunningSource:
    """Captures, copies and applies one source, until `stop`."""

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
        """What was last looked at of what is wished."""
        self._capture = self._start_capture()
        try:
            self._follower = Follower(home, catalog, name, store, progress)
        except BaseException:
            self._capture.stop()
            raise

    @property
    def capture_pid(self) -> int:
        """The process id of its capture."""
        return self._capture.pid

    def failure(self) -> BaseException | None:
        """Return what stopped it for good, if something did."""
        record = self._catalog.source(self._name)
        if self._capture.ended and record is not None and record.state is SourceState.FAILED:
            return DefiniteError(record.error or f"capture of {self._name} stopped", record.hint or "")
        return self._follower.failure

    def show_failure(self) -> None:
        """Show what stopped it for good with the source: capture, which goes on, may have taken it for ready again."""
        failure = self._follower.failure
        if failure is None or isinstance(failure, TransientError):  # Spark is gone: that ends all sources
            return
        told = explained(f"source {self._name}", failure, "Start again: it goes on where it was.")
        record = self._catalog.source(self._name)
        if record is not None and (record.state is SourceState.READY or record.error is None):
            self._catalog.note_source_error(self._name, told.message, told.hint, SourceState.FAILED)
            self._progress(f"{self._name}: {told.message}")

    def set_options(self) -> None:
        """Go on with the options that are wished of it, where these are others: capture stands still for a moment."""
        record = named_source(self._catalog, self._name)
        if record.spec == self._spec:
            return
        if not is_set(record):
            self._capture.stop()
            try:
                set_options(self._catalog, named_source(self._catalog, self._name))
            finally:
                self._capture = self._start_capture()
            self._follower.renew()
            self._progress(f"{self._name}: goes on with other options")
        self._spec = record.spec

    def alter(self, wishes: Sequence[TableRecord]) -> None:
        """Carry wishes out: Postgres is asked first; then capture stands still for a moment, copy and apply go on."""
        found = describe(named_source(self._catalog, self._name), wishes)
        free = self._follower.let_go({wish.upstream for wish in wishes})
        ready = [wish for wish in wishes if wish.upstream in free]
        if not ready:
            return
        try:
            self._capture.stop()
            described = {name: table for name, table in found.items() if name in free}
            for told in alter(self._home, self._catalog, named_source(self._catalog, self._name), ready, described):
                self._progress(told)
        except DefiniteError as error:
            give_up(self._catalog, ready, error)
            raise
        finally:
            self._capture = self._start_capture()
            self._follower.take_back()

    def stop(self) -> None:
        """Stop applying, then capturing, both when they have finished what they have in hand; let go of the source."""
        try:
            self._follower.stop()
        finally:
            try:
                self._capture.stop()
            finally:
                self._lock.let_go()

    def abandon(self) -> None:
        """Stop capturing at once, for it is dropped; then the same."""
        self._capture.stop()
        self.stop()

    def _start_capture(self) -> CaptureSupervisor:
        return CaptureSupervisor(self._home, self._name, [self._lock.handle])
