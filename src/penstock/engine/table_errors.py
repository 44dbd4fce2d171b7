"""Errors of the tables of one source: reported, recorded in the catalog, and written to a file for bug reports.

A table with a transient error keeps its state, pending or live, and the catalog records the error: the table stays
readable, and resumes automatically when the cause is fixed. `error_policy` decides which errors these are. Errors of
Spark and of the upstream database that interrupt the work for a table are translated into Penstock's own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.engine.error_policy import (
    LONGEST_PAUSE,
    LONGEST_TRANSIENT_PAUSE,
    ErrorAction,
    Tries,
    error_action,
    explained,
)
from penstock.engine.instruments import count_error
from penstock.engine.table import Progress, RunningTable
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.event_log import Event
from penstock.layout import defects_path
from penstock.private_file import create_folder, private
from penstock.sources.database import Database
from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error
from penstock.spark.worker_errors import brief, unpack_errors
from penstock.tables.interface import Jobs
from penstock.unexpected_errors import trace

__all__ = ["TableErrors", "translated_errors", "translated_spark_errors"]

_MOST_BYTES = 1 << 20
"""The maximum size of the file; older entries are removed."""


class TableErrors:
    """Records the errors of the tables of one source, so that an error of one table does not affect the others."""

    def __init__(self, home: Path, source: str, progress: Progress, stop: threading.Event, jobs: Jobs) -> None:
        self._home = home
        self._source = source
        self._progress = progress
        self._stop = stop
        self._jobs = jobs

    @contextmanager
    def of(self, table: RunningTable, doing: str, *, clears: bool = True) -> Iterator[None]:
        """Handle the errors of an operation on one table; raise only errors that stop the source, or all sources.

        After a success, clear the table's transient error, unless `clears` is false.
        """
        try:
            with self._jobs.tagged():
                yield
        except Exception as error:
            action = error_action(error, of_table=True)
            if action is ErrorAction.END_TABLE and isinstance(error, PenstockError):
                count_error(error, self._source)
                table.fail(error)
                fields = {"source": self._source, "table": table.record.upstream}
                self._progress(Event(f"{self._source}: {error.message}", "table_failed", "error", **fields))
                return
            if is_spark_lost(error):
                raise spark_lost_error() from error
            if action is ErrorAction.END_SOURCE:
                raise
            if not self._stop.is_set():
                self._note(table, f"{doing} {table.record.upstream}", error, action)
        else:
            if clears:
                table.clear_error()

    def _note(self, table: RunningTable, doing: str, error: Exception, action: ErrorAction) -> None:
        self.report(doing, error, table.tries, action)
        if table.tries.spent or isinstance(error, DefiniteError):
            resnapshot = f" To resnapshot it: ALTER SOURCES {self._source} RETRY TABLE {table.record.upstream};"
            hint = f"Penstock retries automatically.{'' if table.at is None else resnapshot}"
            table.note_error(explained(doing, error, hint))

    def report(self, doing: str, error: BaseException, tries: Tries, action: ErrorAction) -> None:
        """Count and report a failure, and write the stack of an unexpected one to the defects file."""
        count_error(error, self._source)
        tries.failed(longest=LONGEST_TRANSIENT_PAUSE if action is ErrorAction.RETRY else LONGEST_PAUSE)
        message = error.message if isinstance(error, PenstockError) else explained(doing, error).message
        self._progress(Event(f"{self._source}: {message}; retrying", "retrying", "warning", source=self._source))
        if not isinstance(error, DefiniteError) and action is ErrorAction.LIMITED:
            self._write_defect(doing, error)

    def _write_defect(self, doing: str, error: BaseException) -> None:
        path = defects_path(self._home, self._source)
        with suppress(OSError):  # a full disk is reported elsewhere
            create_folder(path.parent)
            kept = path.read_text(encoding="utf-8")[-_MOST_BYTES // 2 :] if _is_large(path) else None
            with open(path, "a" if kept is None else "w", encoding="utf-8", opener=private) as file:
                file.write(f"{kept or ''}{datetime.now(UTC).isoformat(timespec='seconds')} {doing}\n{trace(error)}\n")


def _is_large(path: Path) -> bool:
    return path.exists() and path.stat().st_size > _MOST_BYTES


@contextmanager
def translated_errors(operation: str, database: Database) -> Iterator[None]:
    """Translate errors of the database, and those of Spark like `translated_spark_errors`, into Penstock's own."""
    with database.translated_errors(), translated_spark_errors(operation):
        yield


@contextmanager
def translated_spark_errors(operation: str) -> Iterator[None]:
    """Raise Penstock's errors from Spark workers unchanged, and errors of Spark as "`operation` was interrupted"."""
    try:
        with unpack_errors():
            yield
    except (PySparkException, Py4JError) as error:
        message = f"{operation} was interrupted: {brief(error)}"
        raise TransientError(message) from error
