"""Repair: chosen rows of a live table are read again upstream, in watermark windows, and replaced beside the stream.

::

    begin ─▶ position A ─▶ windows over the chosen rows ─▶ B, the HIGH of the last
    the log of (A, P] overlaid on the rows that were read, P ≥ B  =  these rows at P
    compared with the live table at P ─▶ differences, and the log that is not applied yet ─▶ one commit at P

Rows are chosen by key, by a condition, or all. A condition selects keys: of rows that match upstream, and of rows that
match in the live table. Rows deleted upstream are removed. Only differing rows are written; their number is part of the
record in the catalog.

A table that failed because its base table lacks a row is restored this way, without a new snapshot.

A repair can be requested from any process (`ask_repair`, `wait_for_repair`); the process that runs the home executes
it.
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
from penstock.engine.incremental_snapshot import KeyRanges, frame
from penstock.engine.records import captured_of, database_instance_of
from penstock.engine.table import FollowedTable
from penstock.engine.table_errors import breaking_off
from penstock.engine.table_names import named_source, named_table
from penstock.errors import DefiniteError, HistoryExpiredError, TransientError, UsageError
from penstock.layout import repair_path
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sources.postgres.windows import Key, Windows, key_of
from penstock.spark.boundary import brief
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.columns import column
from penstock.tables.compare import changed_keys
from penstock.tables.live import live_table
from penstock.tables.repaired_rows import laid_over, of_keys, only, put_right, unresolved, without
from penstock.tables.tail import read_tail

__all__ = ["Repairing", "ask_repair", "wait_for_repair"]

_MOST_KEYS = 200_000


@dataclass(frozen=True)
class _Read:
    """What was read upstream, as of some moment between `low` and `high`; `keys` are None for all."""

    rows: DataFrame
    count: int
    keys: DataFrame | None
    low: Lsn
    high: Lsn


class Repairing:
    """Repairs rows of the tables of one source."""

    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        spark: SparkSession,
        instance: PostgresInstanceConfig,
        tell: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self._home = home
        self._spark = spark
        self._instance = instance
        self._log: ChangeLog = catalog.log(instance.source)
        self._repairs = Repairs(catalog)
        self._tell = tell
        self._stop = stop

    def run(self, repair: Repair, table: FollowedTable) -> None:
        """Do one repair; where it cannot be done, note why."""
        try:
            with breaking_off("the repair", self._instance.connection), self._history_kept(repair):
                self._repair(repair, table)
        except (DefiniteError, UsageError, HistoryExpiredError) as error:
            self._repairs.failed(repair, error.message, error.hint)
            self._tell(f"the repair of {repair.table} failed: {error.message}")
        finally:
            shutil.rmtree(repair_path(self._home, repair.source, repair.id), ignore_errors=True)

    def _repair(self, repair: Repair, table: FollowedTable) -> None:
        if table.at is None:
            message = f"{repair.table} has no whole copy to repair"
            raise DefiniteError(message, "See `penstock status`.")
        captured = captured_of(table.captured).grown(table.at.schema)
        if not captured.key:
            message = f"{repair.table} has no key by which rows could be repaired"
            raise DefiniteError(message, f"Copy it afresh: ALTER SOURCES {repair.source} RETRY TABLE {repair.table};")
        self._tell(f"repairing {repair.table}")
        with closing(Windows(self._instance, captured, uuid.uuid4().hex)) as windows:
            low = windows.begin(self._tell, self._stop)
            self._keep_history(repair, low)
            found = self._read(repair, table, captured, windows, low)
            self._mend(repair, table, windows, found)

    def _mend(self, repair: Repair, table: FollowedTable, windows: Windows, found: _Read | None) -> None:
        """Put right what was read; what changed its key meanwhile is read once more, until nothing is left."""
        read = changed = 0
        low = found.low if found is not None else Lsn.ZERO
        while found is not None:
            with table.writing:
                upto = self._reached(table, windows, found.high)
                if upto is None:
                    return
                done, moved = self._put_right(table, windows, found, upto)
            read, changed = read + found.count, changed + done
            if not moved:
                self._repairs.done(repair, low, found.high, read, changed)
                self._tell(f"{repair.table} is repaired: {read:,} rows read, {changed:,} changed")
                return
            found = self._read_keys(windows, sorted(moved), windows.begin(self._tell, self._stop))

    # -- reading ----------------------------------------------------------------------------------------------------

    def _read(
        self, repair: Repair, table: FollowedTable, captured: CapturedTable, windows: Windows, low: Lsn
    ) -> _Read | None:
        """Read the chosen rows upstream; None when told to stop."""
        if "all" in repair.chosen:
            return self._read_all(repair, captured, windows, low)
        keys = self._chosen(repair, table, windows)
        if len(keys) > _MOST_KEYS:
            message = f"{len(keys):,} rows of {repair.table} were chosen, and {_MOST_KEYS:,} can be at once"
            raise UsageError(message, "Choose fewer, or repair the whole table (--all).")
        return self._read_keys(windows, keys, low)

    def _read_keys(self, windows: Windows, keys: list[Key], low: Lsn) -> _Read:
        window = windows.keyed(keys)
        values = windows.key_values(keys)
        asked = pa.concat_tables([values, window.rows.select(values.column_names)])  # 'a' may find 'A'
        keyed = frame(self._spark, asked).distinct()
        return _Read(frame(self._spark, window.rows), len(window.rows), keyed, low, window.high)

    def _chosen(self, repair: Repair, table: FollowedTable, windows: Windows) -> list[Key]:
        if "keys" in repair.chosen:
            return sorted({tuple(key) for key in repair.chosen["keys"]})
        where = str(repair.chosen["where"])
        return sorted({*windows.chosen(where), *self._chosen_here(table, where)})

    def _chosen_here(self, table: FollowedTable, where: str) -> Iterator[Key]:
        """Yield the keys of rows here for which the condition holds, which Spark must understand as well."""
        if table.at is None:
            return
        with closing(self._log.reader()) as log:
            durable = log.frontiers().durable
        names = table.at.schema.key
        try:
            rows = self._live(table, table.stands(table.at, durable), durable).where(where)
            found = rows.select(*map(column, names)).limit(_MOST_KEYS + 1).toArrow().to_pylist()
        except PySparkException as error:
            message = f"Spark does not take this condition: {brief(error)}"
            raise UsageError(message, "Write it so that both Postgres and Spark SQL do.") from error
        yield from (key_of(row, names) for row in found)

    def _read_all(self, repair: Repair, captured: CapturedTable, windows: Windows, low: Lsn) -> _Read | None:
        path = repair_path(self._home, repair.source, repair.id).absolute()
        staged = DeltaBaseTable(self._spark, str(path), captured.table_schema())
        staged.create(frame(self._spark, staged.schema.columns.empty_table()), low, window=uuid.uuid4().hex)
        ranges = KeyRanges(self._spark, windows, staged, self._instance.chunk_rows)
        last = ranges.copy_next(None)
        while last.upto is not None:
            if self._stop.is_set():
                return None
            last = ranges.copy_next(last)
        return _Read(staged.current(), last.rows, None, low, last.high)

    # -- putting right ----------------------------------------------------------------------------------------------

    def _put_right(self, table: FollowedTable, windows: Windows, found: _Read, upto: Lsn) -> tuple[int, set[Key]]:
        """Make of the table at `upto` what was read, with what happened since.

        Return how many rows that changed, and the keys of those that are left, because they had another key before.
        """
        at = self._standing(table, upto)
        schema = table.base.schema
        later = read_tail(self._spark, self._log, schema, found.low, upto)
        if found.keys is not None:
            later = only(later, found.keys, schema)
        moved = {key_of(row, schema.key) for row in unresolved(later, schema)}
        left = frame(self._spark, windows.key_values(sorted(moved)))
        right = laid_over(table.base.widened(found.rows), without(later, left, schema), schema)
        live = self._live(table, at, upto)
        if found.keys is not None:
            live = of_keys(live, found.keys, schema)
        right, live = (of_keys(side, left, schema, "left_anti") for side in (right, live))
        changed = changed_keys(right, live, schema).localCheckpoint()
        count = changed.count()
        failed = table.state() is TableState.FAILED
        if count or failed:
            tail = read_tail(self._spark, self._log, schema, at.position, upto)
            net = put_right(tail, of_keys(right, changed, schema), changed, schema)
            table.base.merge(net.net, upto, net.contents)
            table.look_up()
            _require_commit(table, upto)
        if failed:  # it took in all that the log holds
            table.revive()
        return count, moved

    def _reached(self, table: FollowedTable, windows: Windows, high: Lsn) -> Lsn | None:
        """Wait until the log is at the end of a window, and beyond where the table stands: a commit has to move it."""
        table.look_up()  # somebody else may have changed the lake, and apply has gone on
        if table.at is not None and table.at.position >= high:
            high = windows.keyed([]).high
        return reached(self._log, high, self._stop)

    def _standing(self, table: FollowedTable, upto: Lsn) -> State:
        """Say where the table stands, with the columns that it has at `upto`."""
        with closing(self._log.reader()) as log:
            logged = log.tables()[table.record.upstream]
        if logged.error is not None:
            raise logged.error
        if table.at is None or table.gone:
            message = f"{table.record.upstream} was dropped meanwhile, or is captured anew"
            raise DefiniteError(message, "See `penstock status`.")
        at = table.stands(table.at, upto)
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            table.base.evolve(schema)
            table.look_up()
            at = table.stands(table.at, upto)
        return at

    def _live(self, table: FollowedTable, at: State, upto: Lsn) -> DataFrame:
        path = Path(table.base.path)
        return live_table(self._spark, self._log, path, at, table.base.schema, upto, damaged=True)

    # -- around it --------------------------------------------------------------------------------------------------

    def _keep_history(self, repair: Repair, low: Lsn) -> None:
        with closing(self._log.reader()) as log:
            log.pin(f"repair {repair.id}", low)

    @contextmanager
    def _history_kept(self, repair: Repair) -> Iterator[None]:
        try:
            yield
        finally:
            with suppress(TransientError), closing(self._log.reader()) as log:
                log.pin(f"repair {repair.id}", None)


def _require_commit(table: FollowedTable, upto: Lsn) -> None:
    """Delta passes over a commit that does not move a table: nothing was put right then."""
    if table.at is None or table.at.position < upto:
        message = f"the repair of {table.record.upstream} was not committed"
        raise TransientError(message)


_LOOK_SECONDS = 0.2


def ask_repair(
    catalog: Catalog, source: str, table: str, keys: Sequence[Any] | None, where: str | None, *, everything: bool
) -> Repair:
    """Note that rows of a table shall be put right: with these keys, those for which a condition holds, or all."""
    record = _readable_table(catalog, source, table)
    if (keys is not None) + (where is not None) + everything != 1:
        message = "which rows shall be repaired is not said, or said twice"
        raise UsageError(message, "Give keys, or a condition, or say that all are meant: one of the three.")
    names = _key(catalog, record)
    chosen: dict[str, Any] = {"all": True} if everything else {"where": where}
    if keys is not None:
        chosen = {"keys": [key_of(key, names) for key in keys]}
    return Repairs(catalog).ask(source, record.upstream, chosen, _who())


def wait_for_repair(catalog: Catalog, repair: Repair, is_running: Callable[[], bool]) -> Repair:
    """Wait until it is done; raise the reason why it cannot be."""
    while True:
        running = is_running()
        found = Repairs(catalog).get(repair.id)
        if found.state is RepairState.DONE:
            return found
        if found.state is RepairState.FAILED:
            raise DefiniteError(found.error or "the repair failed", found.hint or "")
        if not running:
            message = f"nobody runs this home any more; the repair of {repair.table} waits"
            raise TransientError(message, "It is done when the home runs again: penstock run")
        time.sleep(_LOOK_SECONDS)


def _readable_table(catalog: Catalog, source: str, table: str) -> TableRecord:
    record = named_table(catalog, source, table)
    if record.state not in (TableState.LIVE, TableState.FAILED):
        message = f"{record.upstream} is {record.state}, so its rows cannot be repaired"
        raise UsageError(message, "Try again when `penstock status` shows it as live.")
    return record


def _key(catalog: Catalog, table: TableRecord) -> tuple[str, ...]:
    tables = database_instance_of(named_source(catalog, table.source)).tables
    key = next((captured.key for captured in tables if captured.name == table.upstream), ())
    if not key:
        message = f"{table.upstream} has no key by which rows could be repaired"
        raise UsageError(message, f"Copy it afresh: ALTER SOURCES {table.source} RETRY TABLE {table.upstream};")
    return key


def _who() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
