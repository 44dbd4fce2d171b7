"""Repair: selected rows of a live table are read again from upstream, in watermark windows, and replaced.

::

    begin ─▶ position A ─▶ windows over the selected rows ─▶ B, the HIGH of the last
    the log of (A, P] overlaid on the rows that were read, P ≥ B  =  these rows at P
    compared with the live table at P ─▶ differences, and the log that is not applied yet ─▶ one commit at P

Capture and apply continue meanwhile. Rows are selected by key, by a condition, or all. A condition selects keys: of
rows that match upstream, and of rows that match in the live table. Rows deleted upstream are removed. Only differing
rows are written; their number is part of the record in the catalog.

A table that failed because its base table lacks a row is restored this way, without a new snapshot.

A repair can be requested from any process (`request_repair`, `wait_for_repair`); the process that runs the home
executes it.
"""

from __future__ import annotations

import getpass
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.repairs import Repair, Repairs, RepairState
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.changelog.interface import ChangeLog
from penstock.engine.as_of import reached
from penstock.engine.catalog_records import instance_of, require_database
from penstock.engine.incremental_snapshot import KeyRanges, frame
from penstock.engine.table import RunningTable
from penstock.engine.table_errors import translated_errors
from penstock.engine.table_names import named_source, named_table
from penstock.errors import DefiniteError, HistoryExpiredError, TransientError, UsageError
from penstock.event_log import Event
from penstock.layout import repair_path
from penstock.positions import Lsn
from penstock.sources.database import Database, Key, Windows, key_of
from penstock.sources.produced_table import ProducedTable
from penstock.spark.worker_errors import brief
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.columns import column, without_columns
from penstock.tables.compare import changed_keys
from penstock.tables.live_table import live_table
from penstock.tables.log_tail import read_tail
from penstock.tables.repair import (
    overlay_tail,
    repair_tail,
    rows_with_keys,
    tail_of_keys,
    tail_without_keys,
    unresolved_moves,
)

__all__ = ["Repairer", "request_repair", "wait_for_repair"]

_MOST_KEYS = 200_000


@dataclass(frozen=True)
class _Read:
    """The rows read from upstream, each as of a position between `low` and `high`; `keys` is None for all rows."""

    rows: DataFrame
    count: int
    keys: DataFrame | None
    low: Lsn
    high: Lsn


