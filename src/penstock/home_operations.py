"""The operations of a home, other than SQL: create, alter, drop and run sources and sinks; read, verify, repair tables.

Modules that need Spark are imported inside the methods that use them, so that `penstock status` starts fast.
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
from penstock.catalog.store import Catalog, SourceRecord
from penstock.changelog.interface import ChangeLog, Frontiers
from penstock.engine.alarms import with_alarms
from penstock.engine.as_of import AsOf
from penstock.engine.catalog_records import instance_of, require_database, whole_spec_of
from penstock.engine.check import CheckedSource, CheckReport, check_sources
from penstock.engine.lifecycle import TABLES, create_source, drop_source, recover
from penstock.engine.locks import hold_home, holder, lifecycle_lock, try_lifecycle_lock
from penstock.engine.sealed_secrets import forget_unused, references, seal, sink_secrets
from penstock.engine.shards import captured_as, described
from penstock.engine.sinks import (
    AnySink,
    SinkTable,
    alter_sink,
    check_sink,
    complete_drops,
    create_sink,
    drop_sink,
    named_sink,
    resolved_sink,
    retry_sink,
    sink_of,
    sink_tables,
)
from penstock.engine.status import home_status
from penstock.engine.status_document import HomeStatus
from penstock.engine.table_names import named_source, named_sources, named_tables, runnable_sources
from penstock.engine.upstream_watches import UpstreamWatches
from penstock.errors import PenstockError, TableError, UsageError
from penstock.layout import catalog_path
from penstock.positions import Lsn
from penstock.sinks.function.registration import SinkFunction, function_name, register
from penstock.sinks.function.spec import FunctionSink
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sources.findings import Finding
from penstock.sources.interface import Source
from penstock.views import Views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.changelog.transactions import Transaction
    from penstock.engine.runner import HomeRunner
    from penstock.engine.supervisor import RestartableSpark, Supervisor
    from penstock.engine.table import Progress
    from penstock.engine.verify import Verdict
    from penstock.live import Live
    from penstock.tables.interface import TableStore

__all__ = ["HomeOperations", "start_session"]

_NO_SECRETS: Mapping[str, SecretStr] = {}


def start_session(progress: Progress) -> SparkSession:
    """Start Spark on this machine; `progress` receives a message when packages are downloaded."""
    from penstock.spark.session import session

    return session(progress=progress)


class HomeOperations:
    """The sources of one home, with their change logs and tables; `penstock.home.Home` adds SQL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._catalog = Catalog(catalog_path(path))
        self._views = Views(path, self._catalog)

    def create(self, url: str | Sequence[str], name: str | None = None, **options: Any) -> str:
        """Create a source that captures a database; return its name.

        The source captures all tables unless `options`, the fields of `PostgresOptions`, select some. Several URLs
        create a sharded source: databases with the same tables, each captured on its own, that are queried as one.
        """
        return self.create_source(described(url, name, **options))

    def create_source(self, source: Source, secrets: Mapping[str, SecretStr] = _NO_SECRETS) -> str:
        """Create a source of any kind and store the `secrets` that its options refer to; return its name."""
        with lifecycle_lock(self.path):
            recover(self.path, self._catalog)
            if not self._catalog.parts(source.name):  # an existing name is rejected below
                seal(self.path, source.name, secrets)
            try:
                create_source(self.path, self._catalog, source)
            finally:
                forget_unused(self.path, self._catalog)
        return source.name

    def spec(self, name: str) -> Source:
        """Return the specification of a source: the options that it was created with, and later changes to them."""
        return whole_spec_of(name, named_sources(self._catalog, name))

    def alter(self, source: str, **options: Any) -> None:
        """Change options of a source: immediately if the home is running, otherwise at the next run.

        `Source.ALTERABLE` of the source's kind lists the options that can be changed. For any other option, raise
        `UsageError` with the reason.
        """
        from penstock.engine.reconcile import request_options

        request_options(self._catalog, source, options)

    def create_sink(self, name: str, source: str, *, into: str = "kafka", **options: Any) -> str:
        """Create a sink, which writes changes of a table, or of all tables of a source, to Kafka; return its name.

        `source` is ``source.table`` or the name of a source; the table is given by its local name or as
        ``schema.table``. `options` are the fields of `KafkaSinkSqlOptions` (`broker`, `topic` or `topic_prefix`, `key`,
        `format`, `schema_registry`, `envelope`) and of `KafkaSinkOptions`. Writing begins immediately if the home is
        running, otherwise at the next run.
        """
        if into.upper() != KafkaSink.NAME:
            message = f'unrecognized sink kind "{into}"'
            raise UsageError(message, f"Use {KafkaSink.NAME.lower()}.")
        source, _, table = source.partition(".")
        return self.add_sink(KafkaSink.of(name, source, table or None, **options))

    def sink(
        self,
        name: str,
        source: str,
        function: SinkFunction | str,
        *,
        snapshot: bool = True,
        retain_limit: str | None = None,
    ) -> str:
        """Create a sink that calls a function with the changes of a table, as a Spark DataFrame; return its name.

        ``function(df, first, last)`` is called with the changes in (first, last]: whole transactions, with the columns
        of ``spark.readStream.format("penstock")``. A call that did not return is repeated with the same range. With
        `snapshot`, the first call has the rows of the table, and `first` is None.

        `function` is called by the process that calls this method, while it runs the home; or it is a text,
        ``package.module:function``, which every process that runs the home imports. A second call with the same name
        and table replaces the function.
        """
        from penstock.engine.function_sinks import add_function_sink

        described = function if isinstance(function, str) else function_name(function)
        source, _, table = source.partition(".")
        options = {"snapshot": snapshot, "retain_limit": retain_limit, "is_registered": not isinstance(function, str)}
        sink = FunctionSink.of(name, source, table or None, function=described, **options)
        with lifecycle_lock(self.path):
            add_function_sink(self._catalog, sink)
            if not isinstance(function, str):
                register(self.path, name, function)
        return name

    def add_sink(self, sink: KafkaSink, secrets: Mapping[str, SecretStr] = _NO_SECRETS) -> str:
        """Create the sink that a value describes, and store its literal secrets and the given ones; return its name."""
        literal = dict(secrets)

        def keep(option: str, secret: str) -> str:
            literal[option] = SecretStr(secret)
            return references(self.path, sink_secrets(sink.name), [option])[option]

        with lifecycle_lock(self.path):
            create_sink(self.path, self._catalog, sink.kept(keep), literal)
        return sink.name

    def sinks(self) -> list[str]:
        """Return the names of the sinks."""
        return [record.name for record in self._catalog.sinks.all()]

    def sink_spec(self, name: str) -> AnySink:
        """Return the specification of a sink: the options that it was created with, and later changes to them."""
        return sink_of(named_sink(self._catalog, name))

    def resolved_sink(self, sink: KafkaSink) -> KafkaSink:
        """Return a sink as `add_sink` stores it, without creating it; raise an error if it cannot be created."""
        return resolved_sink(self._catalog, sink)

    def check_sink(self, sink: KafkaSink) -> list[Finding]:
        """Return what would keep a sink from writing; this connects to its brokers and its registry."""
        return check_sink(self._catalog, sink)

    def sink_tables(self, sink: KafkaSink) -> list[SinkTable]:
        """Return the tables that a sink writes, with their keys and topics."""
        return sink_tables(self._catalog, sink)

    def alter_sink(self, name: str, **options: Any) -> None:
        """Change options of a sink: immediately if the home is running, otherwise at the next run.

        `KafkaSink.ALTERABLE` lists the options that can be changed. For any other option, raise `UsageError` with the
        reason. A sink that has failed is started again.
        """
        alter_sink(self._catalog, name, options)

    def retry_sink(self, name: str) -> None:
        """Start a sink again that has failed, when its cause is gone; the next start of the home does the same."""
        retry_sink(self._catalog, name)

    def drop_sink(self, name: str) -> None:
        """Stop and remove a sink; its topics and their messages, or what its function wrote, are kept.

        If the home is running, its process removes the sink as soon as it has stopped it.
        """
        with lifecycle_lock(self.path):
            drop_sink(self.path, self._catalog, name)

    def recover(self) -> list[PenstockError]:
        """Complete or roll back the creates and drops that a crashed process left unfinished.

        Return the errors of those that have to wait, because their upstream is unreachable. Raise `DefiniteError` if
        another process runs this home.
        """
        with hold_home(self.path):
            return self._recover()

    def _recover(self) -> list[PenstockError]:
        """Recover, unless another process is creating or dropping a source: the running home recovers later then."""
        with try_lifecycle_lock(self.path) as free:
            if not free:
                return []
            complete_drops(self.path, self._catalog)
            return recover(self.path, self._catalog)

    def drop(self, name: str, *, force: bool = False, keep_tables: bool = False) -> list[str]:
        """Drop a source and the objects that it created upstream; return the statements to run there by hand, if any.

        If the home is running, its process first stops the source. With `keep_tables`, the base tables are kept, as
        plain Delta tables. With `force`, the source is dropped although its upstream is unreachable, or although the
        objects there may belong to another home.
        """
        with lifecycle_lock(self.path):
            shards = [record.name for record in self._catalog.parts(name)]
            left = drop_source(self.path, self._catalog, name, force=force, keep_tables=keep_tables)
            for shard in shards:
                self._views.forget(shard)
            if not left:  # the upstream is reachable: older debts may be settled, too
                recover(self.path, self._catalog)
            return left

    def kept(self, name: str) -> list[str]:
        """Return the upstream objects that the source uses but did not create: a drop leaves them in place."""
        kept = [thing for record in self._catalog.parts(name) for thing in instance_of(record).kept()]
        return list(dict.fromkeys(kept))

    def add_table(self, source: str, table: str) -> None:
        """Add a table, ``schema.table`` or ``schema.table AS name``, to a source.

        Capture begins immediately if the home is running, otherwise at the next run. A table that cannot be captured
        is rejected at once, with a hint that says how to fix that.
        """
        from penstock.engine.requests import request_add

        request_add(self._catalog, source, table)

    def require_database(self, source: str) -> None:
        """Raise `UsageError` if the tables of a source cannot be read upstream, to be verified or repaired."""
        for record in named_sources(self._catalog, source):
            require_database(record)

    def accept_interference(self, source: str) -> None:
        """Accept foreign writes among the watermarks or heartbeats of a source, so that it resumes at the next run.

        A source stops when another process writes such messages. This call accepts those written so far; use it when
        their origin is known. `verify` tables whose incremental snapshot or repair ran at that time: their rows may be
        wrong. Raise `DefiniteError` while another process runs this home.
        """
        with hold_home(self.path):
            record = named_source(self._catalog, source)
            accepted = instance_of(record).accept_interference()
            self._catalog.set_source(source, SourceState.READY, instance=accepted.model_dump_json())

    def drop_table(self, source: str, table: str) -> None:
        """Stop capturing a table and remove its base table: immediately if the home is running, or at the next run."""
        from penstock.engine.requests import request_drop

        request_drop(self._catalog, source, table)

    def retry(self, source: str, table: str) -> None:
        """Resnapshot a table that is live or failed: immediately if the home is running, otherwise at the next run."""
        from penstock.engine.requests import request_retry

        request_retry(self._catalog, source, table)

    def names(self) -> list[str]:
        """Return the names of the sources as the user gave them: a sharded source has one name."""
        return list(dict.fromkeys(record.known_as for record in self._catalog.sources()))

    def runner(self) -> int | None:
        """Return the pid of the process that runs this home, or None."""
        return holder(self.path)

    def sources(self) -> list[str]:
        """Return the names of the sources; each shard is listed under a name of its own."""
        return [record.name for record in self._catalog.sources()]

    def tables(self, source: str, named: Sequence[str] = ()) -> list[str]:
        """Return the upstream names of a source's tables: all, or those given by upstream or local name."""
        first = named_sources(self._catalog, source)[0].name  # shards have the same tables
        return [str(record.upstream) for record in named_tables(self._catalog, first, named)]

    def local_names(self, source: str) -> list[str]:
        """Return the local names of a source's tables."""
        first = named_sources(self._catalog, source)[0].name
        return [record.local for record in self._catalog.tables(first)]

    def runnable(self) -> list[str]:
        """Return the names of the sources that can run: all that are neither being created nor being dropped."""
        return [record.name for record in runnable_sources(self._catalog)]

    def captures(self, url: str | Sequence[str], **options: Any) -> str | None:
        """Return the name of the source that captures exactly these databases, or None.

        Raise `UsageError` if that source has other options.
        """
        return captured_as(self._catalog, url, **options)

    def check(self, name: str) -> CheckReport:
        """Check whether a source can resume: whether the upstream objects that it needs exist and are intact."""
        records = named_sources(self._catalog, name)
        return check_sources([self._checked(record) for record in records])

    def _checked(self, record: SourceRecord) -> CheckedSource:
        names = {table.upstream: table.local for table in self._catalog.tables(record.name)}
        return CheckedSource(self._catalog.log(record.name), record, names)

    @contextmanager
    def run(
        self, spark: SparkSession | TableStore | None = None, progress: Progress | None = None
    ) -> Iterator[HomeRunner]:
        """Run capture, snapshots and apply of all sources in the background while the ``with`` block lasts.

        A session of yours cannot be restarted here: if its JVM ends, `HomeRunner.check` and `wait_live` raise
        `TransientError`. Capture continues until the block ends; run the home again with a new session. `supervise`
        restarts Spark itself.
        """
        from penstock.engine.runner import HomeRunner
        from penstock.tables.spark_tables import table_store

        with hold_home(self.path):
            self._recover()
            store = table_store(spark or start_session(print))
            running = HomeRunner(self.path, self._catalog, store, progress or (lambda _: None))
            try:
                yield running
            finally:
                running.stop()

    @contextmanager
    def supervise(
        self,
        progress: Progress,
        config: Mapping[str, str] | None = None,
        *,
        spark: RestartableSpark | None = None,
    ) -> Iterator[Supervisor]:
        """Run the home while the ``with`` block lasts, and restart Spark when its JVM is lost.

        `config` contains settings of Spark, which runs on this machine; its output is logged. With `spark`, it is
        started in another way. The block begins before Spark has started. `Supervisor.check` raises the errors that end
        a run.
        """
        from penstock.engine.supervisor import Supervisor
        from penstock.spark.local_spark import LocalSpark
        from penstock.spark.spark_output import log_spark_line

        with hold_home(self.path):
            self._recover()
            started = spark or LocalSpark(config, progress, log_spark_line)
            running = Supervisor(self.path, self._catalog, started, progress)
            try:
                yield running
            finally:
                running.stop()

    @contextmanager
    def run_if_idle(self, spark: SparkSession | TableStore, progress: Progress | None = None) -> Iterator[None]:
        """Run the home while the ``with`` block lasts, unless another process runs it already."""
        if holder(self.path) is not None:
            yield
            return
        with self.run(spark, progress):
            yield

    def live(
        self, spark: SparkSession | TableStore, as_of: AsOf | None = None, wait: float | timedelta | None = None
    ) -> Live:
        """Return a consistent view of all tables: as of now, or as of an earlier time within the retained history.

        `as_of` is a timestamp (a datetime with a time zone, or its text), an LSN if the home has one source, or a
        mapping from source names to these; sources that it does not name are read as of now. If a source has not
        reached the requested position after `wait` seconds, raise an error. The history that a view needs is retained
        for as long as the view is referenced.
        """
        from penstock.tables.spark_tables import table_store

        return self._views.live(table_store(spark), as_of, wait)

    def undated(self, spark: SparkSession | TableStore) -> Live:
        """Return a view for the names and columns of tables; it has no positions, and cannot be read."""
        from penstock.tables.spark_tables import table_store

        return self._views.undated(table_store(spark))

    def frontiers(self, source: str) -> Frontiers:
        """Return the frontiers of a source's change log: the range of positions that can be read."""
        with closing(self._log(source).reader()) as log:
            return log.frontiers()

    def watch(self, source: str, stop: threading.Event) -> Iterator[Frontiers]:
        """Yield the frontiers of a source each time the durable frontier advances, until `stop` is set."""
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
        """Yield whole transactions as they commit: of all tables of a source, or of the named ones.

        `start` is ``latest``, ``earliest`` (the whole retained history) or the position after which to begin. The
        generator waits for new transactions until `stop` returns True, and holds a lease on the history from its
        current position on; close the generator to release the lease.

        An error of a table ends the generator: it raises that error. If no tables are named and `failed` is given,
        `failed` is called with the error instead and the generator continues with the other tables; the error of the
        last remaining table is raised.
        """
        from penstock.engine.transaction_tail import tail

        return tail(self._catalog, source, tables, start, stop, failed)

    def subscribe(
        self, source: str, table: str | None, stop: Callable[[], bool]
    ) -> Generator[Transaction | TableError, None, None]:
        """Yield the transactions of a source, or of one of its tables, from now on, until `stop` returns True.

        Without a table, the error of a table that is left out from there on is yielded, too.
        """
        from penstock.engine.transaction_tail import subscribe

        return subscribe(self._catalog, source, table, stop)

    def copied(self, source: str) -> dict[str, CopyProgress]:
        """Return the progress of the snapshots in progress, by ``source.table``; each shard has its own entry."""
        copies = {record.name: self._catalog.progress(record.name) for record in self._catalog.parts(source)}
        return {f"{name}.{local}": found for name, tables in copies.items() for local, found in tables.items()}

    def metrics(self) -> str:
        """Return the status as metrics, in the text format of Prometheus."""
        from penstock.engine.metrics import metrics_text

        return metrics_text(self.status())

    def forget_reader(self, source: str, reader: str) -> None:
        """Remove a registered reader: history is no longer retained for it."""
        with closing(self._log(source).reader()) as log:
            known = [lease.reader for lease in log.leases()]
            name = next((name for name in known if name in (reader, f"reader {reader}")), None)
            if name is None or name == TABLES:
                message = f"source {source} has no registered reader {reader}"
                raise UsageError(message, "`penstock status` lists the readers of each source.")
            log.set_lease(name, None)

    def status(self, watches: UpstreamWatches | None = None) -> HomeStatus:
        """Return the status of the home: sources, tables, frontiers, lag, errors.

        A caller that repeats this passes `watches`, which keep their connections to the upstream systems.
        """
        return with_alarms(self.path, home_status(self.path, self._catalog, watches))

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
        """Compare the live tables of a source, all or the named ones, with the upstream, row by row, at one position.

        Each shard is compared at a position of its own.

        Capture must be running, in this or another process, because the log has to reach that position. A verdict
        contains the first `limit` differing keys. With `exact`, rows are compared by value and not by hash. `progress`
        is called with the name of each table before it is compared.
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
        spark: SparkSession | TableStore | None = None,
        progress: Progress | None = None,
    ) -> Repair:
        """Read rows of a live table again from upstream and replace those that differ; wait until that is done.

        Capture and apply continue meanwhile. Select the rows with exactly one of `keys` (values, lists of values or
        mappings), `where` (an SQL condition) and `everything`. If no process runs the home, this call runs it until
        the repair is done.
        """
        repair_request = self.request_repair(source, table, keys=keys, where=where, everything=everything)
        return self.wait_for_repair(repair_request, spark, progress)

    def request_repair(
        self,
        source: str,
        table: str,
        *,
        keys: Sequence[Any] | None = None,
        where: str | None = None,
        everything: bool = False,
    ) -> Repair:
        """Record a repair request, which the running home, or the next run, executes. See `repair`."""
        from penstock.engine.repair import request_repair

        return request_repair(self._catalog, source, table, keys, where, everything=everything)

    def wait_for_repair(
        self, repair_request: Repair, spark: SparkSession | TableStore | None = None, progress: Progress | None = None
    ) -> Repair:
        """Wait until a repair is done; if no process runs the home, run it until then."""
        from penstock.engine.repair import wait_for_repair

        if self.is_running():
            return wait_for_repair(self._catalog, repair_request, self.is_running)
        with self.run(spark, progress) as running:

            def is_running() -> bool:
                running.check()
                return True

            return wait_for_repair(self._catalog, repair_request, is_running)

    def is_running(self) -> bool:
        """Return whether a process, this one or another, runs the home."""
        return holder(self.path) is not None

    def repairs(self) -> list[Repair]:
        """Return all repairs, newest first: who requested each and when, its positions, and how many rows changed."""
        return Repairs(self._catalog).all()

    def _log(self, source: str) -> ChangeLog:
        """Return the change log of an existing source."""
        return self._catalog.log(named_source(self._catalog, source).name)
