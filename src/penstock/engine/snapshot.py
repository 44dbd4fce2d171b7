"""The initial snapshot of tables: all at one position, copied in parallel by Spark tasks.

::

    pending tables ─▶ wait until capture has begun them ─▶ one snapshot at S ─▶ copied in parallel ─▶ live at S
                                                             │ open transactions │ progress of each table
                                                             └─▶ catalog, for status ◀─┘

Capture must know a table before it is copied; otherwise changes between the two would be missed. Postgres exports a
snapshot when all running transactions have ended. The transaction that it waits for is reported; after `snapshot_wait`
the attempt is abandoned and made again later. If the snapshot ends early, complete copies are kept, and the other
tables are copied at another one.

A table that was truncated after S may be empty in the snapshot, so its copy is worthless. All that counts is in the
log: the table is created empty and becomes live where the log has passed the TRUNCATE. A table that was rewritten
otherwise is copied again.

A source whose instances produce every row by themselves (`Source.database` returns None) needs no copy: its base tables
are created empty, where the log begins, and apply does the rest.

Progress::

    workers: a note in a folder per finished range   ─┐
    upstream: bytes that were sent of running ranges ─┴─▶ the larger of both, per range ─▶ sum ─▶ catalog, every second

A range counts once, however often it is started, and never for less than before.
"""

from __future__ import annotations

import glob
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.catalog.progress import CopyProgress
from penstock.changelog.interface import ChangeLog, LoggedTable
from penstock.engine.as_of import reached
from penstock.engine.instruments import SNAPSHOT_SECONDS
from penstock.engine.table import Progress, RunningTable
from penstock.engine.table_errors import TableErrors, translated_errors, translated_spark_errors
from penstock.engine.work_rounds import side_by_side
from penstock.errors import PenstockError, SchemaChangeError, TableError, TransientError
from penstock.event_log import Event
from penstock.model import TableName
from penstock.sources.database import Database, Snapshot, TableCopy, Tally
from penstock.sources.produced_table import ProducedTable
from penstock.tables.interface import UNFINISHED, CreateOptions, TableStore
from penstock.tables.snapshot_files import finished_ranges

__all__ = ["CopyWatch", "InitialSnapshot", "create_empty", "logged_table", "wait_until_captured"]

_PARALLEL_TABLES = 2


