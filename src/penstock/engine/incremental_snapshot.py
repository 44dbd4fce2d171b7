"""Incremental snapshot: a table is copied in key ranges while capture continues; the copy survives crashes.

::

    begin ─▶ an empty base table, at the position A from which every change counts
    chunk ─▶ LOW ─▶ a key range ─▶ HIGH ─▶ one commit: the rows, and the progress of the copy           repeated
    end   ─▶ the log of (A, HIGH of the last chunk] overlaid on all chunks, one commit ─▶ live

Progress is stored in the commits of the base table: after a crash the copy resumes after the last chunk that is there.
Until the end the table has no position, and is not readable.

A row that changed its key and omitted unchanged values is read once more: another row may have been read at its old
key.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.progress import CopyProgress
from penstock.catalog.states import TableState
from penstock.changelog.interface import ChangeLog
from penstock.engine.as_of import reached
from penstock.engine.instruments import SNAPSHOT_SECONDS
from penstock.engine.snapshot import logged_table, wait_until_captured
from penstock.engine.table import Progress, RunningTable
from penstock.engine.table_errors import TableErrors, translated_errors
from penstock.engine.work_rounds import side_by_side
from penstock.event_log import Event
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.database import Database, Key, Windows, key_of
from penstock.spark.images import spark_schema
from penstock.tables.base_state import ChunkProgress, State
from penstock.tables.interface import BaseTable
from penstock.tables.log_tail import Tail, read_tail
from penstock.tables.repair import (
    overlay_tail,
    repair_tail,
    rows_with_keys,
    tail_of_keys,
    tail_without_keys,
    unresolved_moves,
)

__all__ = ["IncrementalSnapshot", "KeyRanges", "frame"]

_PARALLEL_TABLES = 2


class IncrementalSnapshot:
    """Takes incremental snapshots of the pending tables of one source."""

    def __init__(
        self,
        spark: SparkSession,
        source: str,
        database: Database,
        log: ChangeLog,
        progress: Progress,
        stop: threading.Event,
        errors: TableErrors,
    ) -> None:
        self._spark = spark
        self._source = source
        self._database = database
        self._log = log
        self._progress = progress
        self._stop = stop
        self._errors = errors

    def run(self, tables: Sequence[RunningTable]) -> None:
        """Copy these tables, or resume copying them."""
        if not wait_until_captured(self._log, tables, self._stop):
            return
        with ThreadPoolExecutor(_PARALLEL_TABLES, f"penstock-chunks-{self._source}") as pool:
            side_by_side(pool, self._copy, tables)

    def _copy(self, table: RunningTable) -> None:
        operation = f"the snapshot of {table.record.upstream}"
        try:
            with (
                self._errors.of(table, "copying"),
                table.writing,
                translated_errors(operation, self._database),
            ):
                if not table.gone:
                    started = time.monotonic()
                    _Chunks(self._spark, self._database, self._log, table, self._report, self._stop).copy()
                    table.load_state()
                    if table.at is not None:
                        SNAPSHOT_SECONDS.labels(self._source).observe(time.monotonic() - started)
        finally:
            table.catalog.forget_progress(self._source, table.record.local)

    def _report(self, text: str) -> None:
        self._progress(Event.of_source(self._source, text))


class _Chunks:
    """The incremental snapshot of one table."""

    def __init__(
        self,
        spark: SparkSession,
        database: Database,
        log: ChangeLog,
        table: RunningTable,
        report: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._database = database
        self._log = log
        self._table = table
        self._base = table.base
        self._name = table.record.upstream
        self._report = report
        self._stop = stop

    def copy(self) -> None:
        """Begin or resume, until the snapshot is complete or `stop` is set."""
        state = self._begun() or self._begin()
        if state is None or state.window is None:
            return
        self._base.schema = state.schema
        last = self._base.chunk_progress()
        captured = self._table.captured.with_logged_columns(state.schema)
        number = last.number if last else 0
        with closing(self._database.windows(captured, state.window, number)) as windows:
            ranges = KeyRanges(self._spark, windows, self._base, self._database.options.chunk_rows)
            total = windows.total_bytes()
            while last is None or last.upto is not None:
                logged_table(self._log, self._name)
                before, began = last.size if last else 0, time.monotonic()
                last = ranges.copy_next(last)
                self._note(CopyProgress(last.rows, last.size, captured.estimated_rows, total))
                pause = self._database.options.pause_after_chunk(last.size - before, time.monotonic() - began)
                if self._stop.wait(pause) or self._table.state() is not TableState.PENDING:
                    return
            self._end(windows, state, last)

    def _note(self, progress: CopyProgress) -> None:
        self._table.catalog.note_progress(self._table.record.source, self._table.record.local, progress)

    def _wait(self, what: str) -> None:
        """Report what the snapshot waits for."""
        self._report(Event(what, "snapshot_waiting", table=self._name))
        self._note(CopyProgress(waiting=what))

    # -- begin ------------------------------------------------------------------------------------------------------

    def _begun(self) -> State | None:
        """Return the unfinished snapshot in the base table, if it belongs to the table's current generation."""
        state = self._base.state()
        ours = state is not None and state.window and state.generation == self._table.captured.generation
        if ours:
            self._report(Event(f"resuming the snapshot of {self._name}", "table_copying", table=self._name))
        return state if ours else None

    def _begin(self) -> State | None:
        """Create the base table, empty, at the position from which every change counts."""
        with closing(self._log.reader()) as log:
            captured = self._table.captured.with_logged_columns(log.tables()[self._name].schema)
        window = uuid.uuid4().hex
        with closing(self._database.windows(captured, window)) as windows:
            start = windows.begin(self._wait, self._stop)
        if self._stop.is_set():
            return None
        total = captured.estimated_rows
        self._report(Event(f"copying {self._name} in chunks", "table_copying", table=self._name, total=total))
        self._base.schema = captured.table_schema()
        self._base.create(
            frame(self._spark, self._base.schema.columns.empty_table()),
            start,
            {"penstock.source": self._table.record.source},
            captured.comment or "",
            captured.comments(),
            captured.generation,
            window,
        )
        return self._base.state()

    # -- end --------------------------------------------------------------------------------------------------------

    def _end(self, windows: Windows, state: State, last: ChunkProgress) -> None:
        """Overlay the log on all chunks, from the position at which the copy began to the end of its last window.

        This leaves the rows that changed their key. They are read once more, and changes since then are overlaid on
        the other rows, until no row has moved within its last window.
        """
        upto = reached(self._log, last.high, self._stop)
        tail = None if upto is None else self._tail(state.position, upto, state.schema)
        moved = self._keys(unresolved_moves(tail, self._base.schema))
        while moved and upto is not None:
            self._overlay(tail_without_keys(tail, self._frame(windows, moved), self._base.schema), upto, last)
            requested, after = moved, upto
            begun = windows.begin(self._report, self._stop)
            window = windows.read_keys(sorted(requested))
            upto = reached(self._log, window.high, self._stop)
            if upto is not None:
                tail = self._tail(after, upto, self._base.schema)
                tail, moved = self._with_rows(windows, tail, window.rows, requested, begun, upto)
        if upto is not None:
            self._overlay(tail, upto, None)
            message = f"snapshot of {self._name} complete: {last.rows:,} rows in {last.number:,} chunks"
            self._report(Event(message, "snapshot_complete", table=self._name, rows=last.rows, chunks=last.number))

    def _with_rows(
        self, windows: Windows, tail: Tail | None, read: pa.Table, requested: set[Key], begun: Lsn, upto: Lsn
    ) -> tuple[Tail | None, set[Key]]:
        """Merge rows that were read once more into the net changes; return these, and the keys that moved again."""
        schema = self._base.schema
        later = read_tail(self._spark, self._log, schema, begun, upto)
        keys = self._frame(windows, requested)
        moved = self._keys(unresolved_moves(later, schema)) & requested | self._keys(
            unresolved_moves(tail, schema, keys)
        )
        left = self._frame(windows, moved)
        settled = rows_with_keys(keys, left, schema, "left_anti")
        found = rows_with_keys(self._base.widened(frame(self._spark, read)), settled, schema)
        rows = overlay_tail(found, tail_of_keys(later, settled, schema), schema)
        return repair_tail(tail_without_keys(tail, left, schema), rows, settled, schema), moved

    def _overlay(self, tail: Tail | None, upto: Lsn, copied: ChunkProgress | None) -> None:
        if tail is None:
            self._base.append(frame(self._spark, self._base.schema.columns.empty_table()), upto)
        else:
            self._base.merge(tail.net, upto, replace(tail.contents, inserts_only=False), copied)

    def _tail(self, after: Lsn, upto: Lsn, known: TableSchema) -> Tail | None:
        """Read the changes of a range, and add the columns that the table has at its end."""
        schema = logged_table(self._log, self._name).schema_within(after, upto) or known
        if len(schema.columns) > len(self._base.schema.columns):
            self._base.evolve(schema)
        return read_tail(self._spark, self._log, self._base.schema, after, upto)

    def _keys(self, found: list[dict[str, Any]]) -> set[Key]:
        return {key_of(row, self._base.schema.key) for row in found}

    def _frame(self, windows: Windows, keys: set[Key]) -> DataFrame:
        return frame(self._spark, windows.key_values(sorted(keys)))


