"""Incremental snapshot: a table is copied in key ranges beside the stream, and survives crashes.

::

    begin ─▶ an empty base table, at the position A from which every change counts
    chunk ─▶ LOW ─▶ a key range ─▶ HIGH ─▶ one commit: the rows, and the progress of the copy           repeated
    end   ─▶ the log of (A, HIGH of the last chunk] overlaid on all chunks, one commit ─▶ live

Progress is stored in the commits of the base table: after a crash the copy resumes after the last chunk that is there.
Until the end the table shows no position, and is not readable.

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
from penstock.engine.records import captured_of
from penstock.engine.snapshot import logged_table, wait_until_captured
from penstock.engine.table import FollowedTable, Progress
from penstock.engine.table_errors import Troubles, breaking_off
from penstock.engine.turns import side_by_side
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.windows import Key, Windows, key_of
from penstock.spark.ranges import spark_schema
from penstock.tables.base_state import Copied, State
from penstock.tables.interface import BaseTable
from penstock.tables.repaired_rows import laid_over, of_keys, only, put_right, unresolved, without
from penstock.tables.tail import Tail, read_tail
from penstock.units import parse_duration

__all__ = ["ChunkedCopy", "KeyRanges", "frame"]

_SIDE_BY_SIDE = 2


class ChunkedCopy:
    """Copies tables of one source that have no whole copy yet."""

    def __init__(
        self,
        spark: SparkSession,
        instance: PostgresInstanceConfig,
        log: ChangeLog,
        progress: Progress,
        stop: threading.Event,
        troubles: Troubles,
    ) -> None:
        self._spark = spark
        self._instance = instance
        self._log = log
        self._progress = progress
        self._stop = stop
        self._troubles = troubles

    def run(self, tables: Sequence[FollowedTable]) -> None:
        """Copy these tables, or go on with it."""
        if not wait_until_captured(self._log, tables, self._stop):
            return
        with ThreadPoolExecutor(_SIDE_BY_SIDE, f"penstock-chunks-{self._instance.source}") as pool:
            side_by_side(pool, self._copy, tables)

    def _copy(self, table: FollowedTable) -> None:
        told = f"the copy of {table.record.upstream}"
        try:
            with self._troubles.of(table, "copying"), table.writing, breaking_off(told, self._instance.connection):
                if not table.gone:
                    _Chunks(self._spark, self._instance, self._log, table, self._tell, self._stop).copy()
                    table.look_up()
        finally:
            table.catalog.forget_progress(self._instance.source, table.record.local)

    def _tell(self, text: str) -> None:
        self._progress(f"{self._instance.source}: {text}")


class _Chunks:
    """The copy of one table."""

    def __init__(
        self,
        spark: SparkSession,
        instance: PostgresInstanceConfig,
        log: ChangeLog,
        table: FollowedTable,
        tell: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._spark = spark
        self._instance = instance
        self._log = log
        self._table = table
        self._base = table.base
        self._name = table.record.upstream
        self._tell = tell
        self._stop = stop
        self._pause = parse_duration(instance.chunk_pause).total_seconds()

    def copy(self) -> None:
        """Begin or go on, to the end or until told to stop."""
        state = self._begun() or self._begin()
        if state is None or state.window is None:
            return
        self._base.schema = state.schema
        last = self._base.copied()
        captured = captured_of(self._table.captured).grown(state.schema)
        number = last.number if last else 0
        with closing(Windows(self._instance, captured, state.window, number)) as windows:
            ranges = KeyRanges(self._spark, windows, self._base, self._instance.chunk_rows)
            total = windows.table_bytes()
            while last is None or last.upto is not None:
                logged_table(self._log, self._name)
                last = ranges.copy_next(last)
                self._note(CopyProgress(last.rows, last.size, captured.estimated_rows, total))
                if self._stop.wait(self._pause) or self._table.state() is not TableState.PENDING:
                    return
            self._end(windows, state, last)

    def _note(self, progress: CopyProgress) -> None:
        self._table.catalog.note_progress(self._instance.source, self._table.record.local, progress)

    def _wait(self, what: str) -> None:
        """Say what is in the way."""
        self._tell(what)
        self._note(CopyProgress(waiting=what))

    # -- begin ------------------------------------------------------------------------------------------------------

    def _begun(self) -> State | None:
        """Return the copy that is there, if it is one of this table as it is captured now."""
        state = self._base.state()
        ours = state is not None and state.window and state.generation == self._table.captured.generation
        if ours:
            self._tell(f"going on to copy {self._name}")
        return state if ours else None

    def _begin(self) -> State | None:
        """Make the base table, empty, at the position from which on all changes count."""
        with closing(self._log.reader()) as log:
            captured = captured_of(self._table.captured).grown(log.tables()[self._name].schema)
        window = uuid.uuid4().hex
        with closing(Windows(self._instance, captured, window)) as windows:
            start = windows.begin(self._wait, self._stop)
        if self._stop.is_set():
            return None
        self._tell(f"copying {self._name} in chunks")
        self._base.schema = captured.table_schema()
        self._base.create(
            frame(self._spark, self._base.schema.columns.empty_table()),
            start,
            {"penstock.source": self._instance.source},
            captured.comment or "",
            captured.comments(),
            captured.generation,
            window,
        )
        return self._base.state()

    # -- end --------------------------------------------------------------------------------------------------------

    def _end(self, windows: Windows, state: State, last: Copied) -> None:
        """Lay the log over all chunks, from the position at which the copy began to the end of its last window.

        What is left then are rows that changed their key. Those are read once more, and what happens meanwhile is
        laid over the others, until none is left that moved within its last window.
        """
        upto = reached(self._log, last.high, self._stop)
        tail = None if upto is None else self._tail(state.position, upto, state.schema)
        moved = self._keys(unresolved(tail, self._base.schema))
        while moved and upto is not None:
            self._lay_over(without(tail, self._frame(windows, moved), self._base.schema), upto, last)
            asked, after = moved, upto
            begun = windows.begin(self._tell, self._stop)
            window = windows.keyed(sorted(asked))
            upto = reached(self._log, window.high, self._stop)
            if upto is not None:
                tail = self._tail(after, upto, self._base.schema)
                tail, moved = self._with_rows(windows, tail, window.rows, asked, begun, upto)
        if upto is not None:
            self._lay_over(tail, upto, None)
            self._tell(f"{self._name} is copied: {last.rows:,} rows in {last.number:,} chunks")

    def _with_rows(
        self, windows: Windows, tail: Tail | None, read: pa.Table, asked: set[Key], begun: Lsn, upto: Lsn
    ) -> tuple[Tail | None, set[Key]]:
        """Put rows that were read once more into the net effect; return it, and the keys of what moved again."""
        schema = self._base.schema
        later = read_tail(self._spark, self._log, schema, begun, upto)
        keys = self._frame(windows, asked)
        moved = self._keys(unresolved(later, schema)) & asked | self._keys(unresolved(tail, schema, keys))
        left = self._frame(windows, moved)
        settled = of_keys(keys, left, schema, "left_anti")
        found = of_keys(self._base.widened(frame(self._spark, read)), settled, schema)
        rows = laid_over(found, only(later, settled, schema), schema)
        return put_right(without(tail, left, schema), rows, settled, schema), moved

    def _lay_over(self, tail: Tail | None, upto: Lsn, copied: Copied | None) -> None:
        if tail is None:
            self._base.append(frame(self._spark, self._base.schema.columns.empty_table()), upto)
        else:
            self._base.merge(tail.net, upto, replace(tail.contents, inserts_only=False), copied)

    def _tail(self, after: Lsn, upto: Lsn, known: TableSchema) -> Tail | None:
        """Read what happened, and give the table the columns that it has by then."""
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
    """Copies range after range; they become larger or smaller, so that each takes about as long as it should."""

    def __init__(self, spark: SparkSession, windows: Windows, base: BaseTable, rows: int) -> None:
        self._spark = spark
        self._windows = windows
        self._base = base
        self._rows = rows
        self._fewest = min(_FEWEST_ROWS, rows)

    def copy_next(self, last: Copied | None) -> Copied:
        """Copy the range that follows the last one: rows and progress are one commit."""
        began = time.monotonic()
        window = self._windows.range(last.upto if last else None, self._rows)
        number, rows, size = (last.number, last.rows, last.size) if last else (0, 0, 0)
        size += window.rows.nbytes
        chunk = Copied(number + 1, rows + len(window.rows), size, window.upto, window.high)
        self._base.add_chunk(frame(self._spark, window.rows), chunk)
        self._adapt(time.monotonic() - began, window.rows.nbytes)
        return chunk

    def _adapt(self, seconds: float, size: int) -> None:
        """Choose how many rows the next range shall have."""
        factor = min(_GOAL_SECONDS / max(seconds, 0.01), _MOST_BYTES / max(size, 1))
        self._rows = round(min(max(self._rows * min(max(factor, 0.25), 2.0), self._fewest), _MOST_ROWS))


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Give rows to Spark, with the types that their table has there."""
    return spark.createDataFrame(rows, spark_schema(rows.schema))