class Repairer:
    """Repairs rows of the tables of one source."""

    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        spark: SparkSession,
        source: str,
        database: Database,
        report: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._home = home
        self._spark = spark
        self._database = database
        self._log: ChangeLog = catalog.log(source)
        self._repairs = Repairs(catalog)
        self._report = report
        self._stop = stop

    def run(self, repair: Repair, table: RunningTable) -> None:
        """Execute one repair; record the error if it is impossible."""
        try:
            with translated_errors("the repair", self._database), self._history_kept(repair):
                self._repair(repair, table)
        except (DefiniteError, UsageError, HistoryExpiredError) as error:
            self._repairs.failed(repair, error.message, error.hint)
            message = f"the repair of {repair.table} failed: {error.message}"
            self._report(Event(message, "repair_failed", table=repair.table, repair=repair.id))
        finally:
            shutil.rmtree(repair_path(self._home, repair.source, repair.id), ignore_errors=True)

    def _repair(self, repair: Repair, table: RunningTable) -> None:
        if table.at is None:
            message = f"{repair.table} cannot be repaired: its snapshot is not complete"
            raise DefiniteError(message, "Run `penstock status` to see its progress.")
        captured = table.captured.with_logged_columns(table.at.schema)
        if not captured.table_schema().key:
            message = f"keyless table {repair.table} cannot be repaired by row"
            raise DefiniteError(message, f"Resnapshot it: ALTER SOURCES {repair.source} RETRY TABLE {repair.table};")
        self._report(Event(f"repairing {repair.table}", "repair_started", table=repair.table, repair=repair.id))
        with closing(self._database.windows(captured, uuid.uuid4().hex)) as windows:
            low = windows.begin(self._report, self._stop)
            self._keep_history(repair, low)
            found = self._read(repair, table, captured, windows, low)
            self._replace_until_settled(repair, table, windows, found)

    def _replace_until_settled(
        self, repair: Repair, table: RunningTable, windows: Windows, found: _Read | None
    ) -> None:
        """Replace the rows that differ; read rows that changed their key meanwhile once more, until none is left."""
        read = changed = 0
        low = found.low if found is not None else Lsn.ZERO
        while found is not None:
            with table.writing:
                upto = self._reached(table, windows, found.high)
                if upto is None:
                    return
                done, moved = self._replace(table, windows, found, upto)
            read, changed = read + found.count, changed + done
            if not moved:
                self._repairs.done(repair, low, found.high, read, changed)
                message = f"{repair.table} is repaired: {read:,} rows read, {changed:,} changed"
                about = Event(
                    message, "repair_complete", table=repair.table, repair=repair.id, rows=read, changed=changed
                )
                self._report(about)
                return
            found = self._read_keys(windows, sorted(moved), windows.begin(self._report, self._stop))

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(
        self, repair: Repair, table: RunningTable, captured: ProducedTable, windows: Windows, low: Lsn
    ) -> _Read | None:
        """Read the selected rows from upstream; return None if `stop` is set."""
        if "all" in repair.chosen:
            return self._read_all(repair, captured, windows, low)
        keys = self._chosen(repair, table, windows)
        if len(keys) > _MOST_KEYS:
            message = f"{len(keys):,} rows of {repair.table} are selected; the limit is {_MOST_KEYS:,}"
            raise UsageError(message, "Select fewer rows, or repair the whole table (--all).")
        return self._read_keys(windows, keys, low)

    def _read_keys(self, windows: Windows, keys: list[Key], low: Lsn) -> _Read:
        window = windows.read_keys(keys)
        values = windows.key_values(keys)
        # under a case-insensitive collation, 'a' may match 'A'
        found = pa.concat_tables([values, window.rows.select(values.column_names)])
        keyed = frame(self._spark, found).distinct()
        return _Read(frame(self._spark, window.rows), len(window.rows), keyed, low, window.high)

    def _chosen(self, repair: Repair, table: RunningTable, windows: Windows) -> list[Key]:
        if "keys" in repair.chosen:
            return sorted({tuple(key) for key in repair.chosen["keys"]})
        where = str(repair.chosen["where"])
        return sorted({*windows.find_keys(where), *self._chosen_in_live_table(table, where)})

    def _chosen_in_live_table(self, table: RunningTable, where: str) -> Iterator[Key]:
        """Yield the keys of rows in the live table that match the condition, which Spark must support as well."""
        if table.at is None:
            return
        with closing(self._log.reader()) as log:
            durable = log.frontiers().durable
        names = table.at.schema.key
        try:
            rows = self._live(table, table.advanced(table.at, durable), durable).where(where)
            found = rows.select(*map(column, names)).limit(_MOST_KEYS + 1).toArrow().to_pylist()
        except PySparkException as error:
            message = f"Spark does not accept the condition: {brief(error)}"
            raise UsageError(message, "Write a condition that is valid both upstream and in Spark SQL.") from error
        yield from (key_of(row, names) for row in found)

    def _read_all(self, repair: Repair, captured: ProducedTable, windows: Windows, low: Lsn) -> _Read | None:
        path = repair_path(self._home, repair.source, repair.id).absolute()
        staged = DeltaBaseTable(self._spark, str(path), captured.table_schema())
        staged.create(frame(self._spark, staged.schema.columns.empty_table()), low, window=uuid.uuid4().hex)
        ranges = KeyRanges(self._spark, windows, staged, self._database.options.chunk_rows)
        last = ranges.copy_next(None)
        while last.upto is not None:
            if self._stop.is_set():
                return None
            last = ranges.copy_next(last)
        return _Read(staged.current(), last.rows, None, low, last.high)

    # -- replacing --------------------------------------------------------------------------------------------------

    def _replace(self, table: RunningTable, windows: Windows, found: _Read, upto: Lsn) -> tuple[int, set[Key]]:
        """Replace rows of the table at `upto` with those that were read, overlaid with the changes since.

        Return the number of rows that differed, and the keys of rows that are left because they had another key before.
        """
        at = self._current_state(table, upto)
        schema = table.base.schema
        later = read_tail(self._spark, self._log, schema, found.low, upto)
        if found.keys is not None:
            later = tail_of_keys(later, found.keys, schema)
        moved = {key_of(row, schema.key) for row in unresolved_moves(later, schema)}
        left = frame(self._spark, windows.key_values(sorted(moved)))
        expected = overlay_tail(table.base.widened(found.rows), tail_without_keys(later, left, schema), schema)
        live = self._live(table, at, upto)
        if found.keys is not None:
            live = rows_with_keys(live, found.keys, schema)
        expected, live = (rows_with_keys(side, left, schema, "left_anti") for side in (expected, live))
        # a column that was dropped upstream is null in the rows that were read, and keeps its value in unchanged rows
        compared, others = (without_columns(side, windows.absent) for side in (expected, live))
        changed = changed_keys(compared, others, schema).localCheckpoint()
        count = changed.count()
        failed = table.state() is TableState.FAILED
        if count or failed:
            tail = read_tail(self._spark, self._log, schema, at.position, upto)
            net = repair_tail(tail, rows_with_keys(expected, changed, schema), changed, schema)
            table.base.merge(net.net, upto, net.contents)
            table.load_state()
            _require_commit(table, upto)
        if failed:  # the commit contains all changes in the log
            table.revive()
        return count, moved

    def _reached(self, table: RunningTable, windows: Windows, high: Lsn) -> Lsn | None:
        """Wait until the log has reached the end of a window and is after the table's position, which must advance."""
        table.load_state()  # apply has continued, and another process may have changed the base table
        if table.at is not None and table.at.position >= high:
            high = windows.read_keys([]).high
        return reached(self._log, high, self._stop)

    def _current_state(self, table: RunningTable, upto: Lsn) -> State:
        """Return the state of the base table, with the columns that the table has at `upto`."""
        with closing(self._log.reader()) as log:
            logged = log.tables()[table.record.upstream]
        if logged.error is not None:
            raise logged.error
        if table.at is None or table.gone:
            message = f"{table.record.upstream} was dropped or captured again during the repair"
            raise DefiniteError(message, "Run `penstock status` to see its state.")
        at = table.advanced(table.at, upto)
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            table.base.evolve(schema)
            table.load_state()
            at = table.advanced(table.at, upto)
        return at

    def _live(self, table: RunningTable, at: State, upto: Lsn) -> DataFrame:
        path = Path(table.base.path)
        return live_table(self._spark, self._log, path, at, table.base.schema, upto, damaged=True)

    # -- around it --------------------------------------------------------------------------------------------------

    def _keep_history(self, repair: Repair, low: Lsn) -> None:
        with closing(self._log.reader()) as log:
            log.set_lease(f"repair {repair.id}", low)

    @contextmanager
    def _history_kept(self, repair: Repair) -> Iterator[None]:
        try:
            yield
        finally:
            with suppress(TransientError), closing(self._log.reader()) as log:
                log.set_lease(f"repair {repair.id}", None)


