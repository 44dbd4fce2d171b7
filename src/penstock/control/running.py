"""A home at work: capture processes on one side of the log, copy and apply on the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.control.altering import alter, describe, give_up
from penstock.control.followed import Progress
from penstock.control.following import Follower
from penstock.control.named import named_source, runnable_sources
from penstock.control.retention import release_history
from penstock.control.supervisor import CaptureSupervisor
from penstock.control.wishes import open_wishes
from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["Running"]

_LOOK_SECONDS = 0.1
_LOOK_AFTER_SECONDS = 1.0
_WAITING = (TableState.ADDING, TableState.RETRYING, TableState.PENDING)


class Running:
    """What runs for all sources of a home, until `stop`."""

    def __init__(self, home: Path, catalog: Catalog, spark: SparkSession, progress: Progress) -> None:
        self._home = home
        self._spark = spark
        self._progress = progress
        self._catalog = catalog
        self._captures: dict[str, CaptureSupervisor] = {}
        self._followers: dict[str, Follower] = {}
        self._stopping = threading.Event()
        self._told: dict[str, str] = {}
        """What was last said to be in the way of what is tried again and again."""
        self._watch: threading.Thread | None = None
        names = [record.name for record in runnable_sources(catalog)]
        try:
            for name in names:
                self._captures[name] = CaptureSupervisor(home, name)
            for name in names:
                self._followers[name] = Follower(home, catalog, name, spark, progress)
        except BaseException:
            self.stop()
            raise
        self._watch = threading.Thread(target=self._look_after, name="penstock-renew", daemon=True)
        self._watch.start()

    def _look_after(self) -> None:
        """Look for tables that shall come, go or be captured anew, and for history that nobody needs any more."""
        while not self._stopping.wait(_LOOK_AFTER_SECONDS):
            for source in [record.name for record in self._catalog.sources() if record.name in self._followers]:
                wishes = open_wishes(self._catalog, source)
                if wishes:
                    self._try(f"{source}: its tables cannot be changed yet", partial(self._alter, source, wishes))
                self._try(f"{source}: history cannot be released", partial(release_history, self._catalog, source))

    def _try(self, what: str, work: Callable[[], object]) -> None:
        """Do something that will be tried again; what is in its way is told once."""
        try:
            work()
        except PenstockError as error:  # nothing else is amiss
            if self._told.get(what) != error.message:
                self._progress(f"{what}: {error.message}")
            self._told[what] = error.message

    def _alter(self, source: str, wishes: list[TableRecord]) -> None:
        """Carry wishes out: Postgres is asked first; then capture stands still for a moment, copy and apply go on."""
        follower = self._followers[source]
        found = describe(named_source(self._catalog, source), wishes)
        free = follower.let_go({wish.upstream for wish in wishes})
        ready = [wish for wish in wishes if wish.upstream in free]
        if not ready:
            return
        try:
            self._captures[source].stop()
            described = {name: table for name, table in found.items() if name in free}
            for told in alter(self._home, self._catalog, named_source(self._catalog, source), ready, described):
                self._progress(told)
        except DefiniteError as error:
            give_up(self._catalog, ready, error)
            raise
        finally:
            self._captures[source] = CaptureSupervisor(self._home, source)
            follower.take_back()

    def capture_pids(self) -> dict[str, int]:
        """Return the process id of each source's capture."""
        return {name: capture.pid for name, capture in self._captures.items()}

    def check(self) -> None:
        """Raise when every source has stopped for good; as long as one runs, the others' errors are in the status."""
        failures = [self._failure(name) for name in self._captures]
        if failures and all(failure is not None for failure in failures):
            raise next(failure for failure in failures if failure is not None)

    def _failure(self, name: str) -> BaseException | None:
        record = self._catalog.source(name)
        if self._captures[name].ended and record is not None and record.state is SourceState.FAILED:
            return DefiniteError(record.error or f"capture of {name} stopped", record.remedy or "")
        return self._followers[name].failure

    def copied_tables(self) -> tuple[int, int]:
        """Return how many tables have their first copy, and how many there are."""
        states = [table.state for table in self._catalog.tables()]
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
        for follower in self._followers.values():
            follower.stop()
        for capture in self._captures.values():
            capture.stop()
