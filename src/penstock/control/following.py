"""Copy and apply: what keeps the base tables of one source close behind its log.

::

    pending tables ─▶ copied (see `copying`, `chunking`) ─▶ live
    live tables ─▶ (position, durable] of the log ─▶ folded, merged, position in the same commit ─▶ again
    their files ─▶ put in order from time to time (see `upkeeping`)

All go on side by side, each in a thread of its own: tables that are live do not wait for those that are copied, nor
for one that somebody else has in hand. A table that nothing has happened to costs apply one question to the log.

The position of a table is in its own Delta commits. The catalog only notes which version shows which position, for
live views to choose from; those notes are facts that do not change, and are made good after a crash.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.catalog.repairs import Repairs
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, SourceRecord
from penstock.changelog.interface import ChangeLogReader, LoggedTable
from penstock.control.beginning import begin
from penstock.control.chunking import ChunkedCopy
from penstock.control.copying import ParallelCopy
from penstock.control.followed import FollowedTable, Progress
from penstock.control.pace import apply_rest, pause_after
from penstock.control.recorded import database_instance_of, database_spec_of, instance_of
from penstock.control.repairing import Repairing
from penstock.control.side_by_side import side_by_side
from penstock.control.topic_applying import TopicApply
from penstock.control.upkeeping import Upkeeping
from penstock.errors import DefiniteError, HistoryGone, PenstockError, TableError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.postgres.options import Snapshot
from penstock.spark.boundary import brief
from penstock.spark.session import is_alive
from penstock.tables.base_state import State
from penstock.tables.tail import read_tail

__all__ = ["Follower"]

_SIDE_BY_SIDE = 2
_RETRY_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_LET_GO_SECONDS = 5.0
_LAST_BREATH_SECONDS = 10.0
_KEEP_SECONDS = 5.0
_ERRORS_SECONDS = 2.0
"""Tables can end without a transaction."""


class Follower:
    """Copies and applies the tables of one source, in threads of its own."""

    def __init__(self, home: Path, catalog: Catalog, source: str, spark: SparkSession, progress: Progress) -> None:
        self._home = home
        self._catalog = catalog
        self._source = source
        self._spark = spark
        self._progress = progress
        self._rest = apply_rest()
        self._tables: list[FollowedTable] = []
        self._away: set[TableName] = set()
        """Tables that were let go and not yet taken back: what the catalog says of them is about to change."""
        self._renewing = threading.Lock()
        self.renew()
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, f"penstock-{source}")
        self.failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._keep_doing, args=(work,), name=f"penstock-{name}-{source}", daemon=True)
            for name, work in (
                ("copy", self._copy_until_stopped),
                ("apply", self._apply_until_stopped),
                ("repair", self._repair_until_stopped),
                ("upkeep", self._keep_until_stopped),
            )
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Finish the merges in hand, and stop."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._pool.shutdown()

    def renew(self) -> None:
        """Take over which tables are captured, and how, from the catalog; what is in hand goes on."""
        with self._renewing:
            instance = instance_of(self._record())
            self._log = self._catalog.log(self._source)
            records = {record.upstream: record for record in self._catalog.tables(self._source)}
            known = {(table.record.upstream, table.captured.generation): table for table in self._tables}
            found = []
            for captured in (table for table in instance.produced() if table.name not in self._away):
                table = known.get((captured.name, captured.generation))
                if table is None:
                    table = FollowedTable(self._home, self._catalog, records[captured.name], captured, self._spark)
                table.captured = captured
                found.append(table)
            self._tables = found

    def let_go(self, names: Collection[TableName]) -> set[TableName]:
        """Do nothing more for these tables until `take_back`; return those of which nothing is in hand.

        The others, which are being copied, stay as they are.
        """
        with self._renewing:
            going = [table for table in self._tables if table.record.upstream in names]
            busy = {table.record.upstream for table in going if not _let_go(table)}
            self._tables = [table for table in self._tables if not table.gone]
            self._away = set(names) - busy
            return self._away

    def take_back(self) -> None:
        """Follow again what is captured by now."""
        with self._renewing:
            self._away = set()
        self.renew()

    def _record(self) -> SourceRecord:
        record = self._catalog.source(self._source)
        if record is None:
            message = f"there is no source {self._source}"
            raise DefiniteError(message, "See `penstock status`.")
        return record

    def _keep_doing(self, work: Callable[[], None]) -> None:
        """Do it until told to stop; after a transient error, again."""
        while not self._stop.is_set():
            try:
                work()
            except BaseException as error:
                if is_alive() and isinstance(error, TransientError):
                    self._progress(f"{self._source}: {error.message}; trying again")
                    self._stop.wait(_RETRY_SECONDS)
                    continue
                self.failure = _dead_spark() if self._lost_spark(error) else error
                return

    def _lost_spark(self, error: BaseException) -> bool:
        """Whether Spark is gone: its connection breaks a moment before its process has ended."""
        broken = isinstance(error, Py4JError | OSError | EOFError)
        give_up = time.monotonic() + (_LAST_BREATH_SECONDS if broken else 0.0)
        while is_alive() and time.monotonic() < give_up:
            time.sleep(_LOOK_SECONDS)
        return not is_alive()

    # -- the first copy ---------------------------------------------------------------------------------------------

    def _copy_until_stopped(self) -> None:
        looked_up: list[FollowedTable] = []
        while not self._stop.is_set():
            if self._pending():
                self.renew()
            tables = self._tables
            side_by_side(self._pool, self._look_up, [table for table in tables if table not in looked_up])
            looked_up = tables
            pending = self._pending()
            if pending:
                self._copy(pending)
            self._stop.wait(_LOOK_SECONDS)

    def _pending(self) -> list[FollowedTable]:
        """Return the tables that have no whole copy yet."""
        states = {record.upstream: record.state for record in self._catalog.tables(self._source)}
        waiting = [name for name, state in states.items() if state is TableState.PENDING]
        return [table for table in self._tables if table.record.upstream in waiting and not table.gone]

    def _look_up(self, table: FollowedTable) -> None:
        with table.writing:
            table.look_up()

    def _copy(self, pending: list[FollowedTable]) -> None:
        record = self._record()
        if not instance_of(record).copies():
            begin(self._spark, self._log, pending, self._stop)
            return
        spec, instance = database_spec_of(record), database_instance_of(record)
        if instance.snapshot is Snapshot.CHUNKED:
            ChunkedCopy(self._spark, instance, self._log, self._progress, self._stop).run(pending)
            return
        ParallelCopy(self._spark, spec, instance, self._log, self._progress, self._stop).run(pending)

    # -- repair -----------------------------------------------------------------------------------------------------

    def _repair_until_stopped(self) -> None:
        repairs = Repairs(self._catalog)
        while not self._stop.wait(_LOOK_SECONDS):
            for repair in repairs.waiting(self._source):
                table = next((table for table in self._tables if table.record.upstream == repair.table), None)
                if table is None:
                    repairs.failed(repair, f"{repair.table} is not captured", "See `penstock status`.")
                else:
                    self._repairing().run(repair, table)

    def _repairing(self) -> Repairing:
        instance = database_instance_of(self._record())
        return Repairing(self._home, self._catalog, self._spark, instance, self._tell, self._stop)

    def _tell(self, text: str) -> None:
        self._progress(f"{self._source}: {text}")

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def _keep_until_stopped(self) -> None:
        upkeeping = Upkeeping(self._spark, self._tell)
        while not self._stop.wait(_KEEP_SECONDS):
            tables = self._tables
            upkeeping.forget_all_but(tables)
            for table in tables:
                if not self._stop.is_set():
                    upkeeping.look_after(table)

    # -- apply ------------------------------------------------------------------------------------------------------

    def _apply_until_stopped(self) -> None:
        seen, looked = Lsn.ZERO, 0.0
        with closing(self._log.reader()) as log:
            while not self._stop.is_set():
                durable = log.wait(seen, 0.5).durable
                if durable <= seen and time.monotonic() < looked + _ERRORS_SECONDS:
                    continue
                started = looked = time.monotonic()
                self._log = self._catalog.log(self._source)  # options that were set before these changes came hold
                logged = log.tables()
                behind = [table for table in self._tables if self._is_behind(table, log, logged, durable)]
                side_by_side(self._pool, partial(self._apply, durable=durable, logged=logged), behind)
                seen = durable
                cost = time.monotonic() - started
                self._stop.wait(pause_after(cost, self._rest))

    def _is_behind(
        self, table: FollowedTable, log: ChangeLogReader, logged: dict[TableName, LoggedTable], durable: Lsn
    ) -> bool:
        """Whether there may be something to do for a table: changes, an error; or nobody has looked at it yet."""
        known = logged.get(table.record.upstream)
        if table.at is None or known is None:
            return False
        if table.applied is None or known.error is not None:
            return True
        with suppress(HistoryGone):  # only of one that failed, which holds no history
            if durable > table.applied and not log.extent(table.record.upstream, table.applied, durable).chunks:
                table.applied = durable
        return durable > table.applied

    def _apply(self, table: FollowedTable, durable: Lsn, logged: dict[TableName, LoggedTable]) -> None:
        """Bring one table to the durable frontier, or to just before its error."""
        if self._stop.is_set() or table.at is None or table.record.upstream not in logged:
            return
        known = logged[table.record.upstream]
        error = known.error
        failed = error is None and table.state() is TableState.FAILED
        if failed and not self._may_go_on(table):  # it waits to be repaired, or captured anew
            return
        upto = durable if error is None else Lsn(min(durable, error.lsn - 1))
        if not table.writing.acquire(blocking=False):  # its turn comes in the next round
            return
        try:
            if not table.gone:
                self._merge(table, table.stands(table.at, durable), upto, known)
                table.applied = upto
                if failed:
                    table.revive()
        except (TableError, HistoryGone) as ended:
            self._fail(table, ended)
            return
        except (PySparkException, Py4JError) as broken:
            if not self._stop.is_set():
                message = f"applying {table.record.upstream} broke off: {brief(broken)}"
                raise TransientError(message) from broken
        finally:
            table.writing.release()
        if error is not None and table.state() is not TableState.FAILED:
            self._fail(table, error)

    def _may_go_on(self, table: FollowedTable) -> bool:
        """Whether a table that failed is to be tried again: once with each way to treat what it refuses."""
        if not table.captured.refuses() or self._log == table.tried:
            return False
        table.tried = self._log
        return True

    def _merge(self, table: FollowedTable, at: State, upto: Lsn, logged: LoggedTable) -> None:
        if upto <= at.position:
            return
        if isinstance(self._log, TopicLog):
            TopicApply(self._spark, self._log, table).merge(at, upto)
            return
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            self._progress(f"{self._source}: {table.record.upstream} has gained columns")
            table.base.evolve(schema)
        tail = read_tail(self._spark, self._log, schema, at.position, upto)
        if tail is not None:
            table.base.merge(tail.net, upto, tail.contents)
            table.look_up()

    def _fail(self, table: FollowedTable, error: PenstockError) -> None:
        table.fail(error)
        self._progress(f"{self._source}: {error.message}")


def _let_go(table: FollowedTable) -> bool:
    """Wait a moment for a merge to end; a copy may take hours."""
    if not table.writing.acquire(timeout=_LET_GO_SECONDS):
        return False
    table.gone = True
    table.writing.release()
    return True


def _dead_spark() -> TransientError:
    said = "Spark's JVM has ended: nothing is applied any more"
    return TransientError(said, "Start again; nothing is lost, and it goes on where it was.")
