"""A home at work: each of its sources runs, and what is wished of them is carried out.

::

    every second:  dropping        ─▶ let go of, for whoever drops it
                   ready           ─▶ taken up, if nobody has it
                   half made, half dropped, and nobody is at it any more  ─▶ undone, finished
                   options, tables ─▶ as they are wished
                   history that nobody needs ─▶ released

Others may make, change and drop sources meanwhile: the catalog says what they want, locks say what they have in hand.
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
from penstock.engine.error_policy import Tries, explained
from penstock.engine.lifecycle import HALF, recover
from penstock.engine.locks import making_if_free, take_source
from penstock.engine.requests import open_wishes
from penstock.engine.retention import release_history
from penstock.engine.source_runner import RunningSource
from penstock.engine.table import Progress
from penstock.engine.table_names import named_source, runnable_sources
from penstock.engine.turns import side_by_side
from penstock.errors import PenstockError, TransientError
from penstock.spark.loss import dead_spark, lost
from penstock.spark.session import is_alive
from penstock.tables.interface import TableStore

__all__ = ["Running"]

_LOOK_SECONDS = 0.1
_LOOK_AFTER_SECONDS = 1.0
_OUTLIVED_SECONDS = 20.0
"""A capture whose parent was killed has ended by then."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_WAITING = (TableState.ADDING, TableState.RETRYING, TableState.PENDING)


