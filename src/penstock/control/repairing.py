"""Repair: chosen rows of a live table are read anew upstream, in windows, and put right beside the running stream.

::

    begin ─▶ position A ─▶ windows over the chosen rows ─▶ B, the HIGH of the last
    the log of (A, P] laid over what was read, P ≥ B  =  what these rows are at P
    compared with the live table at P ─▶ what differs, and the log that the table has not taken in ─▶ one commit at P

Rows are chosen by key, by a condition, or all. With a condition it is the keys that count: of rows for which it holds
upstream, and of rows for which it holds in the live table. Rows that are absent upstream go. Only what differs is
written; how many rows that were is part of the record that stays in the catalog.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.repairs import Repair, Repairs
from penstock.catalog.store import Catalog
from penstock.changelog.interface import ChangeLog
from penstock.control.followed import FollowedTable
from penstock.control.key_ranges import KeyRanges, frame
from penstock.control.reaching import reached
from penstock.errors import DefiniteError, HistoryGone, TransientError, UsageError
from penstock.layout import repair_path
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.connection import connection_error
from penstock.sources.postgres.keys import Key, key_of
from penstock.sources.postgres.spec import PostgresInstanceConfig
from penstock.sources.postgres.windows import Windows
from penstock.spark.boundary import brief, delivering
from penstock.tables.base import BaseTable, State
from penstock.tables.changed import changed_keys
from penstock.tables.columns import column
from penstock.tables.live import live_table
from penstock.tables.put_right import laid_over, of_keys, put_right, unresolved
from penstock.tables.tail import read_tail
from penstock.tables.widen import widened

__all__ = ["Repairing"]

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
            with self._told(), delivering(), self._history_kept(repair):
                self._repair(repair, table)
        except (DefiniteError, UsageError, HistoryGone) as error:
            self._repairs.failed(repair, error.message, error.remedy)
            self._tell(f"the repair of {repair.table} failed: {error.message}")
        finally:
            shutil.rmtree(repair_path(self._home, repair.source, repair.id), ignore_errors=True)

    def _repair(self, repair: Repair, table: FollowedTable) -> None:
        if table.at is None:
            message = f"{repair.table} has no whole copy to repair"
            raise DefiniteError(message, "See `penstock status`.")
        captured = table.captured.grown(table.at.schema)
        if not captured.key:
            message = f"{repair.table} has no key by which rows could be repaired"
            raise DefiniteError(message, f"Copy it afresh: ALTER SOURCES {repair.source} RETRY TABLE {repair.table};")
        self._tell(f"repairing {repair.table}")
        with closing(Windows(self._instance, captured, uuid.uuid4().hex)) as windows:
            low = windows.begin(self._tell, self._stop)
            self._keep_history(repair, low)
            found = self._read(repair, table, captured, windows, low)
        upto = reached(self._log, found.high, self._stop) if found is not None else None
        if found is not None and upto is not None:
            with table.writing:
                changed = self._put_right(table, found, captured, upto)
            self._repairs.done(repair, found.low, found.high, found.count, changed)
            self._tell(f"{repair.table} is repaired: {found.count:,} rows read, {changed:,} changed")

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
        window = windows.keyed(keys)
        names = list(captured.key)
        asked = pa.concat_tables([windows.key_values(keys), window.rows.select(names)])  # 'a' may find 'A'
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
            found = rows.select(*map(column, names)).limit(_MOST_KEYS + 1).collect()
        except PySparkException as error:
            message = f"Spark does not take this condition: {brief(error)}"
            raise UsageError(message, "Write it so that both Postgres and Spark SQL do.") from error
        yield from (key_of(list(row), names) for row in found)

    def _read_all(self, repair: Repair, captured: CapturedTable, windows: Windows, low: Lsn) -> _Read | None:
        path = repair_path(self._home, repair.source, repair.id).absolute()
        staged = BaseTable(self._spark, str(path), captured.table_schema())
        staged.create(frame(self._spark, staged.schema.columns.empty_table()), low, window=uuid.uuid4().hex)
        ranges = KeyRanges(self._spark, windows, staged, self._instance.chunk_rows)
        last = ranges.copy_next(None)
        while last.upto is not None:
            if self._stop.is_set():
                return None
            last = ranges.copy_next(last)
        return _Read(staged.current(), last.rows, None, low, last.high)

    # -- putting right ----------------------------------------------------------------------------------------------

    def _put_right(self, table: FollowedTable, found: _Read, captured: CapturedTable, upto: Lsn) -> int:
        """Make of the table at `upto` what was read, with what happened since; return how many rows that changed."""
        at = self._standing(table, upto)
        schema = table.base.schema
        rows = widened(self._spark, found.rows, list(schema.columns)[len(captured.columns) :])
        later = read_tail(self._spark, self._log, schema, found.low, upto)
        if later is not None and later.contents.unchanged and later.contents.moved:
            missing = unresolved(later, schema)
            if not (missing if found.keys is None else of_keys(missing, found.keys, schema)).isEmpty():
                message = f"a row of {table.record.upstream} changed its key while it was read"
                raise TransientError(message)
        right = laid_over(rows, later, schema)
        live = self._live(table, at, upto)
        if found.keys is not None:
            right, live = (of_keys(side, found.keys, schema) for side in (right, live))
        changed = changed_keys(right, live, schema).localCheckpoint()
        count = changed.count()
        if count:
            tail = read_tail(self._spark, self._log, schema, at.position, upto)
            net = put_right(tail, of_keys(right, changed, schema), changed, schema)
            table.base.merge(net.net, upto, net.contents)
            table.look_up()
        return count

    def _standing(self, table: FollowedTable, upto: Lsn) -> State:
        """Say where the table stands, with the columns that it has at `upto`."""
        with closing(self._log.reader()) as log:
            logged = log.tables()[table.record.upstream]
        if logged.error is not None:
            raise logged.error
        if table.at is None:
            message = f"{table.record.upstream} is copied afresh"
            raise TransientError(message)
        at = table.stands(table.at, upto)
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            table.base.evolve(schema)
            table.look_up()
            at = table.stands(table.at, upto)
        return at

    def _live(self, table: FollowedTable, at: State, upto: Lsn) -> DataFrame:
        return live_table(self._spark, self._log, Path(table.base.path), at, table.base.schema, upto)

    # -- around it --------------------------------------------------------------------------------------------------

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise connection_error(error, self._instance.connection) from error
        except (PySparkException, Py4JError) as error:
            message = f"the repair broke off: {brief(error)}"
            raise TransientError(message) from error

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
