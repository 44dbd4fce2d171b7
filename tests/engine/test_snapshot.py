"""The parallel snapshot, up to Delta: unusual tables, sessions that die, and progress reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog.progress import CopyProgress
from penstock.catalog.store import Catalog
from penstock.engine import snapshot
from penstock.engine.runner import HomeRunner
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.positions import Lsn
from penstock.sources.postgres.replication.wal import wal_insert_position
from penstock.sources.postgres.snapshot import copy as postgres_copy
from penstock.tables import snapshot_files
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until


class SnapshotRun:
    """A home during the initial snapshot of its source."""

    def __init__(self, home: Home, database: Any, store: TableStore) -> None:
        self.home, self.database, self.store = home, database, store
        self.reported: list[str] = []
        self.running: HomeRunner | None = None

    @property
    def spark(self) -> SparkSession:
        """The Spark session, if the tables are in Spark."""
        return self.store.spark

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a live table."""
        bases: Any = self.home.live(self.store).table(f"shop.{name}")
        read = bases.toArrow() if isinstance(bases, DataFrame) else bases
        return [tuple(row.values()) for row in read.to_pylist()]

    def states(self) -> dict[str, str]:
        (source,) = self.home.status().sources
        return {table.upstream.removeprefix("public."): table.state for table in source.tables}

    def table(self, name: str) -> Any:
        (source,) = self.home.status().sources
        return next(bases for bases in source.tables if bases.upstream == f"public.{name}")

    def live(self) -> None:
        assert self.running is not None
        self.running.wait_live(PATIENCE)

    def unequal(self) -> list[str]:
        """The tables that differ from upstream at one position."""
        return [str(verdict.table) for verdict in self.home.verify(self.store, "shop") if not verdict.equal]


@pytest.fixture
def start_run(database: Any, tmp_path: Path, in_process: None) -> Iterator[Callable[..., SnapshotRun]]:
    """Starts a snapshot into tables in memory."""
    with runs(tmp_path / "home", database, MemoryTables()) as start:
        yield start


@pytest.fixture
def start_spark_run(database: Any, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., SnapshotRun]]:
    """Starts a snapshot into Delta tables, by Spark tasks."""
    with runs(tmp_path / "home", database, SparkTables(spark)) as start:
        yield start


@contextmanager
def runs(home: Path, database: Any, store: TableStore) -> Iterator[Callable[..., SnapshotRun]]:
    with ExitStack() as stack:

        def start(before_run: Callable[[], object] = lambda: None, **options: Any) -> SnapshotRun:
            run = SnapshotRun(Home(home), database, store)
            run.home.create(database.url, "shop", **options)
            before_run()
            run.running = stack.enter_context(run.home.run(store, run.reported.append))
            return run

        yield start


def positions(run: SnapshotRun) -> dict[str, Lsn | None]:
    """The snapshot position of each table."""
    bases = Catalog(catalog_path(run.home.path)).bases
    return {table: bases.first("shop", table) for table in run.states()}


