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
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord
from penstock.control.followed import Progress
from penstock.control.lifecycle import HALF, recover
from penstock.control.lock import making_if_free, take_source
from penstock.control.named import named_source, runnable_sources
from penstock.control.retention import release_history
from penstock.control.running_source import RunningSource
from penstock.control.wishes import open_wishes
from penstock.errors import PenstockError, TransientError

__all__ = ["Running"]

_LOOK_SECONDS = 0.1
_LOOK_AFTER_SECONDS = 1.0
_OUTLIVED_SECONDS = 20.0
"""A capture whose parent was killed has ended by then."""
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_WAITING = (TableState.ADDING, TableState.RETRYING, TableState.PENDING)


class Running:
    """What runs for all sources of a home, until `stop`."""

    def __init__(self, home: Path, catalog: Catalog, spark: SparkSession, progress: Progress) -> None:
        self._home = home
        self._spark = spark
        self._progress = progress
        self._catalog = catalog
        self._sources: dict[str, RunningSource] = {}
        self._leaving: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self._told: dict[str, str] = {}
        """What was last said to be in the way of what is tried again and again."""
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
            self._try(f"{name} cannot run yet", partial(self._take_up, name))
        if any(record.state in HALF and record.name not in self._leaving for record in records):
            self._try("what was left half done has to wait", self._recover)
        for name, source in self._sources.items():
            self._try(f"{name}: its options cannot be changed yet", source.set_options)
            wishes = open_wishes(self._catalog, name)
            if wishes:
                self._try(f"{name}: its tables cannot be changed yet", partial(source.alter, wishes))
            self._try(f"{name}: history cannot be released", partial(release_history, self._catalog, name))

    def _leave(self, wanted: set[str]) -> None:
        """Let go of sources that shall be dropped, or are gone; a copy in hand takes its time, nobody waits for it."""
        self._leaving = {name: thread for name, thread in self._leaving.items() if thread.is_alive()}
        for name in self._sources.keys() - wanted:
            source = self._sources[name]
            self._sources = {other: kept for other, kept in self._sources.items() if other != name}
            self._leaving[name] = threading.Thread(target=source.abandon, name=f"penstock-leave-{name}", daemon=True)
            self._leaving[name].start()
            self._progress(f"{name}: let go, it is dropped")

    def _take_up(self, name: str, seconds: float = 0.0) -> None:
        """Run a source, unless somebody else has it in hand."""
        lock = take_source(self._home, name, seconds)
        if lock is None:
            return
        try:
            if named_source(self._catalog, name).state in HALF:  # since this moment
                lock.let_go()
                return
            source = RunningSource(self._home, self._catalog, name, self._spark, self._progress, lock)
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

    def _try(self, what: str, work: Callable[[], object]) -> None:
        """Do something that will be tried again; what is in its way is told once."""
        try:
            work()
        except PenstockError as error:  # nothing else is amiss
            if self._told.get(what) != error.message:
                self._progress(f"{what}: {error.message}")
            self._told[what] = error.message

    def capture_pids(self) -> dict[str, int]:
        """Return the process id of each source's capture."""
        return {name: source.capture_pid for name, source in self._sources.items()}

    def check(self) -> None:
        """Raise when every source has stopped for good; as long as one runs, the others' errors are in the status."""
        if self._failure is not None:
            raise self._failure
        failures = [source.failure() for source in self._sources.values()]
        if failures and all(failure is not None for failure in failures):
            raise next(failure for failure in failures if failure is not None)

    def copied_tables(self) -> tuple[int, int]:
        """Return how many tables have their first copy, and how many there are."""
        running = {record.name for record in runnable_sources(self._catalog)}
        states = [table.state for table in self._catalog.tables() if table.source in running]
        return sum(state not in _WAITING for state in states), len(states)

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
        """Stop applying, then capturing; both finish what they have in hand."""
        self._stopping.set()
        if self._watch is not None:
            self._watch.join()
        for source in self._sources.values():
            source.stop()
        for thread in self._leaving.values():
            thread.join()