class Running:
    """What runs for all sources of a home, until `stop`."""

    def __init__(self, home: Path, catalog: Catalog, store: TableStore, progress: Progress) -> None:
        self._home = home
        self._store = store
        self._progress = progress
        self._catalog = catalog
        self._sources: dict[str, RunningSource] = {}
        self._leaving: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self._told: dict[str, str] = {}
        """What was last said to be in the way of what is tried again and again."""
        self._tries: dict[str, Tries] = {}
        self._pause, self._recover_at = _FIRST_PAUSE, 0.0
        self._failure: BaseException | None = None
        self._watch: threading.Thread | None = None
        try:
            for record in runnable_sources(catalog):
                self._take_up(record.name, _OUTLIVED_SECONDS)
        except BaseException:
            self.stop()
            raise
        self._watch = threading.Thread(target=self._watch_over, name="penstock-renew", daemon=True)
        self._watch.start()

    def _watch_over(self) -> None:
        try:
            while not self._stopping.wait(_LOOK_AFTER_SECONDS):
                self._look_after(self._catalog.sources())
        except BaseException as error:
            self._failure = error

    def _look_after(self, records: Sequence[SourceRecord]) -> None:
        """Do what the catalog asks for."""
        wanted = {record.name for record in records if record.state not in HALF}
        self._leave(wanted)
        for name in wanted - self._sources.keys() - self._leaving.keys():
            self._try(f"{name} cannot run yet", partial(self._take_up, name), name)
        if any(record.state in HALF and record.name not in self._leaving for record in records):
            self._try("what was left half done has to wait", self._recover)
        for name, source in self._sources.items():
            source.show_failure()
            self._try(f"{name}: its options cannot be changed yet", source.set_options, name)
            wishes = open_wishes(self._catalog, name)
            if wishes:
                self._try(f"{name}: its tables cannot be changed yet", partial(source.alter, wishes), name)
            self._try(f"{name}: history cannot be released", partial(release_history, self._catalog, name), name)

    def _leave(self, wanted: set[str]) -> None:
        """Let go of sources that shall be dropped, or are gone; a copy in hand takes its time, nobody waits for it."""
        self._leaving = {name: thread for name, thread in self._leaving.items() if thread.is_alive()}
        for name in self._sources.keys() - wanted:
            source = self._sources[name]
            self._sources = {other: kept for other, kept in self._sources.items() if other != name}
            leave = partial(self._abandon, name, source)
            self._leaving[name] = threading.Thread(target=leave, name=f"penstock-leave-{name}", daemon=True)
            self._leaving[name].start()
            self._progress(f"{name}: let go, it is dropped")

    def _abandon(self, name: str, source: RunningSource) -> None:
        """Let go of a source; it is free then, whatever happens."""
        try:
            source.abandon()
        except Exception as error:
            self._progress(f"{name}: {explained('letting go of it', error).message}")

    def _take_up(self, name: str, seconds: float = 0.0) -> None:
        """Run a source, unless somebody else has it in hand."""
        lock = take_source(self._home, name, seconds)
        if lock is None:
            return
        try:
            if named_source(self._catalog, name).state in HALF:  # since this moment
                lock.let_go()
                return
            source = RunningSource(self._home, self._catalog, name, self._store, self._progress, lock)
        except BaseException:
            lock.let_go()
            raise
        self._sources = {**self._sources, name: source}

    def _recover(self) -> None:
        """Undo or finish what somebody left who died, unless somebody is at it; where that fails, later again."""
        if time.monotonic() < self._recover_at:
            return
        with making_if_free(self._home) as free:
            left = recover(self._home, self._catalog) if free else []
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if left else _FIRST_PAUSE
        self._recover_at = time.monotonic() + (self._pause if left else 0.0)
        if left:
            raise left[0]

    def _try(self, what: str, work: Callable[[], object], source: str | None = None) -> None:
        """Do something that will be tried again; what is in its way is told once.

        What nobody expected is tried again with growing pauses, and shown with the source. Without one, it ends all.
        """
        tries = self._tries.setdefault(what, Tries())
        if not tries.due():
            return
        try:
            work()
        except PenstockError as error:  # nothing else is amiss
            self._tell(what, error.message)
        except Exception as error:
            tries.failed()
            if lost(error) or (tries.spent and source is None):
                raise
            told = explained(what, error, "It is tried again.")
            self._tell(what, told.message)
            if tries.spent and source is not None:
                self._catalog.note_source_error(source, told.message, told.hint)
        else:
            if tries.spent and source is not None:
                self._catalog.forget_source_error(source)
            tries.worked()

    def _tell(self, what: str, why: str) -> None:
        if self._told.get(what) != why:
            self._progress(f"{what}: {why}")
        self._told[what] = why

    def capture_pids(self) -> dict[str, int]:
        """Return the process id of each source's capture."""
        return {name: source.capture_pid for name, source in self._sources.items()}

    def check(self) -> None:
        """Raise when every source has stopped for good, or Spark has: it is the same for all.

        As long as a source runs, the others' errors are in the status.
        """
        if self._failure is not None:
            raise self._failure
        if not is_alive():
            raise dead_spark()
        failures = [source.failure() for source in self._sources.values()]
        for failure in failures:
            if isinstance(failure, TransientError):
                raise failure
        if failures and all(failure is not None for failure in failures):
            raise next(failure for failure in failures if failure is not None)

    def copied_tables(self) -> tuple[int, int]:
        """Return how many tables have their first copy, or an error instead, and how many there are."""
        running = {record.name for record in runnable_sources(self._catalog)}
        tables = [table for table in self._catalog.tables() if table.source in running]
        return sum(not _is_awaited(table) for table in tables), len(tables)

    def wait_live(self, seconds: float | None = None) -> None:
        """Wait until no table waits for its first copy."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            copied, total = self.copied_tables()
            if copied == total:
                return
            self.check()
            if deadline is not None and time.monotonic() > deadline:
                message = f"the first copy was not whole after {seconds:.0f} s"
                raise TransientError(message, "See `penstock status`.")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Stop all sources, in parallel: apply first, then capture; both finish their current work."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.join()
        if self._sources:
            with ThreadPoolExecutor(len(self._sources), "penstock-stop") as pool:
                side_by_side(pool, RunningSource.stop, self._sources.values())
        for thread in self._leaving.values():
            thread.join()


def _is_awaited(table: TableRecord) -> bool:
    return table.state in _WAITING and not (table.state is TableState.PENDING and table.error)
