"""Copy, then apply: what keeps the base tables of one source close behind its log.

::

    pending tables ─▶ one exported snapshot at S ─▶ copied side by side ─▶ live at S
    live tables ─▶ (position, durable] of the log ─▶ folded, merged, position in the same commit ─▶ again

The position of a table is in its own Delta commits. The catalog only notes which version shows which position, for
live views to choose from; those notes are facts that do not change, and are made good after a crash.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.catalog.states import TableState
from penstock.catalog.store import BaseVersion, Catalog, TableRecord
from penstock.changelog.interface import LoggedTable
from penstock.control.lifecycle import instance_of, spec_of
from penstock.errors import DefiniteError, PenstockError, TableError, TransientError
from penstock.layout import base_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connection_error
from penstock.sources.postgres.slot import ExportedSnapshot, export_snapshot
from penstock.spark.boundary import delivering
from penstock.spark.session import is_alive
from penstock.tables.base import BaseTable, State
from penstock.tables.initial_copy import upstream_rows
from penstock.tables.tail import read_tail

__all__ = ["Follower", "Progress"]

_SIDE_BY_SIDE = 2
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0
_REST = 3.0
"""Pauses are this many times as long as a round of merges: live views need no hurry, queries need the cores."""
_RETRY_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_ERRORS_SECONDS = 2.0
"""Tables can end without a transaction."""

Progress = Callable[[str], None]
"""Told what is being done, for people to read."""


@dataclass
class _Followed:
    """A table at work; `at` is what its Delta log said last."""

    record: TableRecord
    captured: CapturedTable
    base: BaseTable
    at: State | None = None


class Follower:
    """Copies and applies the tables of one source, in a thread of its own."""

    def __init__(self, home: Path, catalog: Catalog, source: str, spark: SparkSession, progress: Progress) -> None:
        record = catalog.source(source)
        if record is None:
            message = f"there is no source {source}"
            raise DefiniteError(message, "See `penstock status`.")
        self._catalog = catalog
        self._source = source
        self._spark = spark
        self._progress = progress
        self._spec = spec_of(record)
        self._instance = instance_of(record)
        self._log = catalog.log(source)
        self._tables = self._followed(home)
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, f"penstock-{source}")
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-follow-{source}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finish the merges in hand, and stop."""
        self._stop.set()
        self._thread.join()
        self._pool.shutdown()

    def _followed(self, home: Path) -> list[_Followed]:
        records = {record.upstream: record for record in self._catalog.tables(self._source)}
        found = []
        for captured in self._instance.tables:
            record = records[captured.name]
            path = base_path(home, self._source, record.local).absolute()
            found.append(_Followed(record, captured, BaseTable(self._spark, str(path), captured.table_schema())))
        return found

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._side_by_side(self._look_up, self._tables)
                self._copy_pending()
                self._apply_until_stopped()
            except BaseException as error:
                if is_alive() and isinstance(error, TransientError):
                    self._progress(f"{self._source}: {error.message}; trying again")
                    self._stop.wait(_RETRY_SECONDS)
                    continue
                self.failure = error if is_alive() else _dead_spark()
                return

    def _side_by_side(self, work: Callable[[_Followed], None], tables: list[_Followed]) -> None:
        """Do the work for every table, also when one of them fails; then raise what failed first."""
        waiting = [self._pool.submit(work, table) for table in tables]
        failures = [error for error in (future.exception() for future in waiting) if error is not None]
        if failures:
            raise failures[0]

    # -- the first copy ---------------------------------------------------------------------------------------------

    def _copy_pending(self) -> None:
        """Copy the tables that have no whole copy yet, all at one position."""
        pending = [table for table in self._tables if self._state(table) is TableState.PENDING]
        if not pending or not self._captured(pending):
            return
        self._progress(f"{self._source}: waiting for a snapshot of {len(pending)} tables")
        try:
            with export_snapshot(self._instance.connection) as snapshot:
                if not self._reached(snapshot.lsn):
                    return
                found = self._spec.tables_at(snapshot.name)
                self._side_by_side(lambda table: self._copy(table, snapshot, found), pending)
        except psycopg.Error as error:
            raise connection_error(error, self._instance.connection) from error
        self._progress(f"{self._source}: all tables are live")

    def _captured(self, pending: list[_Followed]) -> bool:
        """Wait until capture has begun these tables: a copy made before could miss what comes between."""
        with closing(self._log.reader()) as log:
            while not self._stop.is_set():
                logged = log.tables()
                if all(_has_begun(table.captured, logged.get(table.captured.name)) for table in pending):
                    return True
                self._stop.wait(_LOOK_SECONDS)
        return False

    def _reached(self, position: Lsn) -> bool:
        """Wait until the log is at the snapshot: a server that is promoted meanwhile may not have that much of it."""
        with closing(self._log.reader()) as log:
            while not self._stop.is_set():
                if log.wait(Lsn(position - 1), _LOOK_SECONDS).durable >= position:
                    return True
        return False

    def _copy(self, table: _Followed, snapshot: ExportedSnapshot, found: Mapping[TableName, CapturedTable]) -> None:
        if self._stop.is_set():
            return
        captured = table.captured.as_found(found.get(table.captured.name))
        if isinstance(captured, str):
            why = f"{table.record.upstream} cannot be copied: {captured}"
            remedy = f"Capture it anew: ALTER SOURCES {self._source} RETRY TABLE {table.record.upstream};"
            self._fail(table, TableError(str(table.record.upstream), snapshot.lsn, why, remedy))
            return
        table.base.schema = captured.table_schema()
        self._progress(f"{self._source}: copying {table.record.upstream}")
        tasks = max(1, self._spark.sparkContext.defaultParallelism)
        columns = table.base.schema.columns
        comments = {f.name: f.metadata[b"comment"].decode() for f in columns if f.metadata and b"comment" in f.metadata}
        try:
            with delivering():
                rows = upstream_rows(self._spark, self._instance.connection, snapshot, captured, tasks)
                table.base.create(
                    rows,
                    snapshot.lsn,
                    {"penstock.source": self._source},
                    captured.comment or "",
                    comments,
                    captured.generation,
                )
        except TableError as error:
            self._fail(table, error)
            return
        except (PySparkException, Py4JError) as error:
            message = f"the copy of {table.record.upstream} broke off: {_brief(error)}"
            raise TransientError(message) from error
        self._look_up(table)

    # -- apply ------------------------------------------------------------------------------------------------------

    def _apply_until_stopped(self) -> None:
        seen, looked = Lsn.ZERO, 0.0
        with closing(self._log.reader()) as log:
            while not self._stop.is_set():
                durable = log.wait(seen, 0.5).durable
                if durable <= seen and time.monotonic() < looked + _ERRORS_SECONDS:
                    continue
                started = looked = time.monotonic()
                self._side_by_side(partial(self._apply, durable=durable, logged=log.tables()), self._tables)
                seen = durable
                cost = time.monotonic() - started
                self._stop.wait(min(max(_REST * cost, _SHORTEST_PAUSE), _LONGEST_PAUSE))

    def _apply(self, table: _Followed, durable: Lsn, logged: dict[TableName, LoggedTable]) -> None:
        """Bring one table to the durable frontier, or to just before its error."""
        state = self._state(table)
        if self._stop.is_set() or table.at is None or table.record.upstream not in logged:
            return
        known = logged[table.record.upstream]
        error = known.error
        upto = durable if error is None else Lsn(min(durable, error.lsn - 1))
        try:
            self._merge(table, self._stands(table, table.at, durable), upto, known)
        except TableError as absent:
            self._fail(table, absent)
            return
        except (PySparkException, Py4JError) as broken:
            if not self._stop.is_set():
                message = f"applying {table.record.upstream} broke off: {_brief(broken)}"
                raise TransientError(message) from broken
        if error is not None and state is not TableState.FAILED:
            self._fail(table, error)

    def _stands(self, table: _Followed, at: State, durable: Lsn) -> State:
        """Say where a base stands: further on, if the catalog knows that nothing has happened to it since."""
        noted = self._catalog.newest_base(self._source, table.record.local, durable)
        return at if noted is None else at._replace(position=Lsn(max(at.position, noted.position)))

    def _merge(self, table: _Followed, at: State, upto: Lsn, logged: LoggedTable) -> None:
        if upto <= at.position:
            return
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            self._progress(f"{self._source}: {table.record.upstream} has gained columns")
            table.base.evolve(schema)
        tail = read_tail(self._spark, self._log, schema, at.position, upto)
        if tail is not None:
            table.base.merge(tail.net, upto, tail.contents)
            self._look_up(table)

    # -- what is known ----------------------------------------------------------------------------------------------

    def _state(self, table: _Followed) -> TableState:
        for record in self._catalog.tables(self._source):
            if record.upstream == table.record.upstream:
                return record.state
        return TableState.FAILED

    def _look_up(self, table: _Followed) -> None:
        """Ask the Delta log where the table stands, and note it in the catalog.

        The note may be missing: a process can die, or lose its connection to Spark, right after a commit.
        """
        found = table.base.state()
        table.at = found if found and found.generation == table.captured.generation else None
        if table.at is not None:
            table.base.schema = table.at.schema
            base = BaseVersion(table.at.version, table.at.position, table.at.schema)
            self._catalog.record_base(self._source, table.record.local, base)
            if self._state(table) is TableState.PENDING:
                self._catalog.set_table(self._source, table.record.upstream, TableState.LIVE)

    def _fail(self, table: _Followed, error: PenstockError) -> None:
        self._catalog.set_table(
            self._source, table.record.upstream, TableState.FAILED, error=error.message, remedy=error.remedy
        )
        self._progress(f"{self._source}: {error.message}")


def _has_begun(table: CapturedTable, logged: LoggedTable | None) -> bool:
    return logged is not None and logged.generation >= table.generation


def _dead_spark() -> TransientError:
    said = "Spark's JVM has ended: nothing is applied any more"
    return TransientError(said, "Start again; nothing is lost, and it goes on where it was.")


def _brief(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
