"""The loops that keep the tables of one source up to date: snapshot, apply, repair, compaction.

::

    pending tables ─▶ `snapshot` or `incremental_snapshot` ─▶ live
    live tables ─▶ (position, durable] of the log ─▶ folded, merged; the position is in the same commit ─▶ again
    base tables ─▶ `compaction`

Each loop runs in its own thread. Live tables do not wait for tables whose snapshot is running, nor for one that takes
long (`work_rounds`). A table without changes costs one query of the log. An error of one table is recorded with that
table, and the others continue (`table_errors`; `error_policy` decides which action follows each error).

The position of a table is stored in its Delta commits. The catalog only records the position of each version, so that
live views can choose one; these records never change, and missing ones are added after a crash.

Apply rests between rounds, because live views do not wait for it and queries need the cores: as long as the last round
took, times `PENSTOCK_APPLY_REST`, within limits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from penstock.catalog.repairs import Repair, Repairs
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord
from penstock.changelog.interface import ChangeLogReader, LoggedTable
from penstock.engine.catalog_records import database_of, instance_of, require_database
from penstock.engine.compaction import Compactor
from penstock.engine.disk_space import pausing_when_full, require_space, short_of_space
from penstock.engine.error_policy import ErrorAction, Tries, error_action, explained
from penstock.engine.incremental_snapshot import IncrementalSnapshot
from penstock.engine.instruments import APPLY_ROUND_SECONDS, MERGE_SECONDS
from penstock.engine.repair import Repairer
from penstock.engine.row_counts import RowCounts
from penstock.engine.snapshot import InitialSnapshot, create_empty
from penstock.engine.table import Progress, RunningTable
from penstock.engine.table_errors import TableErrors
from penstock.engine.work_rounds import WorkRounds
from penstock.errors import DefiniteError, HistoryExpiredError, PenstockError, UsageError
from penstock.event_log import Event
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error
from penstock.tables.base_state import State
from penstock.tables.interface import TableStore
from penstock.tables.message_tables import message_tables

__all__ = ["TableLoops", "apply_rest", "pause_after"]

_RETRY_SECONDS = 5.0
_POLL_SECONDS = 0.5
_RELEASE_SECONDS = 5.0
_COMPACTION_SECONDS = 5.0
_ERRORS_SECONDS = 2.0
"""A table can fail without a new transaction, so its errors are checked at this interval."""
_GRACE_SECONDS = 10.0
"""The time that running work has to finish when the source stops; then its Spark jobs are cancelled."""


class TableLoops:
    """Runs the snapshot, apply, repair and compaction loops of one source, each in a thread."""

    def __init__(self, home: Path, catalog: Catalog, source: str, store: TableStore, progress: Progress) -> None:
        self._home = home
        self._catalog = catalog
        self._source = source
        self._store = store
        self._progress = progress
        self._rest = apply_rest()
        self._tables: list[RunningTable] = []
        self._released: set[TableName] = set()
        """Tables that are released and not resumed yet: their catalog records are about to change."""
        self._reload_lock = threading.Lock()
        self.reload()
        self._stop = threading.Event()
        self._lookups = WorkRounds[RunningTable](f"penstock-look-{source}", self._stop)
        self._applying = WorkRounds[RunningTable](f"penstock-{source}", self._stop)
        self._jobs = store.jobs(f"penstock-{source}")
        self._errors = TableErrors(home, source, progress, self._stop, self._jobs)
        self._tries = {name: Tries() for name in ("copy", "apply", "repair", "upkeep")}
        self._repair_tries: dict[int, Tries] = {}
        self._recorded_error: PenstockError | None = None
        """The error that was last recorded with the source, because one of the loops fails repeatedly."""
        self.merges = 0
        """The number of merges into tables: the sign that Spark works."""
        self.failure: BaseException | None = None
        """The error that ended one of the loops permanently."""
        self._threads = [
            threading.Thread(target=self._run_loop, args=(name, work), name=f"penstock-{name}-{source}", daemon=True)
            for name, work in (
                ("copy", self._copy_until_stopped),
                ("apply", self._apply_until_stopped),
                ("repair", self._repair_until_stopped),
                ("upkeep", self._compact_until_stopped),
            )
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the current merges, and stop; long-running work is cancelled, and restarts at the next run."""
        self._stop.set()
        ending = threading.Thread(target=self._end, name=f"penstock-end-{self._source}", daemon=True)
        ending.start()
        ending.join(_GRACE_SECONDS)
        if ending.is_alive():
            self._report("cancelling the Spark jobs that still run; their work restarts at the next run")
        while ending.is_alive():
            self._jobs.cancel()
            ending.join(1.0)

    def _end(self) -> None:
        """Wait until all loops and their work have ended."""
        for thread in self._threads:
            thread.join()
        self._lookups.shut_down()
        self._applying.shut_down()

    def reload(self) -> None:
        """Reload the captured tables and their definitions from the catalog; running work continues."""
        with self._reload_lock:
            instance = instance_of(self._record())
            self._log = self._catalog.log(self._source)
            records = {record.upstream: record for record in self._catalog.tables(self._source)}
            known = {(table.record.upstream, table.captured.generation): table for table in self._tables}
            found = []
            for captured in (table for table in instance.produced() if table.name not in self._released):
                table = known.get((captured.name, captured.generation))
                if table is None:
                    table = RunningTable(self._home, self._catalog, records[captured.name], captured, self._store)
                table.captured = captured
                found.append(table)
            self._tables = found

    def release_tables(self, names: Collection[TableName]) -> set[TableName]:
        """Release tables until `resume_tables`; return the names of those that are released.

        The others are busy, for example with a snapshot, and are not released.
        """
        with self._reload_lock:
            releasing = [table for table in self._tables if table.record.upstream in names]
            busy = {table.record.upstream for table in releasing if not _release(table)}
            self._tables = [table for table in self._tables if not table.gone]
            self._released = set(names) - busy
            return self._released

    def resume_tables(self) -> None:
        """Resume work on all tables that are captured now."""
        with self._reload_lock:
            self._released = set()
        self.reload()

    def _record(self) -> SourceRecord:
        record = self._catalog.source(self._source)
        if record is None:
            message = f"source {self._source} does not exist"
            raise DefiniteError(message, "`penstock status` lists the sources of this home.")
        return record

    def _run_loop(self, name: str, work: Callable[[], None]) -> None:
        """Run a loop until `stop` is set; restart it after an error, unless that error stops the source."""
        while not self._stop.is_set():
            try:
                work()
            except BaseException as error:
                if not self._should_restart(name, error):
                    return

    def _should_restart(self, name: str, error: BaseException) -> bool:
        """Handle an error that ended a loop; return whether to restart it, after having waited for the pause."""
        action = error_action(error, of_table=False)
        if is_spark_lost(error):
            self.failure = spark_lost_error()
            return False
        if self._stop.is_set() and action is not ErrorAction.END_SOURCE:
            return False
        if action is ErrorAction.END_SOURCE:
            self.failure = error
            return False
        tries = self._tries[name]
        self._errors.report(name, error, tries, action)
        if tries.spent and not self._stop.is_set():
            self._record_error(
                explained(f"{name} of source {self._source}", error, "Penstock retries it every minute.")
            )
        self._stop.wait(_RETRY_SECONDS if action is ErrorAction.RETRY else tries.pause)
        return True

    def _record_error(self, error: PenstockError) -> None:
        self._recorded_error = error
        self._catalog.note_source_error(self._source, error.message, error.hint)

    def _note_success(self, name: str) -> None:
        """Record a successful round of a loop: clear the error that the source shows, unless another loop fails."""
        self._tries[name].worked()
        if self._recorded_error is not None and not any(tries.spent for tries in self._tries.values()):
            recorded, self._recorded_error = self._recorded_error, None
            self._catalog.forget_source_error(self._source, recorded.message)

    # -- initial snapshot -------------------------------------------------------------------------------------------

    def _copy_until_stopped(self) -> None:
        loaded: list[RunningTable] = []
        while not self._stop.is_set():
            if self._pending():
                self.reload()
            tables = self._tables
            self._lookups.round(self._load_state, [table for table in tables if table not in loaded])
            loaded = tables
            pending = self._pending()
            if pending:
                require_space(self._home)
                with pausing_when_full(self._home, self._stop, self._jobs.cancel):
                    self._copy(pending)
            self._note_success("copy")
            self._stop.wait(_POLL_SECONDS)

    def _pending(self) -> list[RunningTable]:
        """Return the tables whose snapshot is due."""
        states = {record.upstream: record.state for record in self._catalog.tables(self._source)}
        waiting = [name for name, state in states.items() if state is TableState.PENDING]
        found = [table for table in self._tables if table.record.upstream in waiting and not table.gone]
        return [table for table in found if table.tries.due()]

    def _load_state(self, table: RunningTable) -> None:
        with self._errors.of(table, "looking up", clears=not table.tries.count), table.writing:
            table.load_state()

    def _copy(self, pending: list[RunningTable]) -> None:
        database = database_of(self._record())
        if database is None:
            create_empty(self._store, self._log, pending, self._stop, self._errors)
            return
        common = (self._source, database, self._log, self._progress, self._stop, self._errors)
        if database.options.chunked:
            IncrementalSnapshot(self._store.spark, *common).run(pending)
        else:
            InitialSnapshot(self._store, *common).run(pending)

    # -- repair -----------------------------------------------------------------------------------------------------

    def _repair_until_stopped(self) -> None:
        repairs = Repairs(self._catalog)
        while not self._stop.wait(_POLL_SECONDS):
            for repair in repairs.waiting(self._source):
                table = next((table for table in self._tables if table.record.upstream == repair.table), None)
                if table is None:
                    repairs.failed(repair, f"{repair.table} is not captured", "Run `penstock status` to see why.")
                elif self._repair_tries.setdefault(repair.id, Tries()).due():
                    self._repair(repairs, repair, table)
            self._note_success("repair")

    def _repair(self, repairs: Repairs, repair: Repair, table: RunningTable) -> None:
        try:
            with self._jobs.tagged():
                self._repairer().run(repair, table)
        except Exception as error:
            if is_spark_lost(error):
                raise spark_lost_error() from error
            if error_action(error, of_table=True) is not ErrorAction.LIMITED:
                raise
            tries, doing = self._repair_tries[repair.id], f"the repair of {repair.table}"
            self._errors.report(doing, error, tries, ErrorAction.LIMITED)
            if tries.spent:
                failure = explained(doing, error)
                repairs.failed(repair, failure.message, failure.hint)

    def _repairer(self) -> Repairer:
        database = require_database(self._record())
        spark = self._store.spark
        return Repairer(self._home, self._catalog, spark, self._source, database, self._report, self._stop)

    def _report(self, text: str) -> None:
        self._progress(Event.of_source(self._source, text))

    # -- compaction -------------------------------------------------------------------------------------------------

    def _compact_until_stopped(self) -> None:
        compactor = Compactor(self._store, self._report)
        counts = RowCounts(_COMPACTION_SECONDS, self._report)
        while not self._stop.wait(_COMPACTION_SECONDS):
            tables = self._tables
            compactor.forget_all_but(tables)
            for table in tables:
                if not self._stop.is_set():
                    with self._jobs.tagged():
                        compactor.compact_if_due(table, rewrite=short_of_space(self._home) is None)
            with self._jobs.tagged():
                counts.count(tables)
            self._note_success("upkeep")

    # -- apply ------------------------------------------------------------------------------------------------------

    def _apply_until_stopped(self) -> None:
        applied, checked = Lsn.ZERO, 0.0
        with closing(self._log.reader()) as log:
            while not self._stop.is_set():
                durable = log.wait(applied, 0.5).durable
                if durable <= applied and time.monotonic() < checked + _ERRORS_SECONDS:
                    continue
                started = checked = time.monotonic()
                # with the options that were set before these changes arrived
                self._log = self._catalog.log(self._source)
                logged = log.tables()
                pending = [table for table in self._tables if self._is_behind(table, log, logged, durable)]
                if pending:
                    require_space(self._home)
                self._applying.round(partial(self._apply, durable=durable, logged=logged), pending)
                self._note_success("apply")
                applied = durable
                cost = time.monotonic() - started
                if pending:
                    APPLY_ROUND_SECONDS.labels(self._source).observe(cost)
                self._stop.wait(pause_after(cost, self._rest))

    def _is_behind(
        self, table: RunningTable, log: ChangeLogReader, logged: dict[TableName, LoggedTable], durable: Lsn
    ) -> bool:
        """Whether a table may have work for apply: changes or an error in the log, or no round yet."""
        known = logged.get(table.record.upstream)
        if table.at is None or known is None or not table.tries.due():
            return False
        if table.applied is None or known.error is not None:
            return True
        with suppress(HistoryExpiredError):  # only for a failed table, which retains no history
            if durable > table.applied and not log.extent(table.record.upstream, table.applied, durable).chunks:
                table.applied = durable
        return durable > table.applied

    def _apply(self, table: RunningTable, durable: Lsn, logged: dict[TableName, LoggedTable]) -> None:
        """Apply the log to one table, up to the durable frontier or to just before the table's error."""
        if self._stop.is_set() or table.at is None or table.record.upstream not in logged:
            return
        known = logged[table.record.upstream]
        error = known.error
        failed = error is None and table.state() is TableState.FAILED
        if failed and not self._may_retry(table):  # it waits for a repair or resnapshot
            return
        upto = durable if error is None else Lsn(min(durable, error.lsn - 1))
        if not table.writing.acquire(blocking=False):  # its turn comes in the next round
            return
        try:
            with self._errors.of(table, "applying"):
                if not table.gone:
                    before, started = table.at, time.monotonic()
                    self._merge(table, table.advanced(table.at, durable), upto, known)
                    table.applied = upto
                    if table.at is not before:
                        MERGE_SECONDS.labels(self._source).observe(time.monotonic() - started)
                    if failed:
                        table.revive()
        finally:
            table.writing.release()
        tried = table.tries.spent or not table.tries.count
        if error is not None and tried and table.state() is not TableState.FAILED:
            self._fail(table, error)

    def _may_retry(self, table: RunningTable) -> bool:
        """Whether to retry a failed table: once after each change of the options for rejected messages."""
        if not table.captured.refuses() or self._log == table.tried:
            return False
        table.tried = self._log
        return True

    def _merge(self, table: RunningTable, at: State, upto: Lsn, logged: LoggedTable) -> None:
        if upto <= at.position:
            return
        if (messages := message_tables(self._log)) is not None:
            messages.apply(self._store.spark, table, at, upto)
            self.merges += 1
            return
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            message = f"{self._source}: {table.record.upstream} has new columns"
            self._progress(Event(message, "columns_added", source=self._source, table=table.record.upstream))
            table.base.evolve(schema)
        change = self._store.net_change(self._log, schema, at.position, upto)
        if change is not None:
            table.base.merge(change.net, upto, change.contents)
            table.load_state()
            self.merges += 1

    def _fail(self, table: RunningTable, error: PenstockError) -> None:
        table.fail(error)
        fields = {"source": self._source, "table": table.record.upstream}
        self._progress(Event(f"{self._source}: {error.message}", "table_failed", "error", **fields))


def _release(table: RunningTable) -> bool:
    """Release a table if its current merge ends soon; a snapshot may take hours."""
    if not table.writing.acquire(timeout=_RELEASE_SECONDS):
        return False
    table.gone = True
    table.writing.release()
    return True


_VARIABLE = "PENSTOCK_APPLY_REST"
_REST = 3.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


def apply_rest() -> float:
    """Return the rest of apply after a round, as a multiple of the round's duration."""
    text = os.environ.get(_VARIABLE, "")
    try:
        rest = float(text) if text else _REST
    except ValueError:
        rest = -1.0
    if not 0 <= rest < float("inf"):
        message = f"invalid value {text!r} of {_VARIABLE}: expected a non-negative number"
        raise UsageError(
            message, f"Set it to the rest of apply as a multiple of a round's duration; default {_REST:g}."
        )
    return rest


def pause_after(seconds: float, rest: float) -> float:
    """Return the pause after a round of this duration, in seconds."""
    return min(max(rest * seconds, _SHORTEST_PAUSE), _LONGEST_PAUSE)
