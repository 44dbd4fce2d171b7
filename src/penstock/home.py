"""A home: the folder in which everything local lives, and what can be done with it.

What needs Spark is imported where it is used: `penstock status` should not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from penstock.catalog.progress import CopyProgress
from penstock.catalog.repairs import Repair, Repairs
from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.changelog.interface import ChangeLog, Frontiers
from penstock.engine.as_of import AsOf
from penstock.engine.check import CheckReport, check_database, check_sources
from penstock.engine.lifecycle import TABLES, create_source, drop_source, recover
from penstock.engine.locks import hold_home, holder, making, making_if_free
from penstock.engine.records import database_instance_of, database_spec_of, instance_of, whole_spec_of
from penstock.engine.sealed_secrets import forget_unused, seal
from penstock.engine.shards import captured_as, described
from penstock.engine.status import HomeStatus, home_status
from penstock.engine.table_names import named_source, named_sources, named_tables, runnable_sources
from penstock.errors import PenstockError, TableError, UsageError
from penstock.layout import catalog_path
from penstock.positions import Lsn
from penstock.sources.interface import Source
from penstock.sql.answer import Answer
from penstock.views import Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.changelog.transactions import Transaction
    from penstock.engine.runner import Running
    from penstock.engine.table import Progress
    from penstock.engine.verify import Verdict
    from penstock.live import Live
    from penstock.tables.interface import TableStore

__all__ = ["URL_SCHEMES", "Home", "check_target", "open_existing", "open_home", "open_to_run", "start_session"]

_NO_SECRETS: Mapping[str, SecretStr] = {}
URL_SCHEMES = ("postgresql://", "postgres://")


def open_home(path: str | Path = ".penstock") -> Home:
    """Open the home at `path`, making it if it is not there."""
    return Home(Path(path))


def open_existing(path: Path) -> Home:
    """Open a home that is there; refuse to make one by mistake."""
    if not catalog_path(path).exists():
        message = f"there is no home at {path}"
        raise UsageError(message, "Name it with --home, or make one with: penstock run postgresql://…")
    return Home(path)


def open_to_run(path: Path, text: str | None) -> Home:
    """Open the home for statements: made if it is not there and one of them creates a source."""
    from penstock.executor import creates

    return Home(path) if text is not None and creates(text) else open_existing(path)


def check_target(path: Path, target: str, **options: Any) -> CheckReport:
    """Look at a database (by its URL) that might be captured, or at a source (by its name) of the home at `path`."""
    if target.startswith(URL_SCHEMES):
        return check_database(target, **options)
    if options:
        message = f"{target} is the name of a source, which has its options already"
        raise UsageError(message, "Leave the options out, or name a database: postgresql://user@host/database")
    if "@" in target or "=" in target:  # a password may be in it
        message = "this is neither the URL of a database nor the name of a source"
        raise UsageError(message, "Name a database as postgresql://user@host:5432/database.")
    return open_existing(path).check(target)


def start_session(progress: Progress) -> SparkSession:
    """Start Spark on this machine; `progress` is told when something is fetched."""
    from penstock.spark.session import session

    return session(progress=progress)


class Home:
    """Sources, their change logs and their tables."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._catalog = Catalog(catalog_path(path))
        self._views = Views(path, self._catalog)

    def create(self, url: str | Sequence[str], name: str | None = None, **options: Any) -> str:
        """Make a source that captures a Postgres database; return its name.

        All tables, unless the options say otherwise: they are the fields of `PostgresOptions`. Several URLs are those
        of shards: databases with the same tables, each captured on its own, which are read as one.
        """
        return self.create_source(described(url, name, **options))

    def create_source(self, source: Source, secrets: Mapping[str, SecretStr] = _NO_SECRETS) -> str:
        """Make a source of any kind, which may refer to `secrets` that are to be kept for it; return its name."""
        with making(self.path):
            recover(self.path, self._catalog)
            if not self._catalog.parts(source.name):  # else it is refused
                seal(self.path, source.name, secrets)
            try:
                create_source(self.path, self._catalog, source)
            finally:
                forget_unused(self.path, self._catalog)
        return source.name

    def make_missing(self, script: str) -> list[str]:
        """Make the sources that statements describe and this home has not; return the names of those made."""
        from penstock.executor import make_missing

        return make_missing(self, script)

    def spec(self, name: str) -> Source:
        """Return what was asked for of a source."""
        return whole_spec_of(name, named_sources(self._catalog, name))

    def alter(self, source: str, **options: Any) -> None:
        """Give options of a source other values: at once where the home runs, else when it runs next.

        Not all can be changed: `Source.ALTERABLE` of its kind has those that can, others are refused with the reason.
        """
        from penstock.engine.reconcile import ask_set

        ask_set(self._catalog, source, options)

    def recover(self) -> list[PenstockError]:
        """Finish or undo what a process that died left half done; refuse while another one runs this home.

        Return what has to wait, because its upstream cannot be reached.
        """
        with hold_home(self.path):
            return self._recover()

    def _recover(self) -> list[PenstockError]:
        """The same; while somebody makes or drops a source, that is left to whoever runs the home."""
        with making_if_free(self.path) as free:
            return recover(self.path, self._catalog) if free else []

    def drop(self, name: str, *, force: bool = False, keep_tables: bool = False) -> list[str]:
        """Remove a source and what it made, also upstream; return what is left to do there by hand.

        Whoever runs the home lets go of it first. With `keep_tables`, its base tables stay, as plain Delta tables.
        """
        with making(self.path):
            shards = [record.name for record in self._catalog.parts(name)]
            left = drop_source(self.path, self._catalog, name, force=force, keep_tables=keep_tables)
            for shard in shards:
                self._views.forget(shard)
            if not left:  # Postgres is there: an older debt may be settled, too
                recover(self.path, self._catalog)
            return left

    def kept(self, name: str) -> list[str]:
        """Return what of a source is the user's own upstream, and stays there when the source is dropped."""
        kept = [thing for record in self._catalog.parts(name) for thing in instance_of(record).kept()]
        return list(dict.fromkeys(kept))

    def add_table(self, source: str, table: str) -> None:
        """Capture another table, ``schema.table`` or ``schema.table AS name``, too: see `drop_table` for when.

        What cannot be captured is refused at once, with what mends it.
        """
        from penstock.engine.requests import ask_add

        ask_add(self._catalog, source, table)

    def require_database(self, source: str) -> None:
        """Refuse a source that is no database: of another kind, there is nothing to compare with or to read anew."""
        for record in named_sources(self._catalog, source):
            database_spec_of(record)

    def accept_interference(self, source: str) -> None:
        """Let a source go on that stopped because somebody else wrote in the place of its watermarks or heartbeats.

        What they wrote so far is settled then. For somebody who knows who that was: rows of a chunked copy or a
        repair that ran meanwhile are worth a `verify`.
        """
        with hold_home(self.path):
            record = named_source(self._catalog, source)
            accepted = database_instance_of(record).accept_interference()
            self._catalog.set_source(source, SourceState.READY, instance=accepted.model_dump_json())

    def drop_table(self, source: str, table: str) -> None:
        """Capture a table no more, and remove its base table: at once where the home runs, else when it runs next."""
        from penstock.engine.requests import ask_drop

        ask_drop(self._catalog, source, table)

    def retry(self, source: str, table: str) -> None:
        """Capture a table, failed or live, anew and copy it afresh: at once where the home runs, else then."""
        from penstock.engine.requests import ask_retry

        ask_retry(self._catalog, source, table)

    def sql(self, text: str, spark: SparkSession | None = None) -> Answer | DataFrame:
        """Carry out statements, divided by semicolons; return what the last one gave: an answer, or rows of a query.

        Statements are those of ours, and queries in Spark SQL over live tables. Where one needs Spark and none is
        given, it is started.
        """
        *_, last = self.script(text, lambda: spark or start_session(print))
        return last

    def script(
        self, text: str, spark: Callable[[], SparkSession], as_of: AsOf | None = None
    ) -> Iterator[Answer | DataFrame]:
        """Carry out statements one after the other, as they are asked for; `spark` gives the session if one is needed.

        Queries see live tables as they are at that moment, or `as_of` another one.
        """
        from penstock.executor import obey_all

        return obey_all(self, text, spark, as_of)

    def completions(self, text: str) -> list[str]:
        """Return what the word at the end of a statement that is being typed could become."""
        from penstock.executor import completions

        return completions(self, text)

    def statement(self, source: str) -> str:
        """Return the statement that makes a source like this one."""
        from penstock.executor import statement_of

        return statement_of(self.spec(source))

    def explain(self, source: Source) -> Answer:
        """Tell what creating a source would make, outside and here; nothing is made."""
        from penstock.executor import explain

        return explain(self.path, list(source.shards().values()))

    def names(self) -> list[str]:
        """Return the names of the sources as they were given: one for all shards of one."""
        return list(dict.fromkeys(record.known_as for record in self._catalog.sources()))

    def runner(self) -> int | None:
        """Return the pid of the process that runs this home, if one does."""
        return holder(self.path)

    def sources(self) -> list[str]:
        """Return the names of the sources, of shards each its own."""
        return [record.name for record in self._catalog.sources()]

    def tables(self, source: str, named: Sequence[str] = ()) -> list[str]:
        """Return the upstream names of a source's tables, or of those that are named by that or by their local name."""
        first = named_sources(self._catalog, source)[0].name  # shards have the same tables
        return [str(record.upstream) for record in named_tables(self._catalog, first, named)]

    def local_names(self, source: str) -> list[str]:
        """Return the names that a source's tables have here."""
        first = named_sources(self._catalog, source)[0].name
        return [record.local for record in self._catalog.tables(first)]

    def runnable(self) -> list[str]:
        """Return the names of the sources that can run: not those that are being made or dropped."""
        return [record.name for record in runnable_sources(self._catalog)]

    def captures(self, url: str | Sequence[str], **options: Any) -> str | None:
        """Return the name of the source that captures this database, or these; refuse other options."""
        return captured_as(self._catalog, url, **options)

    def check(self, name: str) -> CheckReport:
        """Look whether a source can go on: whether all that it needs upstream is as it should be."""
        records = named_sources(self._catalog, name)
        return check_sources([(self._catalog.log(record.name), record) for record in records])

    @contextmanager
    def run(
        self, spark: SparkSession | TableStore | None = None, progress: Progress | None = None
    ) -> Iterator[Running]:
        """Capture, copy and apply in the background while the ``with`` block lasts."""
        from penstock.engine.runner import Running
        from penstock.tables.spark_tables import table_store

        with hold_home(self.path):
            self._recover()
            store = table_store(spark or start_session(print))
            running = Running(self.path, self._catalog, store, progress or (lambda _: None))
            try:
                yield running
            finally:
                running.stop()

    @contextmanager
    def run_if_idle(self, spark: SparkSession | TableStore, progress: Progress | None = None) -> Iterator[None]:
        """Run the home while the ``with`` block lasts, unless somebody runs it already."""
        if holder(self.path) is not None:
            yield
            return
        with self.run(spark, progress):
            yield

    def live(
        self, spark: SparkSession | TableStore, as_of: AsOf | None = None, wait: float | timedelta | None = None
    ) -> Live:
        """Return all tables at one moment: now, or as of an earlier one that the sources retain.

        `as_of` is a moment (a datetime with its zone, or its text), an LSN where the home has one source, or a mapping
        from sources to these: the others are then as they are now. What a source has not come to yet is an error,
        unless that is so within `wait` (seconds). As long as the view is referenced, what it needs is kept.
        """
        from penstock.tables.spark_tables import table_store

        return self._views.live(table_store(spark), as_of, wait)

    def frontiers(self, source: str) -> Frontiers:
        """Return how far a source's log can be read."""
        with closing(self._log(source).reader()) as log:
            return log.frontiers()

    def watch(self, source: str, stop: threading.Event) -> Iterator[Frontiers]:
        """Yield the frontiers of a source whenever they move, until told to stop."""
        with closing(self._log(source).reader()) as log:
            frontiers = log.frontiers()
            while not stop.is_set():
                moved = log.wait(frontiers.durable, 0.2)
                if moved.durable > frontiers.durable:
                    yield moved
                frontiers = moved

    def tail(
        self,
        source: str,
        tables: Sequence[str] = (),
        start: str | Lsn = "latest",
        stop: Callable[[], bool] = lambda: False,
        failed: Callable[[TableError], None] | None = None,
    ) -> Generator[Transaction, None, None]:
        """Yield whole transactions, over all tables of a source or over these, as they commit.

        `start` is ``latest``, ``earliest`` (all that the log holds) or the position after which to begin. It waits for
        more until `stop` says so, and keeps the log's history from where it is; close it, or let go of it, to end.

        A table that fails ends it with its error. Where tables are not named, and `failed` is given, that is told the
        error instead, and the others go on; the error of the last one ends it.
        """
        from penstock.engine.transaction_tail import tail

        return tail(self._catalog, source, tables, start, stop, failed)

    def copied(self, source: str) -> dict[str, CopyProgress]:
        """Return how far each table is that is being copied, by its name here; of shards, on each of them."""
        copies = {record.name: self._catalog.progress(record.name) for record in self._catalog.parts(source)}
        return {f"{name}.{local}": found for name, tables in copies.items() for local, found in tables.items()}

    def metrics(self) -> str:
        """Return the status as metrics, in the text format of Prometheus."""
        from penstock.engine.metrics import metrics_text

        return metrics_text(self.status())

    def forget_reader(self, source: str, reader: str) -> None:
        """Take away the mark of a registered reader: history is no longer kept for it."""
        with closing(self._log(source).reader()) as log:
            known = [pin.reader for pin in log.pins()]
            name = next((name for name in known if name in (reader, f"reader {reader}")), None)
            if name is None or name == TABLES:
                message = f"source {source} has no registered reader {reader}"
                raise UsageError(message, "See `penstock status` for those that it has.")
            log.pin(name, None)

    def status(self) -> HomeStatus:
        """Return what is the case: sources, tables, frontiers, lag, errors."""
        return home_status(self.path, self._catalog)

    def verify(
        self,
        spark: SparkSession | TableStore,
        source: str,
        tables: Sequence[str] = (),
        *,
        limit: int = 20,
        exact: bool = False,
        progress: Callable[[str], None] | None = None,
    ) -> list[Verdict]:
        """Compare live tables of a source with Postgres, row by row, at one position; all, unless some are named.

        Of shards, each is compared at a position of its own.

        Capture must run, here or in another process: the log has to reach that position. A verdict has the first
        `limit` differing keys. `exact` leaves nothing to hashes. `progress` gets the name of each table in its turn.
        """
        from penstock.engine.verify import verify_source
        from penstock.tables.spark_tables import table_store

        store = table_store(spark)
        return [
            verdict
            for record in named_sources(self._catalog, source)
            for verdict in verify_source(
                *(self.path, self._catalog, store, record, partial(self._live_at, store, record.name), tables),
                limit=limit,
                exact=exact,
                progress=progress or (lambda _: None),
            )
        ]

    def _live_at(self, store: TableStore, source: str, position: Lsn) -> Live:
        return self.live(store, {source: position})

    def repair(
        self,
        source: str,
        table: str,
        *,
        keys: Sequence[Any] | None = None,
        where: str | None = None,
        everything: bool = False,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
    ) -> Repair:
        """Read rows of a live table anew upstream and put them right, beside the stream; wait until that is done.

        Which rows is said by `keys` (values, lists of values or mappings), by a condition in SQL, or by `everything`.
        Where nobody runs the home, it runs here for as long as that takes.
        """
        asked = self.ask_repair(source, table, keys=keys, where=where, everything=everything)
        return self.wait_for_repair(asked, spark, progress)

    def ask_repair(
        self,
        source: str,
        table: str,
        *,
        keys: Sequence[Any] | None = None,
        where: str | None = None,
        everything: bool = False,
    ) -> Repair:
        """Note that rows shall be repaired: by whoever runs the home, or runs it next. See `repair`."""
        from penstock.engine.repair import ask_repair

        return ask_repair(self._catalog, source, table, keys, where, everything=everything)

    def wait_for_repair(
        self, asked: Repair, spark: SparkSession | None = None, progress: Progress | None = None
    ) -> Repair:
        """Wait until a repair is done; where nobody runs the home, run it meanwhile."""
        from penstock.engine.repair import wait_for_repair

        if self.is_run():
            return wait_for_repair(self._catalog, asked, self.is_run)
        with self.run(spark, progress) as running:

            def is_running() -> bool:
                running.check()
                return True

            return wait_for_repair(self._catalog, asked, is_running)

    def is_run(self) -> bool:
        """Say whether some process, this one or another, runs the home."""
        return holder(self.path) is not None

    def repairs(self) -> list[Repair]:
        """Return all repairs that were asked for, the newest first: who, when, where in the stream, what changed."""
        return Repairs(self._catalog).all()

    def _log(self, source: str) -> ChangeLog:
        """Return the log of a source that is there."""
        return self._catalog.log(named_source(self._catalog, source).name)
