"""The loops that keep the tables of one source up to date: snapshot, apply, repair, compaction.

::

    pending tables ─▶ `snapshot` or `incremental_snapshot` ─▶ live
    live tables ─▶ (position, durable] of the log ─▶ folded, merged; the position is in the same commit ─▶ again
    base tables ─▶ `compaction`

Each loop has a thread of its own. Live tables do not wait for tables that are being copied, nor for one that takes long
(`turns`). A table without changes costs one query of the log. An error of one table is recorded with that table, and
the others continue (`table_errors`; `error_policy` decides what each error means).

The position of a table is stored in its own Delta commits. The catalog only notes which version shows which position,
so that live views can choose; these notes never change, and are completed after a crash.

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
from penstock.engine.compaction import Upkeeping
from penstock.engine.error_policy import Recourse, Tries, explained, recourse
from penstock.engine.incremental_snapshot import ChunkedCopy
from penstock.engine.records import database_instance_of, database_spec_of, instance_of
from penstock.engine.repair import Repairing
from penstock.engine.snapshot import ParallelCopy, begin
from penstock.engine.table import FollowedTable, Progress
from penstock.engine.table_errors import Troubles
from penstock.engine.topic_apply import TopicApply
from penstock.engine.turns import Turns
from penstock.errors import DefiniteError, HistoryExpiredError, PenstockError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.postgres.options import Snapshot
from penstock.spark.loss import dead_spark, lost
from penstock.tables.base_state import State
from penstock.tables.interface import TableStore

__all__ = ["Follower", "apply_rest", "pause_after"]

_RETRY_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_LET_GO_SECONDS = 5.0
_KEEP_SECONDS = 5.0
_ERRORS_SECONDS = 2.0
"""Tables can end without a transaction."""
_GRACE_SECONDS = 10.0
"""How long work may take to end when the source stops; then its jobs are cancelled."""


class Follower:
    """Copies and applies the tables of one source, in threads of its own."""

    def __init__(self, home: Path, catalog: Catalog, source: str, store: TableStore, progress: Progress) -> None:
        self._home = home
        self._catalog = catalog
        self._source = source
        self._store = store
        self._progress = progress
        self._rest = apply_rest()
        self._tables: list[FollowedTable] = []
        self._away: set[TableName] = set()
        """Tables that were let go and not yet taken back: what the catalog says of them is about to change."""
        self._renewing = threading.Lock()
        self.renew()
        self._stop = threading.Event()
        self._looking_up = Turns[FollowedTable](f"penstock-look-{source}", self._stop)
        self._applying = Turns[FollowedTable](f"penstock-{source}", self._stop)
        self._jobs = store.jobs(f"penstock-{source}")
        self._troubles = Troubles(home, source, progress, self._stop, self._jobs)
        self._tries = {name: Tries() for name in ("copy", "apply", "repair", "upkeep")}
        self._repair_tries: dict[int, Tries] = {}
        self._shown: PenstockError | None = None
        """What was last shown with the source, because one of the loops fails again and again."""
        self.failure: BaseException | None = None
        """What ended one of the loops for good."""
        self._threads = [
            threading.Thread(target=self._keep_doing, args=(name, work), name=f"penstock-{name}-{source}", daemon=True)
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
        """Finish the merges in hand, and stop; what takes long is cancelled, and begins again at the next start."""
        self._stop.set()
        ending = threading.Thread(target=self._end, name=f"penstock-end-{self._source}", daemon=True)
        ending.start()
        ending.join(_GRACE_SECONDS)
        if ending.is_alive():
            self._tell("cancelling the Spark jobs that still run; their work begins again at the next start")
        while ending.is_alive():
            self._jobs.cancel()
            ending.join(1.0)

    def _end(self) -> None:
        """Wait until nothing is at work."""
        for thread in self._threads:
            thread.join()
        self._looking_up.shut_down()
        self._applying.shut_down()

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
                    table = FollowedTable(self._home, self._catalog, records[captured.name], captured, self._store)
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

    def _keep_doing(self, name: str, work: Callable[[], None]) -> None:
        """Do it until told to stop; after an error, again, unless that ends the source."""
        while not self._stop.is_set():
            try:
                work()
            except BaseException as error:
                if not self._goes_on(name, error):
                    return

    def _goes_on(self, name: str, error: BaseException) -> bool:
        """Note what broke a loop off; say whether it is to be begun again, after a pause that is over then."""
        what = recourse(error, of_table=False)
        if lost(error):
            self.failure = dead_spark()
            return False
        if self._stop.is_set() and what is not Recourse.END_SOURCE:
            return False
        if what is Recourse.END_SOURCE:
            self.failure = error
            return False
        tries = self._tries[name]
        self._troubles.tell(name, error, tries, what)
        if tries.spent and not self._stop.is_set():
            self._show(explained(f"{name} of source {self._source}", error, "It is tried again every minute."))
        self._stop.wait(_RETRY_SECONDS if what is Recourse.RETRY else tries.pause)
        return True

    def _show(self, error: PenstockError) -> None:
        self._shown = error
        self._catalog.note_source_error(self._source, error.message, error.hint)

    def _works(self, name: str) -> None:
        """Note that a loop has come round: what was shown of it before holds no longer."""
        self._tries[name].worked()
        if self._shown is not None and not any(tries.spent for tries in self._tries.values()):
            shown, self._shown = self._shown, None
            self._catalog.forget_source_error(self._source, shown.message)

    # -- the first copy ---------------------------------------------------------------------------------------------

    def _copy_until_stopped(self) -> None:
        looked_up: list[FollowedTable] = []
        while not self._stop.is_set():
            if self._pending():
                self.renew()
            tables = self._tables
            self._looking_up.round(self._look_up, [table for table in tables if table not in looked_up])
            looked_up = tables
            pending = self._pending()
            if pending:
                self._copy(pending)
            self._works("copy")
            self._stop.wait(_LOOK_SECONDS)

    def _pending(self) -> list[FollowedTable]:
        """Return the tables that have no whole copy yet."""
        states = {record.upstream: record.state for record in self._catalog.tables(self._source)}
        waiting = [name for name, state in states.items() if state is TableState.PENDING]
        found = [table for table in self._tables if table.record.upstream in waiting and not table.gone]
        return [table for table in found if table.tries.due()]

    def _look_up(self, table: FollowedTable) -> None:
        with self._troubles.of(table, "looking up", settles=not table.tries.count), table.writing:
            table.look_up()

    def _copy(self, pending: list[FollowedTable]) -> None:
        record = self._record()
        if not instance_of(record).copies():
            begin(self._store, self._log, pending, self._stop, self._troubles)
            return
        spec, instance = database_spec_of(record), database_instance_of(record)
        if instance.snapshot is Snapshot.CHUNKED:
            ChunkedCopy(self._store.spark, instance, self._log, self._progress, self._stop, self._troubles).run(pending)
            return
        ParallelCopy(self._store, spec, instance, self._log, self._progress, self._stop, self._troubles).run(pending)

    # -- repair -----------------------------------------------------------------------------------------------------

    def _repair_until_stopped(self) -> None:
        repairs = Repairs(self._catalog)
        while not self._stop.wait(_LOOK_SECONDS):
            for repair in repairs.waiting(self._source):
                table = next((table for table in self._tables if table.record.upstream == repair.table), None)
                if table is None:
                    repairs.failed(repair, f"{repair.table} is not captured", "See `penstock status`.")
                elif self._repair_tries.setdefault(repair.id, Tries()).due():
                    self._repair(repairs, repair, table)
            self._works("repair")

    def _repair(self, repairs: Repairs, repair: Repair, table: FollowedTable) -> None:
        try:
            with self._jobs.tagged():
                self._repairing().run(repair, table)
        except Exception as error:
            if lost(error):
                raise dead_spark() from error
            if recourse(error, of_table=True) is not Recourse.LIMITED:
                raise
            tries, doing = self._repair_tries[repair.id], f"the repair of {repair.table}"
            self._troubles.tell(doing, error, tries, Recourse.LIMITED)
            if tries.spent:
                told = explained(doing, error)
                repairs.failed(repair, told.message, told.hint)

    def _repairing(self) -> Repairing:
        instance = database_instance_of(self._record())
        return Repairing(self._home, self._catalog, self._store.spark, instance, self._tell, self._stop)

    def _tell(self, text: str) -> None:
        self._progress(f"{self._source}: {text}")

    # -- upkeep -----------------------------------------------------------------------------------------------------

    def _keep_until_stopped(self) -> None:
        upkeeping = Upkeeping(self._store, self._tell)
        while not self._stop.wait(_KEEP_SECONDS):
            tables = self._tables
            upkeeping.forget_all_but(tables)
            for table in tables:
                if not self._stop.is_set():
                    with self._jobs.tagged():
                        upkeeping.look_after(table)
            self._works("upkeep")

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
                self._applying.round(partial(self._apply, durable=durable, logged=logged), behind)
                self._works("apply")
                seen = durable
                cost = time.monotonic() - started
                self._stop.wait(pause_after(cost, self._rest))

    def _is_behind(
        self, table: FollowedTable, log: ChangeLogReader, logged: dict[TableName, LoggedTable], durable: Lsn
    ) -> bool:
        """Whether there may be something to do for a table: changes, an error; or nobody has looked at it yet."""
        known = logged.get(table.record.upstream)
        if table.at is None or known is None or not table.tries.due():
            return False
        if table.applied is None or known.error is not None:
            return True
        with suppress(HistoryExpiredError):  # only of one that failed, which holds no history
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
            with self._troubles.of(table, "applying"):
                if not table.gone:
                    self._merge(table, table.stands(table.at, durable), upto, known)
                    table.applied = upto
                    if failed:
                        table.revive()
        finally:
            table.writing.release()
        tried = table.tries.spent or not table.tries.count
        if error is not None and tried and table.state() is not TableState.FAILED:
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
            TopicApply(self._store.spark, self._log, table).merge(at, upto)
            return
        schema = logged.schema_within(at.position, upto) or at.schema
        if len(schema.columns) > len(at.schema.columns):
            self._progress(f"{self._source}: {table.record.upstream} has gained columns")
            table.base.evolve(schema)
        change = self._store.net_change(self._log, schema, at.position, upto)
        if change is not None:
            table.base.merge(change.net, upto, change.contents)
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


_VARIABLE = "PENSTOCK_APPLY_REST"
_REST = 3.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 2.0, 60.0


def apply_rest() -> float:
    """Return how many times as long as a round of merges apply rests after it."""
    text = os.environ.get(_VARIABLE, "")
    try:
        rest = float(text) if text else _REST
    except ValueError:
        rest = -1.0
    if not 0 <= rest < float("inf"):
        message = f"{_VARIABLE} is {text!r}, and has to be a number that is not negative"
        raise UsageError(message, f"Set it to how many times as long as a round apply shall rest; else {_REST:g}.")
    return rest


def pause_after(seconds: float, rest: float) -> float:
    """Return how long to rest after a round that took so many seconds."""
    return min(max(rest * seconds, _SHORTEST_PAUSE), _LONGEST_PAUSE)
