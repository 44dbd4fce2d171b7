"""A running sink: one thread for each sink and source, which delivers the changes of the source's log.

::

    TransientError        shown with the sink, and retried at least every 5 s: brokers or registry do not respond
    DefiniteError         the sink fails, and stops until it is altered, or the home is started again; capture, apply
                          and other sinks continue
    any other exception   shown with the sink; retried, every minute in the end
    Spark has ended       a transient error, for sinks that need Spark; they are started again with the next Spark

The thread ends when the sink is altered or dropped; the running home starts it again with its new options.

**Retention.** The sink is a registered reader of the log, so history is retained for it while it is behind, stopped or
failed. With the option ``retain limit``, that ends when the first change that it has not delivered is older: the sink
fails, and its history is released.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from penstock.catalog.sinks import SinkRecord
from penstock.catalog.states import SinkState, TableState
from penstock.catalog.store import Catalog
from penstock.changelog.interface import ChangeLogReader
from penstock.engine.at_least_once import at_least_once_delivery, image_needs
from penstock.engine.catalog_records import instance_of
from penstock.engine.error_policy import LONGEST_TRANSIENT_PAUSE, Tries, explained
from penstock.engine.function_sinks import function_delivery
from penstock.engine.instruments import SINK_BATCH_SECONDS, count_error
from penstock.engine.sink_progress import SinkProgress, write_progress
from penstock.engine.sink_tables import CatalogTables
from penstock.engine.sinks import AnySink, complete_drop, sink_of, sink_reader, sink_tables
from penstock.engine.table import Progress
from penstock.engine.table_names import named_source, named_table
from penstock.errors import HistoryExpiredError, PenstockError, TableError, TransientError
from penstock.event_log import Event
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sinks.delivery import Delivery
from penstock.sinks.function.output import FunctionOutput
from penstock.sinks.kafka.output import KafkaOutput, SinkSource
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.words import Delivery as KafkaDelivery
from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error
from penstock.tables.interface import TableStore

__all__ = ["SinkRunner", "SinkRunners", "enforce_retain_limit"]

_OPEN_SECONDS = 60.0
_WAIT_SECONDS = 0.2
_RECORD_SECONDS = 1.0
_STOP_SECONDS = 20.0


class SinkRunner:
    """Delivers the changes of one source, or of one shard, to one sink, until `stop`."""

    def __init__(
        self,
        home: Path,
        catalog: Catalog,
        record: SinkRecord,
        source: str,
        progress: Progress,
        store: TableStore | None = None,
    ) -> None:
        """Start; `store` has the Spark session of sinks that need one."""
        self._home, self._catalog, self._source, self._progress = home, catalog, source, progress
        self._record, self._store = record, store
        self._sink = sink_of(record)
        self._stopping = threading.Event()
        self._tries = Tries()
        self._has_error = record.error is not None
        self._fault: TableError | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-sink-{record.name}-{source}", daemon=True)
        self._thread.start()

    @property
    def spec(self) -> str:
        """The options with which it runs."""
        return self._record.spec

    @property
    def needs_spark(self) -> bool:
        """Whether it calls a function with DataFrames, or writes or transforms rows in Spark."""
        return _needs_spark(self._sink)

    @property
    def is_alive(self) -> bool:
        """Whether its thread is running."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stop after the current transaction, and wait for it, but not for brokers that do not respond.

        The next writer ends the transaction of a thread that is left behind.
        """
        self.end()
        self._thread.join(_STOP_SECONDS)

    def end(self) -> None:
        """Stop after the current transaction, without waiting for it."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._deliver()
            except Exception as error:
                if not self._may_retry(error):
                    return
            self._stopping.wait(self._tries.pause)

    def _may_retry(self, error: Exception) -> bool:
        """Record an error; return whether delivery is retried."""
        if self.needs_spark and is_spark_lost(error):
            self._tries.failed(longest=LONGEST_TRANSIENT_PAUSE)
            self._note(spark_lost_error())
        elif isinstance(error, TransientError):
            self._tries.failed(longest=LONGEST_TRANSIENT_PAUSE)
            self._note(error)
        elif isinstance(error, PenstockError):
            self._fail(error)
            return False
        else:
            self._tries.failed()
            self._note(explained(f"sink {self._record.name}", error, "Penstock retries it."))
        return True

    def _deliver(self) -> None:
        """Deliver changes until the sink is stopped, or a window has a fault: the next attempt ends before it."""
        delivery, output = self._delivery()
        delivery.fault = self._fault
        try:
            self._deliver_all(delivery, output)
        except TableError as error:
            reached = delivery.position
            if self._fault is not None or reached is None or error.lsn <= reached.position + 1:
                raise
            self._fault = error

    def _deliver_all(self, delivery: Delivery, output: KafkaOutput | FunctionOutput) -> None:
        with closing(delivery):
            delivery.open(_OPEN_SECONDS, started=self._source in self._record.started)
            recorded = 0.0
            while not self._stopping.is_set():
                if delivery.step(_WAIT_SECONDS):
                    SINK_BATCH_SECONDS.labels(self._record.name, self._source).observe(delivery.batch_seconds)
                self._worked()
                if delivery.position is not None and time.monotonic() > recorded + _RECORD_SECONDS:
                    self._record_progress(delivery.position.position, delivery.messages, output.latency_ms)
                    recorded = time.monotonic()

    def _delivery(self) -> tuple[Delivery, KafkaOutput | FunctionOutput]:
        if not isinstance(self._sink, KafkaSink):
            return function_delivery(self._home, self._catalog, self._record, self._source, self._store)
        if self._sink.delivery is KafkaDelivery.AT_LEAST_ONCE:
            return at_least_once_delivery(self._home, self._catalog, self._record, self._described(), self._store)
        output = self._output(self._sink)
        if self._sink.transform is not None:  # an error of the function does not wait for the first change
            for table in sink_tables(self._catalog, self._sink):
                output.check_table(table.schema)
        delivery = Delivery(
            sink_reader(self._record.name),
            self._catalog.log(self._source),
            CatalogTables(self._home, self._catalog, self._source, self._sink.table),
            output,
            snapshot=self._sink.snapshot,
            needs=image_needs(self._sink),
        )
        return delivery, output

    def _output(self, sink: KafkaSink) -> KafkaOutput:
        store = self._store
        return KafkaOutput(sink, self._record.id, self._described(), None if store is None else lambda: store.spark)

    def _described(self) -> SinkSource:
        record = named_source(self._catalog, self._source)
        return SinkSource(self._source, instance_of(record).database_name(), self._local_name, record.shard)

    def _local_name(self, table: TableName) -> str:
        return named_table(self._catalog, self._source, str(table)).local

    def _record_progress(self, position: Lsn, messages: int, latency_ms: float | None) -> None:
        if self._source not in self._record.started:
            self._catalog.sinks.mark_started(self._record.name, self._source)
            self._record = replace(self._record, started=self._record.started | {self._source})
        progress = SinkProgress(position, messages, latency_ms)
        write_progress(self._home, self._record.name, self._source, progress)

    def _worked(self) -> None:
        self._tries.worked()
        if self._has_error:
            self._catalog.sinks.note_error(self._record.name)
            self._has_error = False

    def _note(self, error: PenstockError) -> None:
        count_error(error, self._source, self._record.name)
        self._has_error = True
        self._catalog.sinks.note_error(self._record.name, error.message, error.hint)

    def _fail(self, error: PenstockError) -> None:
        count_error(error, self._source, self._record.name)
        self._catalog.sinks.set_state(self._record.name, SinkState.FAILED, error=error.message, hint=error.hint)
        name = self._record.name
        self._progress(Event(f"sink {name}: {error.message}", "sink_failed", "error", sink=name))


