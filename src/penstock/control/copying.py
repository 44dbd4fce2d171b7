"""The first copy of tables, all at one exported snapshot, by Spark tasks side by side.

::

    pending tables ─▶ one exported snapshot at S ─▶ copied side by side ─▶ live at S

If the exporter dies, the tables whose copy is whole are kept, and the others are copied at another snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.changelog.interface import ChangeLog, LoggedTable
from penstock.control.followed import FollowedTable, Progress
from penstock.control.side_by_side import side_by_side
from penstock.errors import TableError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connection_error
from penstock.sources.postgres.slot import ExportedSnapshot, export_snapshot
from penstock.sources.postgres.spec import PostgresInstanceConfig, PostgresSource
from penstock.spark.boundary import brief, delivering
from penstock.tables.initial_copy import upstream_rows

__all__ = ["ParallelCopy", "wait_until_captured"]

_SIDE_BY_SIDE = 2
_LOOK_SECONDS = 0.05


class ParallelCopy:
    """Copies tables of one source that have no whole copy yet."""

    def __init__(
        self,
        spark: SparkSession,
        spec: PostgresSource,
        instance: PostgresInstanceConfig,
        log: ChangeLog,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._spec = spec
        self._instance = instance
        self._source = instance.source
        self._log = log
        self._progress = progress
        self._stop = stop

    def run(self, tables: Sequence[FollowedTable]) -> None:
        """Copy these tables, all at one position."""
        if not wait_until_captured(self._log, tables, self._stop):
            return
        self._progress(f"{self._source}: waiting for a snapshot of {len(tables)} tables")
        try:
            with (
                export_snapshot(self._instance.connection) as snapshot,
                ThreadPoolExecutor(_SIDE_BY_SIDE, f"penstock-copy-{self._source}") as pool,
            ):
                if not self._reached(snapshot.lsn):
                    return
                found = self._spec.tables_at(snapshot.name)
                side_by_side(pool, lambda table: self._copy(table, snapshot, found), tables)
        except psycopg.Error as error:
            raise connection_error(error, self._instance.connection) from error
        self._progress(f"{self._source}: {len(tables)} tables are copied")

    def _reached(self, position: Lsn) -> bool:
        """Wait until the log is at the snapshot: a server that is promoted meanwhile may not have that much of it."""
        with closing(self._log.reader()) as log:
            while not self._stop.is_set():
                if log.wait(Lsn(position - 1), _LOOK_SECONDS).durable >= position:
                    return True
        return False

    def _copy(self, table: FollowedTable, snapshot: ExportedSnapshot, found: Mapping[TableName, CapturedTable]) -> None:
        if self._stop.is_set():
            return
        captured = table.captured.as_found(found.get(table.captured.name))
        if isinstance(captured, str):
            why = f"{table.record.upstream} cannot be copied: {captured}"
            remedy = f"Capture it anew: ALTER SOURCES {self._source} RETRY TABLE {table.record.upstream};"
            self._fail(table, TableError(str(table.record.upstream), snapshot.lsn, why, remedy))
            return
        self._progress(f"{self._source}: copying {table.record.upstream}")
        try:
            with table.writing, delivering():
                if not table.gone:
                    self._create(table, captured, snapshot)
        except TableError as error:
            self._fail(table, error)
        except (PySparkException, Py4JError) as error:
            message = f"the copy of {table.record.upstream} broke off: {brief(error)}"
            raise TransientError(message) from error

    def _create(self, table: FollowedTable, captured: CapturedTable, snapshot: ExportedSnapshot) -> None:
        table.base.schema = captured.table_schema()
        tasks = max(1, self._spark.sparkContext.defaultParallelism)
        rows = upstream_rows(self._spark, self._instance.connection, snapshot, captured, tasks)
        table.base.create(
            rows,
            snapshot.lsn,
            {"penstock.source": self._source},
            captured.comment or "",
            captured.comments(),
            captured.generation,
        )
        table.look_up()

    def _fail(self, table: FollowedTable, error: TableError) -> None:
        table.fail(error)
        self._progress(f"{self._source}: {error.message}")


def wait_until_captured(log: ChangeLog, tables: Sequence[FollowedTable], stop: threading.Event) -> bool:
    """Wait until capture has begun these tables: a copy made before could miss what comes between."""
    with closing(log.reader()) as reader:
        while not stop.is_set():
            logged = reader.tables()
            if all(table.gone or _has_begun(table.captured, logged.get(table.captured.name)) for table in tables):
                return True
            stop.wait(_LOOK_SECONDS)
    return False


def _has_begun(table: CapturedTable, logged: LoggedTable | None) -> bool:
    return logged is not None and logged.generation >= table.generation
