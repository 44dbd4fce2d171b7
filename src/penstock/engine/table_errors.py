"""Errors of the tables of one source: reported, recorded in the catalog, and written to a file for bug reports.

A table with a transient error keeps its state, pending or live, with the error beside it: it stays readable, and
resumes by itself when the cause is gone. `error_policy` decides which errors these are. Errors of Spark and Postgres
that interrupt the work for a table are translated into Penstock's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.engine.error_policy import LONGEST_PAUSE, LONGEST_TRANSIENT_PAUSE, Recourse, Tries, explained, recourse
from penstock.engine.table import FollowedTable, Progress
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.layout import defects_path
from penstock.sources.postgres.query_errors import asking
from penstock.spark.boundary import brief, delivering
from penstock.spark.loss import dead_spark, lost
from penstock.tables.interface import Jobs
from penstock.unexpected import trace

__all__ = ["Troubles", "breaking_off", "spark_breaking_off"]

_MOST_BYTES = 1 << 20
"""Of the file; what is older is forgotten."""


class Troubles:
    """Notes the errors of tables, so that each goes its own way."""

    def __init__(self, home: Path, source: str, progress: Progress, stop: threading.Event, jobs: Jobs) -> None:
        self._home = home
        self._source = source
        self._progress = progress
        self._stop = stop
        self._jobs = jobs

    @contextmanager
    def of(self, table: FollowedTable, doing: str, *, settles: bool = True) -> Iterator[None]:
        """Do something for one table. Its errors end here; what ends the source, or all sources, is raised.

        Where it works, no trouble is left, if it `settles` that.
        """
        try:
            with self._jobs.tagged():
                yield
        except Exception as error:
            what = recourse(error, of_table=True)
            if what is Recourse.END_TABLE and isinstance(error, PenstockError):
                table.fail(error)
                self._progress(f"{self._source}: {error.message}")
                return
            if lost(error):
                raise dead_spark() from error
            if what is Recourse.END_SOURCE:
                raise
            if not self._stop.is_set():
                self._note(table, f"{doing} {table.record.upstream}", error, what)
        else:
            if settles:
                table.works()

    def _note(self, table: FollowedTable, doing: str, error: Exception, what: Recourse) -> None:
        self.tell(doing, error, table.tries, what)
        if table.tries.spent or isinstance(error, DefiniteError):
            afresh = f" To copy it afresh: ALTER SOURCES {self._source} RETRY TABLE {table.record.upstream};"
            hint = f"It is tried again by itself.{'' if table.at is None else afresh}"
            table.trouble(explained(doing, error, hint))

    def tell(self, doing: str, error: BaseException, tries: Tries, what: Recourse) -> None:
        """Count a failure, say so, and write down where it came from."""
        tries.failed(longest=LONGEST_TRANSIENT_PAUSE if what is Recourse.RETRY else LONGEST_PAUSE)
        if isinstance(error, PenstockError):
            self._progress(f"{self._source}: {error.message}; trying again")
        else:
            self._progress(f"{self._source}: {explained(doing, error).message}; trying again ({brief(error)})")
        if not isinstance(error, DefiniteError) and what is Recourse.LIMITED:
            self._write_down(doing, error)

    def _write_down(self, doing: str, error: BaseException) -> None:
        path = defects_path(self._home, self._source)
        with suppress(OSError):  # a full disk is told elsewhere
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = path.read_text(encoding="utf-8")[-_MOST_BYTES // 2 :] if _is_large(path) else None
            with path.open("a" if kept is None else "w", encoding="utf-8") as file:
                file.write(f"{kept or ''}{datetime.now(UTC).isoformat(timespec='seconds')} {doing}\n{trace(error)}\n")


def _is_large(path: Path) -> bool:
    return path.exists() and path.stat().st_size > _MOST_BYTES


@contextmanager
def breaking_off(what: str, conninfo: str) -> Iterator[None]:
    """Raise our own errors from Spark's workers as they were, and those of Postgres in our words; see below."""
    with asking(conninfo), spark_breaking_off(what):
        yield


@contextmanager
def spark_breaking_off(what: str) -> Iterator[None]:
    """Raise our own errors from Spark's workers as they were; those of Spark itself as "`what` broke off"."""
    try:
        with delivering():
            yield
    except (PySparkException, Py4JError) as error:
        message = f"{what} broke off: {brief(error)}"
        raise TransientError(message) from error
