"""The running home: runs each source, and executes the requests for them.

::

    every second:  sources that are dropping        ─▶ stopped and released, so that they can be dropped
                   sources that are ready           ─▶ started, unless another process holds the lock
                   creates and drops of a process that died ─▶ rolled back, completed
                   tables created upstream          ─▶ requested (see `new_tables`)
                   tables altered upstream          ─▶ captured again, as an option (see `changed_tables`)
                   requested options and tables     ─▶ reconciled
                   history that no reader needs     ─▶ released
                   sinks                            ─▶ started, restarted with changed options, stopped, dropped
    every 5 s:     status                           ─▶ alarms

Tables and some sinks need Spark. `suspend` stops their work when Spark is lost, and `resume` starts it with a new
Spark; capture, requests and the other sinks continue meanwhile. `penstock.engine.supervisor` calls them.

Other processes may create, change and drop sources meanwhile: the catalog holds their requests, and locks protect the
sources that they work on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord, TableRecord
from penstock.engine.alarms import AlarmWatch
from penstock.engine.changed_tables import ChangedTables
from penstock.engine.error_policy import Tries, explained
from penstock.engine.lifecycle import HALF, recover
from penstock.engine.locks import take_source, try_lifecycle_lock
from penstock.engine.new_tables import NewTables
from penstock.engine.requests import pending_requests
from penstock.engine.retention import release_history
from penstock.engine.sink_runner import SinkRunners
from penstock.engine.source_runner import SourceRunner
from penstock.engine.state_events import StateEvents
from penstock.engine.status import home_status
from penstock.engine.table import Progress
from penstock.engine.table_names import named_source, runnable_sources
from penstock.engine.upstream_watches import UpstreamWatches
from penstock.engine.work_rounds import side_by_side
from penstock.errors import PenstockError, TransientError
from penstock.event_log import Event
from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error
from penstock.spark.session import is_alive
from penstock.tables.interface import TableStore

__all__ = ["HomeRunner"]

_POLL_SECONDS = 0.1
_RECONCILE_SECONDS = 1.0
_ORPHAN_SECONDS = 20.0
"""A capture process whose parent was killed ends within this time."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_WAITING = (TableState.ADDING, TableState.RETRYING, TableState.PENDING)


