"""From Postgres to Kafka, exactly once, compared with Debezium in Kafka Connect.

Both drain the same changes of one table: inserts and updates in transactions of 1,000. Everything runs on this machine:
Postgres, the broker, the schema registry (for Avro) and the candidates.

::

    sinks and connectors have started ─▶ capture and connectors are stopped ─▶ load ─▶ drained, one after the other

    Debezium            WAL ─▶ connector, Connect ─▶ topic                           one Java process
    capture and sink    WAL ─▶ capture ─▶ log ─▶ sink ─▶ topic                       two Python processes
    sink                                 log ─▶ sink ─▶ topic                       one, from a log that is complete

*Capture and sink* is the counterpart of Debezium and gives the ratio: both decode the WAL and write the same messages
(ENVELOPE DEBEZIUM, JSON without schemas). It also writes the log, with fsync. The time is from START_REPLICATION, as
logged by the server, to the last message that a consumer with ``read_committed`` sees; processes are started and warm
by then, except capture, whose start the figure excludes. *Sink* alone is timed from its first commit, without the
messages of that commit.

CPU time is that of the candidate's processes in the same interval, without Postgres and the broker; *of all processes*
includes them. The number of busy cores shows whether the machine itself is the limit. Apply does not run: Debezium has
no counterpart of the tables.

Debezium is at an advantage in guarantees: Connect in standalone mode writes without transactions, at least once. Its
JVM and that of the broker have the default compiler and garbage collector; Connect has 2 GB of heap. Its options are
the defaults, which include no compression, except larger batches.

Goal: at least 10, at least 100,000 messages/s, and a tenth of the CPU time per message.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.drain import Drain, Drained, Topic
from bench.rounds import Spread, print_environment, print_table, size
from penstock.catalog.store import Catalog
from penstock.embedded.postgres import EmbeddedPostgres, start_postgres
from penstock.engine.sink_runner import SinkRunner
from penstock.engine.source_runner import CaptureSupervisor
from penstock.errors import DefiniteError
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.testing.debezium import Converter, Debezium
from penstock.testing.kafka import KafkaBroker
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.registry import SchemaRegistry, start_registry
from penstock.testing.waiting import until

__all__ = ["run"]

_TABLE = "public.orders"
_TITLES = {"json": "JSON", "avro": "Avro"}
_TRANSACTION = 1000
_START_SECONDS = 120.0
_SETTINGS = {"log_replication_commands": "on", "log_line_prefix": "%n ", "autovacuum": "off"}
_SMALL_JVM = ("-Xmx", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel")
"""Options that make the servers of tests start fast, and run slowly."""
_QUIET = "-Dorg.slf4j.simpleLogger.log.io.debezium.metrics.stats=off"
"""Debezium's metrics would log a line for each event when they cannot keep up."""
_DEBEZIUM = {
    "provide.transaction.metadata": "false",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "producer.override.linger.ms": "5",
}
_HEADER = (
    *("", "messages", "seconds", "messages/s", "CPU s per million", "of all processes", "busy cores"),
    *("rate / Debezium's", "CPU / Debezium's"),
)
_SETUP = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer integer NOT NULL, quantity smallint NOT NULL, status text NOT NULL, note text,
    amount numeric(12,2) NOT NULL, placed timestamptz NOT NULL, paid boolean NOT NULL, weight double precision,
    token uuid NOT NULL, due date, details jsonb);
CREATE SEQUENCE batches;
CREATE PROCEDURE load(transactions integer, size integer) LANGUAGE plpgsql AS $$
DECLARE start bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', false);
    FOR t IN 1..transactions LOOP
        start := nextval('batches') * size;
        INSERT INTO orders SELECT n, n % 50000, n % 100, (ARRAY['new', 'paid', 'sent', 'back'])[1 + n % 4],
            CASE WHEN n % 10 <> 0 THEN 'order number ' || n || ' of a customer' END, (n % 1000000) / 100.0,
            timestamptz '2026-01-01' + n * interval '1 second', n % 3 = 0, n / 7.0, md5(n::text)::uuid,
            date '2026-01-01' + (n % 365)::integer,
            jsonb_build_object('channel', 'web', 'items', n % 9, 'gift', n % 2 = 0)
            FROM generate_series(start, start + size * 3 / 4 - 1) n;
        UPDATE orders SET status = 'changed', amount = amount + 1, paid = true
            WHERE id BETWEEN start AND start + size / 4 - 1;
        COMMIT;
    END LOOP;