class InitialSnapshot:
    """Takes the initial snapshot of the pending tables of one source."""

    def __init__(
        self,
        store: TableStore,
        source: str,
        database: Database,
        log: ChangeLog,
        progress: Progress,
        stop: threading.Event,
        errors: TableErrors,
    ) -> None:
        self._store = store
        self._source = source
        self._database = database
        self._log = log
        self._progress = progress
        self._stop = stop
        self._errors = errors
        self._tables_at_a_time = database.options.tables_at_a_time(_PARALLEL_TABLES)

    def run(self, tables: Sequence[RunningTable]) -> None:
        """Copy these tables, all at one position."""
        if not wait_until_captured(self._log, tables, self._stop):
            return
        self._report(Event(f"waiting for a snapshot of {len(tables)} tables", "snapshot_waiting", tables=len(tables)))
        copied = list[RunningTable]()
        try:
            with (
                self._snapshot(tables) as snapshot,
                ThreadPoolExecutor(self._tables_at_a_time, f"penstock-copy-{self._source}") as pool,
            ):
                # a promoted standby may end before that position
                if reached(self._log, snapshot.position, self._stop) is None:
                    return
                side_by_side(pool, lambda table: copied.append(table) if self._copy(table, snapshot) else None, tables)
        except TransientError:
            if not self._stop.is_set():
                raise
            return
        finally:
            for table in tables:
                table.catalog.forget_progress(self._source, table.record.local)
            if copied:
                message = f"snapshot of {len(copied)} of {len(tables)} tables complete"
                self._report(Event(message, "snapshot_complete", tables=len(copied), total=len(tables)))

    @contextmanager
    def _snapshot(self, tables: Sequence[RunningTable]) -> Iterator[Snapshot]:
        def report(what: str) -> None:
            self._report(Event(what, "snapshot_waiting", tables=len(tables)))
            for table in tables:
                table.catalog.note_progress(self._source, table.record.local, CopyProgress(waiting=what))

        with self._database.translated_errors(), self._database.snapshot(report, self._stop) as snapshot:
            for table in tables:
                table.catalog.forget_progress(self._source, table.record.local)
            yield snapshot

    def _copy(self, table: RunningTable, snapshot: Snapshot) -> bool:
        """Copy a table, unless `stop` is set; return whether the copy is complete."""
        if self._stop.is_set():
            return False
        found = snapshot.find(table.captured)
        if isinstance(found, str):
            why = f"{table.record.upstream} cannot be copied: {found}"
            hint = f"Resnapshot it: ALTER SOURCES {self._source} RETRY TABLE {table.record.upstream};"
            kind = SchemaChangeError if snapshot.is_changed(table.captured) else TableError
            self._fail(table, kind(str(table.record.upstream), snapshot.position, why, hint))
            return False
        name, total = table.record.upstream, table.captured.estimated_rows
        self._report(Event(f"copying {name}", "table_copying", table=name, total=total))
        operation, is_complete = f"the snapshot of {table.record.upstream}", False
        with self._errors.of(table, "copying"), table.writing, translated_errors(operation, self._database):
            if not table.gone:
                started = time.monotonic()
                self._create(table, found, snapshot)
                SNAPSHOT_SECONDS.labels(self._source).observe(time.monotonic() - started)
                is_complete = True
        return is_complete

    def _create(self, table: RunningTable, captured: ProducedTable, snapshot: Snapshot) -> None:
        table.base.schema = captured.table_schema()
        options = self._database.options
        sessions = options.sessions_of_a_table(self._tables_at_a_time, self._store.parallelism)
        copy = snapshot.copy(captured, sessions)
        created = CreateOptions(
            snapshot.position,
            {"penstock.source": self._source},
            captured.comment or "",
            captured.comments(),
            captured.generation,
        )
        note = partial(table.catalog.note_progress, self._source, table.record.local)
        with CopyWatch(copy, Path(table.base.path), note) as watch:
            is_complete = self._store.snapshot(
                table.base, copy, created, watch.notes, partial(snapshot.has_all_rows, captured.name)
            )
        if not is_complete:
            self._begin_after_truncate(table, created)
        table.load_state()

    def _begin_after_truncate(self, table: RunningTable, created: CreateOptions) -> None:
        """Create a table that was truncated from the log alone, up to the current end of the log."""
        upto = reached(self._log, self._database.now(), self._stop)
        if upto is None:
            return
        base, after = table.base, created.position
        schema = logged_table(self._log, table.record.upstream).schema_within(after, upto) or base.schema
        change = self._store.net_change(self._log, schema, after, upto)
        if change is None or change.contents.truncated is None:
            message = f"{table.record.upstream} was rewritten during its snapshot"
            raise TransientError(message, "Penstock copies it again.")
        no_rows = self._store.rows(base.schema.columns.empty_table())
        base.create(no_rows, **created.arguments(), window=UNFINISHED)
        if len(schema.columns) > len(base.schema.columns):
            base.evolve(schema)
        base.merge(change.net, upto, change.contents)

    def _fail(self, table: RunningTable, error: TableError) -> None:
        table.fail(error)
        self._report(Event(error.message, "table_failed", table=table.record.upstream))

    def _report(self, event: Event) -> None:
        self._progress(Event.of_source(self._source, event))


def logged_table(log: ChangeLog, name: TableName) -> LoggedTable:
    """Return the log's entry of a table that is being copied; raise its error, if it has one."""
    with closing(log.reader()) as reader:
        logged = reader.tables()[name]
    if logged.error is not None:
        raise logged.error
    return logged