class SinkRunners:
    """The sinks of a running home; used by one thread."""

    def __init__(self, home: Path, catalog: Catalog, progress: Progress, store: TableStore | None = None) -> None:
        """Create the sinks of a home; `store` has the Spark session of those that need one."""
        self._home, self._catalog, self._progress, self._store = home, catalog, progress, store
        self._running: dict[tuple[str, str], SinkRunner] = {}
        for record in catalog.sinks.all():
            if record.state is SinkState.FAILED:  # its cause may be gone
                catalog.sinks.set_state(record.name, SinkState.RUNNING)

    def reconcile(self, sources: Collection[str]) -> None:
        """Start, restart and end sinks as the catalog says; `sources` are those that run."""
        records = self._catalog.sinks.all()
        wanted = {
            (record.name, part.name): record
            for record in records
            if record.state is SinkState.RUNNING
            if self._store is not None or not _needs_spark(sink_of(record))
            for part in self._catalog.parts(record.source)
            if part.name in sources
        }
        for place, runner in list(self._running.items()):
            if place not in wanted or wanted[place].spec != runner.spec:
                runner.end()
            if not runner.is_alive:
                del self._running[place]
        for place in wanted.keys() - self._running.keys():
            self._running[place] = SinkRunner(
                self._home, self._catalog, wanted[place], place[1], self._progress, self._store
            )
        for record in records:
            self._settle(record)

    def _settle(self, record: SinkRecord) -> None:
        """Complete a drop, or end the retention for a sink that is too far behind."""
        if record.state is not SinkState.DROPPING:
            enforce_retain_limit(self._catalog, record)
        elif not any(name == record.name for name, _ in self._running):
            complete_drop(self._home, self._catalog, record)
            self._progress(Event(f"sink {record.name}: dropped", "sink_dropped", sink=record.name))

    def suspend(self) -> None:
        """Stop the sinks that need Spark, which is lost, until `resume`."""
        self._store = None
        _stop_all([runner for runner in self._running.values() if runner.needs_spark])

    def resume(self, store: TableStore) -> None:
        """Let the next `reconcile` start the sinks that need Spark."""
        self._store = store

    def stop(self) -> None:
        """Stop all sinks, each after its current transaction."""
        _stop_all(self._running.values())