END $$;
"""


def run(quick: bool) -> float:
    """Measure, print, and return the rate of capture and sink in JSON, divided by Debezium's."""
    changes, rounds = size(300_000 if quick else 1_000_000, 1 if quick else 3)
    with _servers() as servers:
        print_environment(servers.postgres)
        candidates = servers.candidates()
        for candidate in _after_load(servers, candidates, changes // 4):  # warms up
            candidate.drained.clear()
        for _ in range(rounds):
            _after_load(servers, candidates, changes)
    return _printed(candidates, rounds)


@dataclass
class _Candidate:
    """One way from Postgres to a topic, or from the log."""

    name: str
    drain: Callable[[int], Drained]
    """Drain what was loaded, a number of messages."""
    form: str
    """The format, in which it is compared with Debezium."""
    drained: list[Drained] = field(default_factory=list)


def _after_load(servers: _Servers, candidates: list[_Candidate], changes: int) -> list[_Candidate]:
    """Load changes, and let each candidate drain them."""
    transactions = max(1, changes // _TRANSACTION)
    servers.postgres.execute(f"CALL load({transactions}, {_TRANSACTION})")
    servers.postgres.execute("CHECKPOINT")
    for candidate in candidates:
        candidate.drained.append(candidate.drain(transactions * _TRANSACTION))
    return candidates


def _printed(candidates: list[_Candidate], rounds: int) -> float:
    by_name = {candidate.name: candidate.drained for candidate in candidates}
    rows, ratios = [], {}
    for candidate in candidates:
        drained, reference = candidate.drained, by_name[f"Debezium, {_TITLES[candidate.form]}"]
        pairs = list(zip(drained, reference, strict=True))
        rates = ratios[candidate.name] = Spread.of([own.rate / other.rate for own, other in pairs])
        cpu = Spread.of([own.cpu_per_million / other.cpu_per_million for own, other in pairs])
        rows.append(
            [
                candidate.name,
                f"{drained[0].messages:,}",
                Spread.of([each.seconds for each in drained]).show(".2f"),
                Spread.of([each.rate for each in drained]).show(",.0f"),
                Spread.of([each.cpu_per_million for each in drained]).show(".1f"),
                Spread.of([each.machine_seconds / each.messages * 1e6 for each in drained]).show(".1f"),
                Spread.of([each.busy_cores for each in drained]).show(".1f"),
                rates.show(".2f"),
                cpu.show(".3f"),
            ]
        )
    print_table(f"{rounds} rounds; min / median / max", _HEADER, rows)
    return ratios["capture and sink, JSON"].median


# -- servers -----------------------------------------------------------------------------------------------------------


@contextmanager
def _servers() -> Iterator[_Servers]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        postgres = stack.enter_context(start_postgres(settings=_SETTINGS))
        broker = _Broker(folder / "kafka", session_seconds=30)
        broker.start()
        stack.enter_context(broker)
        registry = stack.enter_context(start_registry(folder / "registry"))
        postgres.execute(_SETUP)
        yield _Servers(folder, postgres, broker, registry, stack)


@dataclass(frozen=True)
class _Servers:
    folder: Path
    postgres: EmbeddedPostgres
    broker: KafkaBroker
    registry: SchemaRegistry
    stack: ExitStack
    topics: list[Topic] = field(default_factory=list)

    def candidates(self) -> list[_Candidate]:
        """Start everything once, so that each candidate has a position; then stop what reads the WAL."""
        kinds = [(form, envelope) for envelope in ("debezium", "upsert") for form in _TITLES]
        debezium = self.stack.enter_context(_Connectors(self))
        alone = [(f"{form}_{envelope}", form, envelope) for form, envelope in kinds]
        homes = {
            "json": _OurHome(self, "json", [("whole", "json", "debezium"), *alone]),
            "avro": _OurHome(self, "avro", [("whole", "avro", "debezium")]),
        }
        self._start(debezium, homes.values())
        return [
            *(_Candidate(f"Debezium, {title}", debezium.drain(form), form) for form, title in _TITLES.items()),
            *(
                _Candidate(f"capture and sink, {title}", homes[form].capture_and_sink("whole"), form)
                for form, title in _TITLES.items()
            ),
            *(
                _Candidate(f"sink, {_TITLES[form]} {envelope.upper()}", homes["json"].sink(name), form)
                for name, form, envelope in alone
            ),
        ]

    def _start(self, debezium: _Connectors, homes: Iterable[_OurHome]) -> None:
        """Run everything until each topic has messages, and then until all of them have the same changes."""
        debezium.start()
        debezium.await_all()
        with ExitStack() as stack:
            for each in homes:
                stack.enter_context(each.home.run(MemoryTables())).wait_live(_START_SECONDS)
            until(self._change_one, "the first messages", _START_SECONDS)
            before: list[int] = []
            while before != (ends := [topic.end() for topic in self.topics]):
                before = ends
                time.sleep(2.0)
        for topic in self.topics:
            topic.read = topic.end()
        for form in _TITLES:
            debezium.request(form, "stop")

    def _change_one(self) -> bool:
        """Insert a row; return whether all topics have messages."""
        self.postgres.execute("CALL load(1, 4)")
        return all(topic.end() for topic in self.topics)

    def topic(self, name: str) -> Topic:
        """Open a topic, until the end."""
        topic = self.stack.enter_context(closing(Topic(self.broker.bootstrap, name)))
        self.topics.append(topic)
        return topic

    def began(self, slot: str) -> float:
        """Return when the server last received START_REPLICATION for a slot, in seconds since 1970."""
        wanted = f'received replication command: START_REPLICATION SLOT "{slot}"'
        found = [line for line in self.postgres.log.read_text(errors="replace").splitlines() if wanted in line]
        if not found:
            message = f"the server log has no START_REPLICATION for slot {slot}"
            raise DefiniteError(message, "This is a bug: please report it.")
        return float(found[-1].split()[0])


class _Broker(KafkaBroker):
    """A broker in a JVM with the default compiler and collector, and the heap that Kafka's start script gives it."""

    def _command(self) -> list[str]:
        java, *others = super()._command()
        return [java, "-Xmx1g", *_with_defaults(others)]


def _with_defaults(options: Iterable[str]) -> list[str]:
    return [each for each in options if not each.startswith(_SMALL_JVM)]


# -- Debezium ----------------------------------------------------------------------------------------------------------


class _Connectors(Debezium):
    """Debezium with a connector for each format, in a JVM with the default compiler and collector."""

    def __init__(self, servers: _Servers) -> None:
        super().__init__(
            servers.folder / "debezium", servers.postgres.url, servers.broker.bootstrap, servers.registry.url
        )
        self._servers = servers
        for form, converter in (("json", Converter.JSON), ("avro", Converter.AVRO)):
            self.add(form, [_TABLE], converter, _DEBEZIUM)
        self._topics = {form: servers.topic(f"{form}.{_TABLE}") for form in _TITLES}

    def drain(self, form: str) -> Callable[[int], Drained]:
        """Return the candidate with a format."""

        def drain(messages: int) -> Drained:
            self.request(form, "resume")
            found = Drain(self._topics[form], messages, lambda: [self.pid or 0])
            self.request(form, "stop")
            return found.since(self._servers.began(f"{form}_slot"))

        return drain

    def request(self, name: str, action: str) -> None:
        """Stop or resume a connector; the process and its compiled code remain."""
        where = f"http://127.0.0.1:{self._port}/connectors/{name}/{action}"
        with urllib.request.urlopen(urllib.request.Request(where, method="PUT"), timeout=60):
            pass
        slot = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{name}_slot'"
        until(lambda: self._servers.postgres.execute(slot)[0][0] == (action == "resume"), f"{name} to {action}")

    def _command(self) -> list[str]:
        java, *others = super()._command()
        return [java, "-Xmx2g", _QUIET, *_with_defaults(others)]


# -- Penstock ----------------------------------------------------------------------------------------------------------


class _OurHome:
    """A home that captures the table, and its sinks."""

    def __init__(self, servers: _Servers, name: str, sinks: Iterable[tuple[str, str, str]]) -> None:
        """Create a source with the name of the home, and sinks: name, format, envelope."""
        self._servers, self.name = servers, name
        self.home = Home(servers.folder / f"home-{name}")
        self.home.create(servers.postgres.url, name)
        self._topics = {sink[0]: self._create(*sink) for sink in sinks}

    def _create(self, name: str, form: str, envelope: str) -> Topic:
        options: dict[str, Any] = {"snapshot": False, "partitions": 1, "topic_prefix": f"{self.name}-{name}."}
        if form == "avro":
            options["schema_registry"] = self._servers.registry.url
        broker = self._servers.broker.bootstrap
        self.home.create_sink(name, self.name, broker=broker, format=form, envelope=envelope, **options)
        return self._servers.topic(f"{self.name}-{name}.{_TABLE}")

    def capture_and_sink(self, sink: str) -> Callable[[int], Drained]:
        """Return the candidate that reads the WAL; its sink runs from now on, and waits for capture."""
        process = self._servers.stack.enter_context(self._running(sink))

        def drain(messages: int) -> Drained:
            capture = CaptureSupervisor(self.home.path, self.name)
            try:
                found = Drain(self._topics[sink], messages, lambda: [process.pid, capture.pid])
                [[slot]] = self._servers.postgres.execute("SELECT slot_name FROM pg_replication_slots WHERE active")
            finally:
                capture.stop()
            return found.since(self._servers.began(slot))

        return drain

    def sink(self, sink: str) -> Callable[[int], Drained]:
        """Return the candidate that reads the log."""

        def drain(messages: int) -> Drained:
            with self._running(sink) as process:
                return Drain(self._topics[sink], messages, lambda: [process.pid]).since_first_commit()

        return drain

    @contextmanager
    def _running(self, sink: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a sink in a process of its own, until the end of the block."""
        command = [sys.executable, "-m", "bench.sink", str(self.home.path), self.name, sink]
        process = subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdin=subprocess.PIPE)
        try:
            yield process
        finally:
            process.communicate()


def _deliver(home: Path, source: str, sink: str) -> None:
    """Run a sink in this process, until standard input ends."""
    catalog = Catalog(catalog_path(home))
    record = catalog.sinks.get(sink)
    assert record is not None
    runner = SinkRunner(home, catalog, record, source, print)
    sys.stdin.read()
    runner.stop()


if __name__ == "__main__":
    _deliver(Path(sys.argv[1]), *sys.argv[2:])
