"""Runs a home and keeps Spark running: what ``penstock run`` does.

::

    starting ──▶ running ──── Spark is lost ───▶ restarting Spark ──┐
                    ▲                                               │  with growing pauses while it does not last
                    └───────────── Spark has started ◀──────────────┘
    stop ──▶ stopping: what is in flight finishes

Capture starts first and does not depend on Spark. When Spark's JVM is lost (killed, out of memory, its context
stopped), the runner stops what needs Spark and keeps the rest: capture continues, the log grows, and sinks that need no
Spark deliver. Then Spark is started again, and each table resumes at its position, that of its last Delta commit. So a
JVM that is killed at any moment loses and repeats nothing.

Pauses double from one second up to 30 while Spark ends without having merged anything or run for a minute. A loss does
not end the process; repeated losses are an alarm in the status (`run_state`). Before Spark has run for the first time,
a permanent error such as a missing Java, or three failed starts, end the process: `check` raises the error.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

from pyspark.sql import SparkSession

from penstock.catalog.store import Catalog
from penstock.engine.error_policy import explained
from penstock.engine.run_state import RunState, write_run_state
from penstock.engine.runner import HomeRunner
from penstock.engine.table import Progress
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.event_log import Event
from penstock.spark.jvm_loss import is_spark_lost, spark_start_error
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import table_store

__all__ = ["RestartableSpark", "Supervisor", "SupervisorState"]

SupervisorState = Literal["starting", "running", "restarting Spark", "stopping"]

_LOOK_SECONDS = 0.25
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_FIRST_STARTS = 3
"""The number of failed starts that end the process, if Spark has never run."""
_WORKING_SECONDS = 60.0
"""Spark that ran for this long counts as working."""


class RestartableSpark(Protocol):
    """A Spark that can be lost and started again; `penstock.spark.local_spark.LocalSpark` is the real one."""

    def start(self) -> SparkSession | TableStore:
        """Start Spark, and return its session, or a store of tables."""

    def is_alive(self) -> bool:
        """Return whether Spark still runs."""

    def discard(self) -> None:
        """Clean up after a Spark that was lost, so that `start` can be called again."""

    def stop(self) -> None:
        """Stop Spark, if it runs."""


class Supervisor:
    """Runs all sources of a home until `stop`, and restarts Spark when it is lost."""

    def __init__(self, home: Path, catalog: Catalog, spark: RestartableSpark, progress: Progress) -> None:
        """Start capture, and Spark in a thread."""
        self._home, self._spark, self._progress = home, spark, progress
        now = _now()
        self._noted = RunState(os.getpid(), "starting", now, now)
        self._state: SupervisorState = "starting"
        self._store: TableStore | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._has_run = False
        self._losses = 0
        """The number of consecutive losses, or failed starts, without progress."""
        self._note()
        self._runner = HomeRunner(home, catalog, None, progress)
        self._thread = threading.Thread(target=self._supervise, name="penstock-supervise-spark", daemon=True)
        self._thread.start()

    @property
    def state(self) -> SupervisorState:
        """What the process is doing."""
        return self._state

    @property
    def restarts(self) -> int:
        """The number of times that Spark was lost, or could not be started, and was started again."""
        return self._noted.restarts

    def spark(self) -> SparkSession:
        """Return the current session; raise `TransientError` while Spark is started or restarted.

        Do not keep the session: after a restart it is another one.
        """
        store = self._store
        if store is None:
            message = "Spark is stopping" if self._state == "stopping" else "Spark is being started"
            raise TransientError(message, "Try again in a few seconds.")
        return store.spark

    def capture_pids(self) -> dict[str, int]:
        """Return the pid of each source's capture process."""
        return self._runner.capture_pids()

    def copied_tables(self) -> tuple[int, int]:
        """Return the number of tables whose initial snapshot is complete or failed, and the number of all tables."""
        return self._runner.copied_tables()

    def check(self) -> None:
        """Raise an error if every source has stopped permanently, or Spark can never be started."""
        if self._failure is not None:
            raise self._failure
        self._runner.check_sources()

    def stop(self) -> None:
        """Finish what is in flight, then stop everything; further calls have no effect."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._enter("stopping")
        self._thread.join()
        try:
            self._runner.stop()
        finally:
            self._store = None
            self._spark.stop()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            while not self._stopping.is_set():
                failure = self._start()
                if failure is None:
                    self._run_until_lost()
                if not self._stopping.is_set():
                    self._lose(failure)
        except BaseException as error:
            self._failure = error

    def _start(self) -> PenstockError | None:
        """Start Spark, and the work that needs it; return the error if that failed and is retried."""
        self._progress(Event("starting Spark", "spark_starting"))
        try:
            store = table_store(self._spark.start())
            if self._stopping.is_set():
                return None
            self._runner.resume(store)
        except Exception as error:
            failure = spark_start_error() if is_spark_lost(error) else explained("starting Spark", error)
            if not self._has_run and self._is_final(error):
                raise failure from error
            return failure
        self._store, self._has_run = store, True
        again = "; tables resume at their positions" if self.restarts else ""
        self._progress(Event(f"Spark is running{again}", "spark_running", restarts=self.restarts))
        self._enter("running", error=None)
        return None

    def _is_final(self, error: Exception) -> bool:
        """Return whether an error of the first start is not retried."""
        return self._losses + 1 >= _FIRST_STARTS or isinstance(error, UsageError | DefiniteError)

    def _run_until_lost(self) -> None:
        started, alive = time.monotonic(), True
        while alive and not self._stopping.wait(_LOOK_SECONDS):
            alive = self._spark.is_alive() and not self._runner.is_spark_lost
        if self._runner.merges or time.monotonic() > started + _WORKING_SECONDS:
            self._losses = 0

    def _lose(self, failure: PenstockError | None) -> None:
        """Stop what needs Spark, and pause before the next start; `failure` is the error of a failed start."""
        self._store = None
        self._losses += 1
        pause = min(_FIRST_PAUSE * 2.0 ** min(self._losses - 1, 10), _LONGEST_PAUSE)
        restarts, lost = self._noted.restarts + 1, self._noted.losing(_now())
        self._noted = replace(self._noted, restarts=restarts, lost=lost)
        self._enter("restarting Spark", error=failure.message if failure else None)
        what = f"Spark could not be started: {failure.message}" if failure else "Spark's JVM has ended"
        message = f"{what}; capture continues, and Spark is restarted in {pause:.0f} s"
        self._progress(Event(message, "spark_lost", "warning", restarts=restarts))
        self._runner.suspend()
        self._spark.discard()
        self._stopping.wait(pause)

    def _enter(self, state: SupervisorState, error: str | None = None) -> None:
        if self._state != "stopping":
            self._state = state
        self._noted = replace(self._noted, state=self._state, since=_now(), error=error)
        self._note()

    def _note(self) -> None:
        with suppress(OSError):  # a full disk: the status in other processes is older, and this one continues
            write_run_state(self._home, self._noted)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