def _stop_all(runners: Collection[SinkRunner]) -> None:
    for runner in runners:
        runner.end()
    for runner in runners:
        runner.stop()


def _needs_spark(sink: AnySink) -> bool:
    if not isinstance(sink, KafkaSink):
        return True
    return sink.delivery is KafkaDelivery.AT_LEAST_ONCE or sink.transform is not None


def enforce_retain_limit(catalog: Catalog, record: SinkRecord) -> None:
    """Release the history of a sink that is further behind than its option ``retain limit`` allows: the sink fails."""
    limit = sink_of(record).retain_limit_span()
    if limit is None:
        return
    for part in catalog.parts(record.source):
        with closing(catalog.log(part.name).reader()) as reader:
            held = next((lease.at for lease in reader.leases() if lease.reader == sink_reader(record.name)), None)
            if held is not None and _has_older_changes(catalog, record, part.name, reader, held, limit):
                message = (
                    f"sink {record.name} is further behind than its retain limit: history after {held} is released"
                )
                hint = "Drop the sink and create it again: it then begins with the present rows of its tables."
                catalog.sinks.set_state(record.name, SinkState.FAILED, error=message, hint=hint)
                reader.set_lease(sink_reader(record.name), None)


def _has_older_changes(
    catalog: Catalog, record: SinkRecord, source: str, reader: ChangeLogReader, held: Lsn, limit: timedelta
) -> bool:
    """Return whether a sink has not delivered changes of its tables that are older than the limit."""
    tables = [t for t in catalog.tables(source) if sink_of(record).table in (None, t.local)]
    if source not in record.started and any(table.state is not TableState.LIVE for table in tables):
        return False  # it waits for the initial snapshot
    try:
        upto = reader.position_at(datetime.now(UTC) - limit)
        return upto > held and any(reader.extent(table.upstream, held, upto).chunks for table in tables)
    except HistoryExpiredError:  # all history is more recent, or begins with a table that was captured again
        return False