_CAPTURED_POLL_SECONDS = 0.05


def create_empty(
    store: TableStore, log: ChangeLog, tables: Sequence[RunningTable], stop: threading.Event, errors: TableErrors
) -> None:
    """Create the base tables of a source that needs no copy: empty, where their history begins."""
    if not wait_until_captured(log, tables, stop):
        return
    with closing(log.reader()) as reader:
        logged = reader.tables()
    for table in tables:
        operation = f"the creation of {table.record.upstream}"
        with errors.of(table, "creating"), table.writing, translated_spark_errors(operation):
            if not table.gone and not stop.is_set():
                _create(store, table, logged[table.record.upstream])
                table.load_state()


def _create(store: TableStore, table: RunningTable, logged: LoggedTable) -> None:
    captured = table.captured
    shutil.rmtree(table.quarantine, ignore_errors=True)
    table.base.schema = captured.table_schema()
    table.base.create(
        store.rows(table.base.schema.columns.empty_table()),
        logged.valid,
        {"penstock.source": table.record.source},
        captured.comment or "",
        captured.comments(),
        captured.generation,
    )


def wait_until_captured(log: ChangeLog, tables: Sequence[RunningTable], stop: threading.Event) -> bool:
    """Wait until capture has begun these tables: an earlier copy could miss changes; return False if stopped."""
    with closing(log.reader()) as reader:
        while not stop.is_set():
            logged = reader.tables()
            if all(table.gone or _has_begun(table.captured, logged.get(table.captured.name)) for table in tables):
                return True
            stop.wait(_CAPTURED_POLL_SECONDS)
    return False


def _has_begun(table: ProducedTable, logged: LoggedTable | None) -> bool:
    return logged is not None and logged.generation >= table.generation


_POLL_SECONDS = 1.0
_PREFIX = ".copying-{}."


class CopyWatch:
    """Records the progress of one table's copy into `folder`, in a thread, while the ``with`` block lasts."""

    def __init__(self, copy: TableCopy, folder: Path, note: Callable[[CopyProgress], None]) -> None:
        self._copy = copy
        self._note = note
        _remove_left_over(folder)
        self.notes = folder.with_name(_PREFIX.format(folder.name) + uuid.uuid4().hex[:12])
        """The folder for the notes of workers, and for their files until all of them are complete."""
        self.notes.mkdir(parents=True)
        self._ranges: dict[int, Tally] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"penstock-watch-{copy.schema.table}", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread and remove the notes."""
        self._done.set()
        self._thread.join()
        shutil.rmtree(self.notes, ignore_errors=True)

    def _watch(self) -> None:
        while not self._done.is_set():
            with suppress(PenstockError), self._copy.watch() as sent:
                while not self._done.is_set():
                    self._update(sent())
            self._update({})

    def _update(self, running: Mapping[int, Tally]) -> None:
        for found in (running, finished_ranges(self.notes)):
            for number, tally in found.items():
                known = self._ranges.get(number, Tally())
                self._ranges[number] = Tally(max(known.rows, tally.rows), max(known.bytes, tally.bytes))
        rows = sum(tally.rows for tally in self._ranges.values())
        size = sum(tally.bytes for tally in self._ranges.values())
        self._note(CopyProgress(rows, size, self._copy.estimated_rows, self._copy.total_bytes))
        self._done.wait(_POLL_SECONDS)


def _remove_left_over(folder: Path) -> None:
    """Remove the leftovers of a process that died during a copy, also files of a table without a Delta log."""
    for left in folder.parent.glob(_PREFIX.format(glob.escape(folder.name)) + "*"):
        shutil.rmtree(left, ignore_errors=True)
    if not (folder / "_delta_log").exists():
        shutil.rmtree(folder, ignore_errors=True)