_FEWEST_ROWS, _MOST_ROWS = 1_000, 1_000_000
_GOAL_SECONDS = 5.0
_MOST_BYTES = 64 << 20


class KeyRanges:
    """Copies one key range after another; their size adapts, so that each takes about the same time."""

    def __init__(self, spark: SparkSession, windows: Windows, base: BaseTable, rows: int) -> None:
        self._spark = spark
        self._windows = windows
        self._base = base
        self._rows = rows
        self._fewest = min(_FEWEST_ROWS, rows)

    def copy_next(self, last: ChunkProgress | None) -> ChunkProgress:
        """Copy the range after the last one: rows and progress are in one commit."""
        began = time.monotonic()
        window = self._windows.read_range(last.upto if last else None, self._rows)
        number, rows, size = (last.number, last.rows, last.size) if last else (0, 0, 0)
        size += window.rows.nbytes
        chunk = ChunkProgress(number + 1, rows + len(window.rows), size, window.upto, window.high)
        self._base.add_chunk(frame(self._spark, window.rows), chunk)
        self._adapt(time.monotonic() - began, window.rows.nbytes)
        return chunk

    def _adapt(self, seconds: float, size: int) -> None:
        """Choose the number of rows in the next range."""
        factor = min(_GOAL_SECONDS / max(seconds, 0.01), _MOST_BYTES / max(size, 1))
        self._rows = round(min(max(self._rows * min(max(factor, 0.25), 2.0), self._fewest), _MOST_ROWS))


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Return rows as a DataFrame, with the types of their table."""
    if not len(rows):  # Spark converts no nested column without chunks
        rows = pa.Table.from_batches([pa.RecordBatch.from_pylist([], rows.schema)])
    return spark.createDataFrame(rows, spark_schema(rows.schema))