@pytest.mark.deep
def test_unusual_tables_equal_upstream(
    database: Any, start_spark_run: Callable[..., SnapshotRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty, of one row, with 1,600 columns, partitioned, with unusual names, with huge values, in many page ranges."""
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 14)
    wide = ", ".join(f"c{n} int DEFAULT {n}" for n in range(1599))
    database.execute("CREATE TABLE empty (id int PRIMARY KEY, body text)")
    database.execute("CREATE TABLE one (id int PRIMARY KEY, body text); INSERT INTO one VALUES (1, NULL)")
    database.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {wide})")
    database.execute("INSERT INTO wide (id) VALUES (1), (2); UPDATE wide SET c7 = NULL WHERE id = 2")
    database.execute("CREATE TABLE parts (id int PRIMARY KEY, at date) PARTITION BY RANGE (id)")
    for number in range(3):
        bounds = f"FROM ({number * 1000}) TO ({number * 1000 + 1000})"
        database.execute(f"CREATE TABLE parts_{number} PARTITION OF parts FOR VALUES {bounds}")
    database.execute("INSERT INTO parts SELECT n, date '1500-01-01' + n FROM generate_series(0, 2999) n")
    database.execute('CREATE TABLE named (id int PRIMARY KEY, "odd name, with = signs" text)')
    database.execute("INSERT INTO named SELECT n, n FROM generate_series(1, 100) n")
    database.execute("CREATE TABLE huge (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO huge SELECT n, repeat('x', n * 1000000) FROM generate_series(0, 60, 20) n")
    database.execute(
        "CREATE TABLE many (id int PRIMARY KEY, at timestamptz, f float8, tags text[], amount numeric(9,2))"
    )
    database.execute(
        "INSERT INTO many SELECT n, timestamptz '0800-01-01' + n * interval '1 day', 'NaN', ARRAY['a', NULL], n / 100.0"
        " FROM generate_series(1, 30000) n"
    )
    run = start_spark_run(partitions="root")
    run.live()
    assert run.states() == dict.fromkeys(["empty", "huge", "many", "named", "one", "parts", "wide"], "live")
    assert run.unequal() == []
    base = run.spark.read.format("delta").load(str(run.home.path / "lake" / "shop" / "many"))
    assert len(base.inputFiles()) > 1
    assert base.filter("id = 7").count() == base.filter("at < timestamp '0800-01-03'").count() == 1
    assert not list((run.home.path / "lake" / "shop").glob(".copying-*"))


@pytest.mark.deep
def test_smallest_and_largest_values_are_copied_and_found(
    database: Any, start_spark_run: Callable[..., SnapshotRun]
) -> None:
    """File statistics let a query skip files: it must not skip the files of these rows."""
    database.execute(
        "CREATE TABLE edges (id int PRIMARY KEY, at timestamptz, local timestamp, day date, n numeric(38))"
    )
    database.execute(
        "INSERT INTO edges VALUES (1, '9999-12-31 23:59:59.999999+00', '9999-12-31 23:59:59.999999', '9999-12-31',"
        " repeat('9', 38)::numeric), (2, '0001-01-01 00:00:00+00', '0001-01-01', '0001-01-01',"
        " -repeat('9', 38)::numeric)"
    )
    run = start_spark_run()
    run.live()
    assert run.states() == {"edges": "live"}
    assert run.unequal() == []
    edges = run.spark.read.format("delta").load(str(run.home.path / "lake" / "shop" / "edges"))
    for name, last, first in (
        ("at", "timestamp '9999-12-31 23:59:59.999999Z'", "timestamp '0001-01-01 00:00:00Z'"),
        ("local", "timestamp_ntz '9999-12-31 23:59:59.999999'", "timestamp_ntz '0001-01-01'"),
        ("day", "date '9999-12-31'", "date '0001-01-01'"),
        ("n", "9" * 38, "-" + "9" * 38),
    ):
        assert [edges.filter(f"{name} = {end}").count() for end in (last, first)] == [1, 1], name
    database.execute("UPDATE edges SET day = day - 1 WHERE id = 1; UPDATE edges SET day = day + 1 WHERE id = 2")
    until(lambda: run.table("edges").behind == 0, "the updates to be merged")
    assert run.unequal() == []


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[threading.Event, threading.Event]]]:
    """Pause the snapshot of a table at its start: one event is set when it gets there, the other resumes it."""
    real = snapshot.InitialSnapshot._create
    gates: dict[str, tuple[threading.Event, threading.Event]] = {}

    def waiting(self: Any, table: Any, *rest: Any) -> None:
        if table.record.local in gates:
            arrived, opened = gates[table.record.local]
            arrived.set()
            assert opened.wait(PATIENCE)
        real(self, table, *rest)

    monkeypatch.setattr(snapshot.InitialSnapshot, "_create", waiting)

    def make(name: str) -> tuple[threading.Event, threading.Event]:
        gates[name] = threading.Event(), threading.Event()
        return gates[name]

    yield make
    for _, opened in gates.values():
        opened.set()


TABLE = "CREATE TABLE {0} (id int PRIMARY KEY, body text); INSERT INTO {0} SELECT n, n FROM generate_series(1, 500) n"
EXPORTER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock snapshot'"


def test_tables_copied_before_the_exporter_dies_are_kept_and_the_others_are_copied_again(
    database: Any, start_run: Callable[..., SnapshotRun], gate: Callable[..., Any]
) -> None:
    for name in ("first", "second"):
        database.execute(TABLE.format(name))
    arrived, resume = gate("second")
    run = start_run()
    assert arrived.wait(PATIENCE)
    until(lambda: run.states()["first"] == "live", "the snapshot of the first table")
    assert run.states()["second"] == "pending"
    assert database.execute(EXPORTER) == [(True,)]
    database.execute("UPDATE first SET body = 'later'; DELETE FROM second WHERE id < 100")
    resume.set()
    run.live()
    bases = positions(run)
    assert bases["first"] and bases["second"]
    assert bases["first"] < bases["second"], "the second table has a newer snapshot, the first was kept"
    assert any("cannot import the exported snapshot" in line for line in run.reported)
    assert run.unequal() == []


@pytest.mark.deep
def test_killed_copy_session_is_retried(
    database: Any, start_spark_run: Callable[..., SnapshotRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table larger than all buffers, so that the session is still copying when it is terminated."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t SELECT n, repeat('x', 1000000) FROM generate_series(1, 150) n")
    stop, killed = threading.Event(), threading.Event()

    def kill() -> None:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'penstock copy %'"
        while not stop.is_set():
            if database.execute(query):
                killed.set()
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        run = start_spark_run()
        run.live()
    finally:
        stop.set()
        thread.join()
    assert killed.is_set()
    assert any("retrying" in line for line in run.reported)
    assert run.unequal() == []
    assert len(list(run.home.path.glob("lake/shop/**/*.parquet"))) == 1, "files of the aborted copy are removed"


def test_table_dropped_during_the_snapshot_fails_alone(
    database: Any, start_run: Callable[..., SnapshotRun], gate: Callable[..., Any]
) -> None:
    for name in ("kept", "dropped"):
        database.execute(TABLE.format(name))
    arrived, resume = gate("dropped")
    run = start_run()
    assert arrived.wait(PATIENCE)
    database.execute("DROP TABLE dropped")
    resume.set()
    run.live()
    assert run.states() == {"kept": "live", "dropped": "failed"}
    assert "RETRY TABLE" in run.table("dropped").hint
    database.execute("INSERT INTO kept VALUES (1000, 'x')")
    until(lambda: len(run.rows("kept")) == 501, "the other table to continue")


def test_table_truncated_after_the_snapshot_starts_after_the_truncate(
    database: Any, start_run: Callable[..., SnapshotRun], gate: Callable[..., Any]
) -> None:
    check_truncate_after_the_snapshot(database, start_run, gate, "body")


@pytest.mark.deep
@pytest.mark.parametrize(  # Delta maps the second name to another one: such files are written differently
    "column", [pytest.param("body", marks=pytest.mark.deep), "odd name"]
)
def test_table_truncated_after_the_snapshot_starts_after_the_truncate_in_spark(
    database: Any, start_spark_run: Callable[..., SnapshotRun], gate: Callable[..., Any], column: str
) -> None:
    check_truncate_after_the_snapshot(database, start_spark_run, gate, column)


def check_truncate_after_the_snapshot(
    database: Any, start_run: Callable[..., SnapshotRun], gate: Callable[..., Any], column: str
) -> None:
    """The exported snapshot sees an empty table: it must not be shown at positions before the TRUNCATE."""
    database.execute(TABLE.format("t").replace("body", f'"{column}"'))
    arrived, resume = gate("t")
    run = start_run()
    assert arrived.wait(PATIENCE)
    database.execute(f"INSERT INTO t VALUES (1000, 'x'); ALTER TABLE t ADD COLUMN \"{column} 2\" int DEFAULT 7")
    with database.connect() as connection:
        before = wal_insert_position(connection)
    database.execute("BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 'a'), (2, 'b'); COMMIT; DELETE FROM t WHERE id = 2")
    resume.set()
    run.live()
    assert Catalog(catalog_path(run.home.path)).bases.newest("shop", "t", before) is None
    assert run.unequal() == []
    assert run.rows("t") == [(1, "a", 7)]


def test_table_rewritten_after_the_snapshot_is_copied_again(
    database: Any, start_run: Callable[..., SnapshotRun], gate: Callable[..., Any]
) -> None:
    """Partitions are checked as well; here the exported snapshot sees one of them as empty."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)")
    for number in range(2):
        bounds = f"FROM ({number * 100}) TO ({number * 100 + 100})"
        database.execute(f"CREATE TABLE t_{number} PARTITION OF t FOR VALUES {bounds}")
    database.execute("INSERT INTO t SELECT n, n FROM generate_series(0, 199) n")
    arrived, resume = gate("t")
    run = start_run(partitions="root")
    assert arrived.wait(PATIENCE)
    database.execute("ALTER TABLE t_1 SET UNLOGGED; ALTER TABLE t_1 SET LOGGED")
    resume.set()
    run.live()
    assert any("rewritten" in line and "retrying" in line for line in run.reported)
    assert len(run.rows("t")) == 200
    assert run.unequal() == []


def test_waiting_snapshot_names_the_blocking_session_and_retries(
    database: Any, start_run: Callable[..., SnapshotRun]
) -> None:
    database.execute(TABLE.format("t"))
    with psycopg.connect(database.url, application_name="forgotten") as session:
        # The source's slot waits for open transactions too: this one begins after the slot is created.
        run = start_run(lambda: session.execute("INSERT INTO t VALUES (1000, 'x')"), snapshot_wait="3 s")
        pid = session.info.backend_pid
        until(lambda: f"pid {pid} (application forgotten" in (run.table("t").waiting or ""), "the reason for waiting")
        assert run.table("t").copied_rows is None
        until(lambda: any("timed out" in line and "retrying" in line for line in run.reported), "the timeout")
        session.commit()
    run.live()
    assert run.table("t").waiting is None
    assert run.unequal() == []


@pytest.mark.deep
def test_progress_is_visible_in_rows_and_bytes_and_never_decreases(
    database: Any, start_spark_run: Callable[..., SnapshotRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(postgres_copy, "_MOST_BYTES", 4 << 20)
    monkeypatch.setattr(snapshot, "_POLL_SECONDS", 0.02)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT n, repeat(md5(n::text), 8) FROM generate_series(1, 150000) n; ANALYZE t")
    progress: list[CopyProgress] = []
    real = Catalog.note_progress

    def note_progress(self: Catalog, source: str, local: str, bases: CopyProgress) -> None:
        real(self, source, local, bases)
        progress.append(Catalog(catalog_path(tmp_path / "home")).progress(source)[local])
        shown.append(run.table(local) if bases.rows else None)

    shown: list[Any] = []
    run = SnapshotRun(Home(tmp_path / "home"), database, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Catalog, "note_progress", note_progress)
    running = start_spark_run()
    running.live()
    monkeypatch.undo()
    assert [(each.rows, each.bytes) for each in progress] == sorted((each.rows, each.bytes) for each in progress)
    assert any(0 < each.rows < 150_000 for each in progress), "intermediate progress was recorded"
    assert all(each.rows <= each.total_rows == 150_000 for each in progress), "no row is counted twice"
    assert all(0 <= each.bytes <= each.total_bytes for each in progress)
    while_copying = [each for each in shown if each is not None]
    assert while_copying
    assert all(each.copied_rows and each.copied_bytes and each.estimated_rows == 150_000 for each in while_copying)
    assert running.table("t").copied_rows is None, "there is no progress after the snapshot"
    assert running.unequal() == []


def test_failed_snapshot_leaves_no_files(
    database: Any, start_spark_run: Callable[..., SnapshotRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last range contains a value that cannot be stored; the files of the others may already exist."""
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 14)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, day date, body text)")
    database.execute("INSERT INTO t SELECT n, '2026-01-01', repeat('x', 500) FROM generate_series(1, 9000) n")
    database.execute("INSERT INTO t VALUES (0, 'infinity', 'x')")
    run = start_spark_run()
    until(lambda: run.states()["t"] == "failed", "the error of the table")
    assert "column day" in run.table("t").error
    until(lambda: not list(run.home.path.glob("lake/shop/**/*.parquet")), "the files to be removed")


def test_finished_ranges_report_exact_row_and_byte_counts(database: Any, spark: SparkSession, tmp_path: Path) -> None:
    from penstock.sources.postgres.connection import connect
    from penstock.sources.postgres.replication.slot import export_snapshot
    from penstock.sources.postgres.snapshot.database import PostgresCopy
    from penstock.sources.postgres.spec import PostgresSource

    database.execute(TABLE.format("t"))
    (instance,) = PostgresSource.from_url(database.url, "shop").create_instances(1)
    (table,) = instance.tables
    with connect(database.url) as connection:
        ranges = postgres_copy.page_ranges(connection, table.name, 2)
    with export_snapshot(database.url) as snapshot:
        row_bytes = database.execute("SELECT sum(length(body)) FROM t")[0][0] + 500 * (2 + 8 + 4)
        copy = PostgresCopy.of(database.url, snapshot, table, ranges)
        actions = snapshot_files.files_of_ranges(spark, copy, tmp_path / "t", tmp_path)
    bases = snapshot_files.finished_ranges(tmp_path)
    assert sum(tally.rows for tally in bases.values()) == 500
    assert row_bytes < sum(tally.bytes for tally in bases.values()) < row_bytes + 100 * len(ranges)
    assert len(actions) == 1
