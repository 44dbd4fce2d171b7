"""The first copy of tables, all at one exported snapshot, by Spark tasks side by side.

::

    pending tables ─▶ one exported snapshot at S ─▶ copied side by side ─▶ live at S
                          │ transactions that it waits for, and          │ how far each table is
                          └──────────────▶ the catalog, for status ◀─────┘

The server exports a snapshot when all transactions have ended that were running. Which one is in the way is told; after
the source's `snapshot_wait` the attempt is given up, and made again later.

If the exporter dies, the tables whose copy is whole are kept, and the others are copied at another snapshot.

A table that was truncated after S looks empty to the snapshot, so what was read of it is worth nothing. What counts is
what came after, and that is in the log: such a table is made empty and becomes live where the log has passed the
TRUNCATE. One that was rewritten otherwise is copied again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.progress import CopyProgress
from penstock.changelog.interface import ChangeLog, LoggedTable
from penstock.control.beginning import wait_until_captured
from penstock.control.followed import FollowedTable, Progress
from penstock.control.key_ranges import frame
from penstock.control.progress import CopyWatch
from penstock.control.reaching import reached
from penstock.control.recorded import captured_of
from penstock.control.shown import Shown
from penstock.control.side_by_side import side_by_side
from penstock.durations import parse_duration
from penstock.errors import TableError, TransientError
from penstock.model import TableName
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.connection import connect, connection_error
from penstock.sources.postgres.copy import copy_ranges, table_bytes
from penstock.sources.postgres.slot import ExportedSnapshot, export_snapshot
from penstock.sources.postgres.spec import PostgresSource
from penstock.sources.postgres.wal import written
from penstock.spark.boundary import brief, delivering
from penstock.tables.initial_copy import files_of_ranges, rows_of_ranges
from penstock.tables.parquet_files import adopt_files
from penstock.tables.tail import read_tail

__all__ = ["ParallelCopy", "logged_table"]

_SIDE_BY_SIDE = 2
_NOT_WHOLE = "parallel"
"""Marks a base table that shows no position before its next commit."""


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
                self._snapshot(tables) as snapshot,
                ThreadPoolExecutor(_SIDE_BY_SIDE, f"penstock-copy-{self._source}") as pool,
            ):
                if reached(self._log, snapshot.lsn, self._stop) is None:  # a promoted standby may not have that much
                    return
                shown = Shown.by(snapshot, self._spec)
                side_by_side(pool, lambda table: self._copy(table, shown), tables)
        except psycopg.Error as error:
            raise connection_error(error, self._instance.connection) from error
        except TransientError:
            if not self._stop.is_set():
                raise
            return
        finally:
            for table in tables:
                table.catalog.forget_progress(self._source, table.record.local)
        self._progress(f"{self._source}: {len(tables)} tables are copied")

    @contextmanager
    def _snapshot(self, tables: Sequence[FollowedTable]) -> Iterator[ExportedSnapshot]:
        def tell(what: str) -> None:
            self._progress(f"{self._source}: {what}")
            for table in tables:
                table.catalog.note_progress(self._source, table.record.local, CopyProgress(waiting=what))

        wait = parse_duration(self._instance.snapshot_wait)
        with export_snapshot(self._instance.connection, wait, tell, self._stop) as snapshot:
            for table in tables:
                table.catalog.forget_progress(self._source, table.record.local)
            yield snapshot

    def _copy(self, table: FollowedTable, shown: Shown) -> None:
        if self._stop.is_set():
            return
        captured = captured_of(table.captured).as_found(shown.tables.get(table.captured.name))
        if isinstance(captured, str):
            why = f"{table.record.upstream} cannot be copied: {captured}"
            remedy = f"Capture it anew: ALTER SOURCES {self._source} RETRY TABLE {table.record.upstream};"
            self._fail(table, TableError(str(table.record.upstream), shown.snapshot.lsn, why, remedy))
            return
        self._progress(f"{self._source}: copying {table.record.upstream}")
        try:
            with table.writing, delivering():
                if not table.gone:
                    self._create(table, captured, shown)
        except TableError as error:
            self._fail(table, error)
        except (PySparkException, Py4JError) as error:
            message = f"the copy of {table.record.upstream} broke off: {brief(error)}"
            raise TransientError(message) from error

    def _create(self, table: FollowedTable, captured: CapturedTable, shown: Shown) -> None:
        table.base.schema = captured.table_schema()
        conninfo, folder = self._instance.connection, Path(table.base.path)
        tasks = max(1, self._spark.sparkContext.defaultParallelism)
        with connect(conninfo) as connection:
            ranges = copy_ranges(connection, captured.name, tasks)
            size = table_bytes(connection, captured.name)
        described: dict[str, Any] = {
            "position": shown.snapshot.lsn,
            "properties": {"penstock.source": self._source},
            "comment": captured.comment or "",
            "comments": captured.comments(),
            "generation": captured.generation,
        }
        note = partial(table.catalog.note_progress, self._source, table.record.local)
        with CopyWatch(conninfo, captured, size, folder, note) as watch:
            copying = (self._spark, conninfo, shown.snapshot, captured, ranges)
            if table.base.takes_files():
                files = files_of_ranges(*copying, watch.notes, watch.notes)
                whole = shown.still_shows(captured.name)
                if whole:
                    adopt_files(files, watch.notes, folder)
                    table.base.create_of_files(files, **described)
            else:
                table.base.create(rows_of_ranges(*copying, watch.notes), **described, window=_NOT_WHOLE)
                whole = shown.still_shows(captured.name)
                if whole:
                    table.base.append(self._no_rows(table), shown.snapshot.lsn)
        if not whole:
            self._begin_after_truncate(table, described)
        table.look_up()

    def _begin_after_truncate(self, table: FollowedTable, described: dict[str, Any]) -> None:
        """Make a table that was truncated of the log alone, as far as that is by now."""
        with connect(self._instance.connection) as connection:
            upto = reached(self._log, written(connection), self._stop)
        if upto is None:
            return
        base, after = table.base, described["position"]
        schema = logged_table(self._log, table.record.upstream).schema_within(after, upto) or base.schema
        tail = read_tail(self._spark, self._log, schema, after, upto)
        if tail is None or tail.contents.truncated is None:
            message = f"{table.record.upstream} was rewritten while it was copied"
            raise TransientError(message, "It will be copied again.")
        base.create(self._no_rows(table), **described, window=_NOT_WHOLE)
        if len(schema.columns) > len(base.schema.columns):
            base.evolve(schema)
        base.merge(tail.net, upto, tail.contents)

    def _no_rows(self, table: FollowedTable) -> DataFrame:
        return frame(self._spark, table.base.schema.columns.empty_table())

    def _fail(self, table: FollowedTable, error: TableError) -> None:
        table.fail(error)
        self._progress(f"{self._source}: {error.message}")


def logged_table(log: ChangeLog, name: TableName) -> LoggedTable:
    """Return what the log says of a table that is being copied; its error ends that."""
    with closing(log.reader()) as reader:
        logged = reader.tables()[name]
    if logged.error is not None:
        raise logged.error
    return logged