class HomeRunner:
    """Runs all sources of a home, until `stop`."""

    def __init__(self, home: Path, catalog: Catalog, store: TableStore | None, progress: Progress) -> None:
        """Start; without a `store`, only what needs none, until `resume`."""
        self._home = home
        self._store = store
        self._progress = progress
        self._catalog = catalog
        self._sources: dict[str, SourceRunner] = {}
        self._sinks = SinkRunners(home, catalog, progress, store)
        self._ending: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self._reported: dict[str, str] = {}
        """The last error that was reported for each operation that is retried."""
        self._tries: dict[str, Tries] = {}
        self._pause, self._recover_at = _FIRST_PAUSE, 0.0
        self._failure: BaseException | None = None
        self._lost = False
        """Whether an operation of this thread found that Spark has ended."""
        self._reconciling = threading.Lock()
        self._watch: threading.Thread | None = None
        self._new_tables = NewTables(catalog, progress)
        self._changed_tables = ChangedTables(catalog, progress)
        self._watches = UpstreamWatches()
        self._alarms = AlarmWatch(home, partial(home_status, home, catalog, self._watches), progress)
        self._states = StateEvents(catalog, progress)
        try:
            for record in runnable_sources(catalog):
                self._start(record.name, _ORPHAN_SECONDS)
        except BaseException:
            self.stop()
            raise
        self._watch = threading.Thread(target=self._reconcile_until_stopped, name="penstock-renew", daemon=True)
        self._watch.start()

    def _reconcile_until_stopped(self) -> None:
        try:
            while not self._stopping.wait(_RECONCILE_SECONDS):
                with self._reconciling:
                    self._reconcile(self._catalog.sources())
        except BaseException as error:
            self._failure = error

    def _reconcile(self, records: Sequence[SourceRecord]) -> None:
        """Bring the running sources in line with the catalog."""
        wanted = {record.name for record in records if record.state not in HALF}
        self._stop_dropped(wanted)
        for name in wanted - self._sources.keys() - self._ending.keys():
            self._try(f"{name} cannot be started yet", partial(self._start, name), name)
        if any(record.state in HALF and record.name not in self._ending for record in records):
            self._try("unfinished creates and drops cannot be recovered yet", self._recover)
        self._try("new tables cannot be captured yet", partial(self._new_tables.look, list(self._sources)))
        self._try("tables cannot be captured again yet", partial(self._changed_tables.look, list(self._sources)))
        for name, source in self._sources.items():
            source.record_failure()
            self._try(f"{name}: its options cannot be changed yet", source.set_options, name)
            requests = pending_requests(self._catalog, name)
            if requests:
                self._try(f"{name}: its tables cannot be changed yet", partial(source.alter, requests), name)
            self._try(f"{name}: history cannot be released", partial(release_history, self._catalog, name), name)
        self._try("sinks cannot be started or stopped yet", partial(self._sinks.reconcile, self._sources.keys()))
        self._states.look()

    def _stop_dropped(self, wanted: set[str]) -> None:
        """Stop sources that are being dropped, or were, in a thread each: a running snapshot may take a while."""
        self._ending = {name: thread for name, thread in self._ending.items() if thread.is_alive()}
        for name in self._sources.keys() - wanted:
            source = self._sources[name]
            self._sources = {other: kept for other, kept in self._sources.items() if other != name}
            leave = partial(self._abandon, name, source)
            self._ending[name] = threading.Thread(target=leave, name=f"penstock-leave-{name}", daemon=True)
            self._ending[name].start()
            message = f"{name}: stopped: the source is being dropped"
            self._progress(Event(message, "source_dropped", source=name))

    def _abandon(self, name: str, source: SourceRunner) -> None:
        """Stop a source and release its lock, whatever happens."""
        try:
            source.abandon()
        except Exception as error:
            failure = explained("stopping it", error)
            self._progress(Event(f"{name}: {failure.message}", "source_error", "error", source=name))

    def _start(self, name: str, seconds: float = 0.0) -> None:
        """Start a source, unless another process holds its lock."""
        lock = take_source(self._home, name, seconds)
        if lock is None:
            return
        try:
            if named_source(self._catalog, name).state in HALF:  # changed just before the lock was taken
                lock.release()
                return
            source = SourceRunner(self._home, self._catalog, name, self._store, self._progress, lock)
        except BaseException:
            lock.release()
            raise
        self._sources = {**self._sources, name: source}

    def _recover(self) -> None:
        """Recover creates and drops of a process that died, unless another process does so; retry with backoff."""
        if time.monotonic() < self._recover_at:
            return
        with try_lifecycle_lock(self._home) as free:
            left = recover(self._home, self._catalog) if free else []
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if left else _FIRST_PAUSE
        self._recover_at = time.monotonic() + (self._pause if left else 0.0)
        if left:
            raise left[0]

    def _try(self, what: str, work: Callable[[], object], source: str | None = None) -> None:
        """Run an operation that is retried; report each error once.

        Retry unexpected exceptions with growing pauses, and record them with the source; without a source, raise them
        in the end, which stops the home.
        """
        tries = self._tries.setdefault(what, Tries())
        if not tries.due():
            return
        try:
            work()
        except PenstockError as error:  # expected: retried the next time
            self._report(what, error.message)
        except Exception as error:
            if is_spark_lost(error):
                self._lost = True
                return
            tries.failed()
            if tries.spent and source is None:
                raise
            failure = explained(what, error, "Penstock retries it.")
            self._report(what, failure.message)
            if tries.spent and source is not None:
                self._catalog.note_source_error(source, failure.message, failure.hint)
        else:
            if tries.spent and source is not None:
                self._catalog.forget_source_error(source)
            tries.worked()

    def _report(self, what: str, why: str) -> None:
        if self._reported.get(what) != why:
            self._progress(Event(f"{what}: {why}", "reconcile_failed", "warning"))
        self._reported[what] = why

    def capture_pids(self) -> dict[str, int]:
        """Return the pid of each source's capture process."""
        return {name: source.capture_pid for name, source in self._sources.items()}

    def suspend(self) -> None:
        """Stop all work that needs Spark, because it is lost; capture and other sinks continue."""
        with self._reconciling:
            self._store = None
            self._sinks.suspend()
            self._stop_all(SourceRunner.suspend)

    def resume(self, store: TableStore) -> None:
        """Start the work that needs Spark, with a new one."""
        with self._reconciling:
            self._store, self._lost = store, False
            for source in self._sources.values():
                source.resume(store)
            self._sinks.resume(store)

    @property
    def is_spark_lost(self) -> bool:
        """Whether an operation found that Spark has ended, or the JVM that this process started has."""
        failures = [source.failure() for source in self._sources.values()]
        return self._lost or not is_alive() or any(isinstance(failure, TransientError) for failure in failures)

    @property
    def merges(self) -> int:
        """The number of merges since Spark was last started."""
        return sum(source.merges for source in self._sources.values())

    def check(self) -> None:
        """Raise an error if every source has stopped permanently, or Spark has ended, which all sources need.

        As long as one source runs, the errors of the others are in the status only.
        """
        if self.is_spark_lost:
            raise spark_lost_error()
        self.check_sources()

    def check_sources(self) -> None:
        """Raise an error if every source has stopped permanently, whether Spark runs or not."""
        if self._failure is not None:
            raise self._failure
        failures = [source.failure() for source in self._sources.values()]
        permanent = [failure for failure in failures if failure and not isinstance(failure, TransientError)]
        if failures and len(permanent) == len(failures):
            raise permanent[0]

    def copied_tables(self) -> tuple[int, int]:
        """Return the number of tables whose initial snapshot is complete or failed, and the number of all tables."""
        running = {record.name for record in runnable_sources(self._catalog)}
        tables = [table for table in self._catalog.tables() if table.source in running]
        return sum(not _awaits_snapshot(table) for table in tables), len(tables)

    def wait_live(self, seconds: float | None = None) -> None:
        """Wait until no table waits for its initial snapshot."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            copied, total = self.copied_tables()
            if copied == total:
                return
            self.check()
            if deadline is not None and time.monotonic() > deadline:
                message = f"the initial snapshot was not complete after {seconds:.0f} s"
                raise TransientError(message, "Run `penstock status` to see its progress.")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop sinks, then all sources, in parallel: apply first, then capture; all finish their current work."""
        self._stopping.set()
        self._alarms.stop()
        self._watches.close()
        self._new_tables.close()
        self._changed_tables.close()
        if self._watch is not None:
            self._watch.join()
        self._sinks.stop()
        self._stop_all(SourceRunner.stop)
        for thread in self._ending.values():
            thread.join()

    def _stop_all(self, stop: Callable[[SourceRunner], None]) -> None:
        """Stop all sources in parallel."""
        if self._sources:
            with ThreadPoolExecutor(len(self._sources), "penstock-stop") as pool:
                side_by_side(pool, stop, self._sources.values())


def _awaits_snapshot(table: TableRecord) -> bool:
    return table.state in _WAITING and not (table.state is TableState.PENDING and table.error)
