"""The copy of a table in chunks, beside the stream: what was copied stays copied, whatever dies.

::

    begin ─▶ an empty base table, at the position A from which on every change counts
    chunk ─▶ LOW ─▶ a range of keys ─▶ HIGH ─▶ one commit: the rows, and how far the copy is        again and again
    end   ─▶ the log of (A, HIGH of the last chunk] laid over all chunks, one commit ─▶ live

Progress is in the commits of the base table itself: after a crash the copy goes on behind the last chunk that is there.
Until the end the table shows no position, and nobody reads it.

A row that changed its key and left values out is read once more: at its old key, another row may have been read.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.states import TableState
from penstock.changelog.interface import ChangeLog, LoggedTable
from penstock.control.copying import wait_until_captured
from penstock.control.followed import FollowedTable, Progress
from penstock.control.key_ranges import KeyRanges, frame
from penstock.control.reaching import reached
from penstock.control.side_by_side import side_by_side
from penstock.durations import parse_duration
from penstock.errors import TableError, TransientError
from penstock.positions import Lsn
from penstock.sources.postgres.connection import connection_error
from penstock.sources.postgres.keys import Key, key_of
from penstock.sources.postgres.spec import PostgresInstanceConfig
from penstock.sources.postgres.windows import Windows
from penstock.spark.boundary import brief, delivering
from penstock.tables.base import State
from penstock.tables.commits import Copied
from penstock.tables.put_right import laid_over, of_keys, put_right, unresolved
from penstock.tables.tail import Tail, read_tail

__all__ = ["ChunkedCopy"]

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
    ) -> None:
        self._spark = spark
        self._instance = instance
        self._log = log
        self._progress = progress
        self._stop = stop

    def run(self, tables: Sequence[FollowedTable]) -> None:
        """Copy these tables, or go on with it."""
        if not wait_until_captured(self._log, tables, self._stop):
            return
        with ThreadPoolExecutor(_SIDE_BY_SIDE, f"penstock-chunks-{self._instance.source}") as pool:
            side_by_side(pool, self._copy, tables)

    def _copy(self, table: FollowedTable) -> None:
        try:
            with table.writing, delivering(), self._told(table):
                _Chunks(self._spark, self._instance, self._log, table, self._tell, self._stop).copy()
                table.look_up()
        except TableError as error:
            table.fail(error)
            self._tell(error.message)

    def _tell(self, text: str) -> None:
        self._progress(f"{self._instance.source}: {text}")

    @contextmanager
    def _told(self, table: FollowedTable) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise connection_error(error, self._instance.connection) from error
        except (PySparkException, Py4JError) as error:
            message = f"the copy of {table.record.upstream} broke off: {brief(error)}"
            raise TransientError(message) from error


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
        captured = self._table.captured.grown(state.schema)
        number = last.number if last else 0
        with closing(Windows(self._instance, captured, state.window, number)) as windows:
            ranges = KeyRanges(self._spark, windows, self._base, self._instance.chunk_rows)
            while last is None or last.upto is not None:
                self._logged()
                last = ranges.copy_next(last)
                if self._stop.wait(self._pause) or self._table.state() is not TableState.PENDING:
                    return
            self._end(windows, state, last)

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
            captured = self._table.captured.grown(log.tables()[self._name].schema)
        window = uuid.uuid4().hex
        with closing(Windows(self._instance, captured, window)) as windows:
            start = windows.begin(self._tell, self._stop)
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
        """Lay the log over all chunks, from the position at which the copy began to the end of its last window."""
        upto = reached(self._log, last.high, self._stop)
        if upto is None:
            return
        found = self._tail(state, upto)
        if found is not None and found.contents.unchanged and found.contents.moved:
            resolved = self._resolved(windows, state, found, upto)
            if resolved is None:
                return
            found, upto = resolved
        if found is None:
            self._base.append(frame(self._spark, self._base.schema.columns.empty_table()), upto)
        else:
            self._base.merge(found.net, upto, replace(found.contents, inserts_only=False))
        self._tell(f"{self._name} is copied: {last.rows:,} rows in {last.number:,} chunks")

    def _tail(self, state: State, upto: Lsn) -> Tail | None:
        """Read what happened since the copy began, and give the table the columns that it has by then."""
        schema = self._logged().schema_within(state.position, upto) or state.schema
        if len(schema.columns) > len(self._base.schema.columns):
            self._base.evolve(schema)
        return read_tail(self._spark, self._log, self._base.schema, state.position, upto)

    def _resolved(self, windows: Windows, state: State, tail: Tail | None, upto: Lsn) -> tuple[Tail, Lsn] | None:
        """Read rows once more that moved past the copy, until none is left; None when told to stop."""
        asked: set[Key] = set()
        later: Tail | None = None
        rows = frame(self._spark, self._base.schema.columns.empty_table())
        while tail is not None:
            missing = self._moved(tail) - asked
            moved_on = asked & self._moved(later)
            if not missing and not moved_on:
                return self._put_right(windows, tail, laid_over(rows, later, self._base.schema), asked), upto
            asked |= missing
            begun = windows.begin(self._tell, self._stop)
            window = windows.keyed(sorted(asked))
            found = reached(self._log, window.high, self._stop)
            if found is None:
                return None
            upto, tail = found, self._tail(state, found)
            rows = self._base.widened(frame(self._spark, window.rows))
            later = read_tail(self._spark, self._log, self._base.schema, begun, upto)
        return None

    def _logged(self) -> LoggedTable:
        """Return what the log says of the table; its error ends the copy."""
        with closing(self._log.reader()) as log:
            logged = log.tables()[self._name]
        if logged.error is not None:
            raise logged.error
        return logged

    def _moved(self, tail: Tail | None) -> set[Key]:
        """Return the keys of rows that moved, and whose values are not all known."""
        if tail is None or not (tail.contents.unchanged and tail.contents.moved):
            return set()
        names = self._base.schema.key
        return {key_of(list(row), names) for row in unresolved(tail, self._base.schema).collect()}

    def _put_right(self, windows: Windows, tail: Tail, right: DataFrame, asked: set[Key]) -> Tail:
        if not asked:
            return tail
        keys = frame(self._spark, windows.key_values(sorted(asked)))
        return put_right(tail, of_keys(right, keys, self._base.schema), keys, self._base.schema)
