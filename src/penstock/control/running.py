"""A home at work: capture processes on one side of the log, copy and apply on the other."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.catalog.states import SourceState, TableState
from penstock.catalog.store import Catalog, SourceRecord
from penstock.control.followed import Progress
from penstock.control.following import Follower
from penstock.control.retention import release_history
from penstock.control.retry import renew, to_retry
from penstock.control.supervisor import CaptureSupervisor
from penstock.errors import DefiniteError, PenstockError, TransientError

__all__ = ["Running"]

_LOOK_SECONDS = 0.1
_LOOK_AFTER_SECONDS = 1.0


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
        """Of each source, what was last said to be in the way of releasing history."""
        self._watch: threading.Thread | None = None
        names = [r.name for r in catalog.sources() if r.state in (SourceState.READY, SourceState.FAILED)]
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
        """Look for tables that shall be captured anew, and for history that nobody needs any more."""
        while not self._stopping.wait(_LOOK_AFTER_SECONDS):
            for record in self._catalog.sources():
                if record.name in self._followers and to_retry(self._catalog, record.name):
                    self._renew(record)
                if record.name in self._followers:
                    self._release(record.name)

    def _release(self, source: str) -> None:
        try:
            release_history(self._catalog, source)
        except PenstockError as error:  # the log grows meanwhile, and nothing else is amiss
            if self._told.get(source) != error.message:
                self._progress(f"{source}: history cannot be released: {error.message}")
            self._told[source] = error.message

    def _renew(self, record: SourceRecord) -> None:
        """Describe tables of a source again while its capture is stopped; copy and apply go on meanwhile."""
        self._captures[record.name].stop()
        try:
            for told in renew(self._catalog, self._catalog.source(record.name) or record):
                self._progress(told)
        except PenstockError as error:
            self._progress(f"{record.name}: {error.message}; trying again")
        finally:
            self._captures[record.name] = CaptureSupervisor(self._home, record.name)
            self._followers[record.name].renew()

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
        return sum(state not in (TableState.PENDING, TableState.RETRYING) for state in states), len(states)

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