def _require_commit(table: RunningTable, upto: Lsn) -> None:
    """Raise if the base table did not advance: Delta skips such a commit, so nothing was replaced."""
    if table.at is None or table.at.position < upto:
        message = f"the repair of {table.record.upstream} was not committed"
        raise TransientError(message)


_POLL_SECONDS = 0.2


def request_repair(
    catalog: Catalog, source: str, table: str, keys: Sequence[Any] | None, where: str | None, *, everything: bool
) -> Repair:
    """Record a request to repair rows of a table: those with the given keys, those that match a condition, or all."""
    record = _readable_table(catalog, source, table)
    if (keys is not None) + (where is not None) + everything != 1:
        message = "a repair requires exactly one of keys, a condition, and all rows"
        raise UsageError(message, "Specify keys, or a condition, or all rows.")
    names = _key(catalog, record)
    chosen: dict[str, Any] = {"all": True} if everything else {"where": where}
    if keys is not None:
        chosen = {"keys": [key_of(key, names) for key in keys]}
    return Repairs(catalog).ask(source, record.upstream, chosen, _who())


def wait_for_repair(catalog: Catalog, repair: Repair, is_running: Callable[[], bool]) -> Repair:
    """Wait until a repair is done; raise its error if it fails."""
    while True:
        running = is_running()
        found = Repairs(catalog).get(repair.id)
        if found.state is RepairState.DONE:
            return found
        if found.state is RepairState.FAILED:
            raise DefiniteError(found.error or "the repair failed", found.hint or "")
        if not running:
            message = f"the repair of {repair.table} is pending: no process runs this home any more"
            raise TransientError(message, "The next run executes it: penstock run")
        time.sleep(_POLL_SECONDS)


def _readable_table(catalog: Catalog, source: str, table: str) -> TableRecord:
    record = named_table(catalog, source, table)
    if record.state not in (TableState.LIVE, TableState.FAILED):
        message = f"{record.upstream} cannot be repaired: it is {record.state}"
        raise UsageError(message, "Try again when `penstock status` shows it as live.")
    return record


def _key(catalog: Catalog, table: TableRecord) -> tuple[str, ...]:
    record = named_source(catalog, table.source)
    require_database(record)
    tables = {captured.name: captured for captured in instance_of(record).produced()}
    key = tables[table.upstream].table_schema().key if table.upstream in tables else ()
    if not key:
        message = f"keyless table {table.upstream} cannot be repaired by row"
        raise UsageError(message, f"Resnapshot it: ALTER SOURCES {table.source} RETRY TABLE {table.upstream};")
    return key


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
