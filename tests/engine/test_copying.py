"""The parallel copy, all the way into Delta: odd tables, sessions that die, and what is said meanwhile."""

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
from penstock.engine.runner import Running
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.positions import Lsn
from penstock.sources.postgres import copy as postgres_copy
from penstock.sources.postgres.wal import written
from penstock.tables import snapshot_files
from penstock.tables.interface import TableStore
from penstock.tables.spark_tables import SparkTables
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until


class Copying:
    """A home whose source is being copied."""

    def __init__(self, home: Home, database: Any, store: TableStore) -> None:
        self.home, self.database, self.store = home, database, store
        self.said: list[str] = []
        self.running: Running | None = None

    @property
    def spark(self) -> SparkSession:
        """The session, where the tables are in Spark."""
        return self.store.spark

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a live table."""
        found: Any = self.home.live(self.store).table(f"shop.{name}")
        read = found.toArrow() if isinstance(found, DataFrame) else found
        return [tuple(row.values()) for row in read.to_pylist()]

    def states(self) -> dict[str, str]:
        (source,) = self.home.status().sources
        return {table.upstream.removeprefix("public."): table.state for table in source.tables}

    def table(self, name: str) -> Any:
        (source,) = self.home.status().sources
        return next(found for found in source.tables if found.upstream == f"public.{name}")

    def live(self) -> None:
        assert self.running is not None
        self.running.wait_live(PATIENCE)

    def unequal(self) -> list[str]:
        """The tables that are not as they are upstream, at one position."""
        return [str(verdict.table) for verdict in self.home.verify(self.store, "shop") if not verdict.equal]


@pytest.fixture
def start(database: Any, tmp_path: Path, in_process: None) -> Iterator[Callable[..., Copying]]:
    """Begins a copy into tables in memory."""
    with copies(tmp_path / "home", database, MemoryTables()) as begin:
        yield begin


@pytest.fixture
def start_in_spark(database: Any, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., Copying]]:
    """Begins a copy into Delta tables, by tasks of Spark."""
    with copies(tmp_path / "home", database, SparkTables(spark)) as begin:
        yield begin


@contextmanager
def copies(home: Path, database: Any, store: TableStore) -> Iterator[Callable[..., Copying]]:
    with ExitStack() as stack:

        def begin(before_it_runs: Callable[[], object] = lambda: None, **options: Any) -> Copying:
            made = Copying(Home(home), database, store)
            made.home.create(database.url, "shop", **options)
            before_it_runs()
            made.running = stack.enter_context(made.home.run(store, made.said.append))
            return made

        yield begin


def positions(made: Copying) -> dict[str, Lsn | None]:
    """At which position each table was copied."""
    bases = Catalog(catalog_path(made.home.path)).bases
    return {table: bases.first("shop", table) for table in made.states()}


@pytest.mark.deep
def test_odd_tables_become_what_they_are_upstream(
    database: Any, start_in_spark: Callable[..., Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty, of one row, with 1,600 columns, partitioned, with odd names, with huge values, in many ranges."""
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
    made = start_in_spark(partitions="root")
    made.live()
    assert made.states() == dict.fromkeys(["empty", "huge", "many", "named", "one", "parts", "wide"], "live")
    assert made.unequal() == []
    base = made.spark.read.format("delta").load(str(made.home.path / "lake" / "shop" / "many"))
    assert len(base.inputFiles()) > 1
    assert base.filter("id = 7").count() == base.filter("at < timestamp '0800-01-03'").count() == 1
    assert not list((made.home.path / "lake" / "shop").glob(".copying-*"))


@pytest.mark.deep
def test_the_first_and_the_last_moment_are_copied_and_found(
    database: Any, start_in_spark: Callable[..., Copying]
) -> None:
    """Files have statistics of them, by which others are passed by: these must not be."""
    database.execute(
        "CREATE TABLE edges (id int PRIMARY KEY, at timestamptz, local timestamp, day date, n numeric(38))"
    )
    database.execute(
        "INSERT INTO edges VALUES (1, '9999-12-31 23:59:59.999999+00', '9999-12-31 23:59:59.999999', '9999-12-31',"
        " repeat('9', 38)::numeric), (2, '0001-01-01 00:00:00+00', '0001-01-01', '0001-01-01',"
        " -repeat('9', 38)::numeric)"
    )
    made = start_in_spark()
    made.live()
    assert made.states() == {"edges": "live"}
    assert made.unequal() == []
    edges = made.spark.read.format("delta").load(str(made.home.path / "lake" / "shop" / "edges"))
    for name, last, first in (
        ("at", "timestamp '9999-12-31 23:59:59.999999Z'", "timestamp '0001-01-01 00:00:00Z'"),
        ("local", "timestamp_ntz '9999-12-31 23:59:59.999999'", "timestamp_ntz '0001-01-01'"),
        ("day", "date '9999-12-31'", "date '0001-01-01'"),
        ("n", "9" * 38, "-" + "9" * 38),
    ):
        assert [edges.filter(f"{name} = {end}").count() for end in (last, first)] == [1, 1], name
    database.execute("UPDATE edges SET day = day - 1 WHERE id = 1; UPDATE edges SET day = day + 1 WHERE id = 2")
    until(lambda: made.table("edges").behind == 0, "the updates of extremes are merged")
    assert made.unequal() == []


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[threading.Event, threading.Event]]]:
    """Hold the copy of a table at its start: an event that says it is there, and one that lets it go on."""
    real = snapshot.ParallelCopy._create
    gates: dict[str, tuple[threading.Event, threading.Event]] = {}

    def waiting(self: Any, table: Any, *rest: Any) -> None:
        if table.record.local in gates:
            reached, opened = gates[table.record.local]
            reached.set()
            assert opened.wait(PATIENCE)
        real(self, table, *rest)

    monkeypatch.setattr(snapshot.ParallelCopy, "_create", waiting)

    def make(name: str) -> tuple[threading.Event, threading.Event]:
        gates[name] = threading.Event(), threading.Event()
        return gates[name]

    yield make
    for _, opened in gates.values():
        opened.set()


TWO = "CREATE TABLE {0} (id int PRIMARY KEY, body text); INSERT INTO {0} SELECT n, n FROM generate_series(1, 500) n"
EXPORTER = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock snapshot'"


def test_an_exporter_that_dies_leaves_finished_tables_and_the_rest_is_copied_anew(
    database: Any, start: Callable[..., Copying], gate: Callable[..., Any]
) -> None:
    for name in ("first", "second"):
        database.execute(TWO.format(name))
    reached, go_on = gate("second")
    made = start()
    assert reached.wait(PATIENCE)
    until(lambda: made.states()["first"] == "live", "the copy of the first table")
    assert made.states()["second"] == "pending"
    assert database.execute(EXPORTER) == [(True,)]
    database.execute("UPDATE first SET body = 'later'; DELETE FROM second WHERE id < 100")
    go_on.set()
    made.live()
    found = positions(made)
    assert found["first"] and found["second"]
    assert found["first"] < found["second"], "the second was copied at another snapshot, the first was kept"
    assert any("lost its snapshot" in line for line in made.said)
    assert made.unequal() == []


@pytest.mark.deep
def test_a_copying_session_that_is_killed_is_begun_again(
    database: Any, start_in_spark: Callable[..., Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table larger than all buffers, so that the session is at it when it is ended."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO t SELECT n, repeat('x', 1000000) FROM generate_series(1, 150) n")
    killing, killed = threading.Event(), threading.Event()

    def kill() -> None:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'penstock copy %'"
        while not killing.is_set():
            if database.execute(query):
                killed.set()
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        made = start_in_spark()
        made.live()
    finally:
        killing.set()
        thread.join()
    assert killed.is_set()
    assert any("trying again" in line for line in made.said)
    assert made.unequal() == []
    assert len(list(made.home.path.glob("lake/shop/**/*.parquet"))) == 1, "what was begun is removed"


def test_a_table_that_is_dropped_meanwhile_ends_alone(
    database: Any, start: Callable[..., Copying], gate: Callable[..., Any]
) -> None:
    for name in ("kept", "dropped"):
        database.execute(TWO.format(name))
    reached, go_on = gate("dropped")
    made = start()
    assert reached.wait(PATIENCE)
    database.execute("DROP TABLE dropped")
    go_on.set()
    made.live()
    assert made.states() == {"kept": "live", "dropped": "failed"}
    assert "RETRY TABLE" in made.table("dropped").hint
    database.execute("INSERT INTO kept VALUES (1000, 'x')")
    until(lambda: len(made.rows("kept")) == 501, "the others to run on")


def test_a_table_that_is_truncated_after_the_snapshot_begins_after_that(
    database: Any, start: Callable[..., Copying], gate: Callable[..., Any]
) -> None:
    truncated_after_the_snapshot(database, start, gate, "body")


@pytest.mark.deep
@pytest.mark.parametrize(  # Delta renames the second one: its copy is written otherwise
    "column", [pytest.param("body", marks=pytest.mark.deep), "odd name"]
)
def test_a_table_that_is_truncated_after_the_snapshot_begins_after_that_in_spark(
    database: Any, start_in_spark: Callable[..., Copying], gate: Callable[..., Any], column: str
) -> None:
    truncated_after_the_snapshot(database, start_in_spark, gate, column)


def truncated_after_the_snapshot(
    database: Any, start: Callable[..., Copying], gate: Callable[..., Any], column: str
) -> None:
    """To the snapshot it looks empty, though it was not: no position before the TRUNCATE may show that."""
    database.execute(TWO.format("t").replace("body", f'"{column}"'))
    reached, go_on = gate("t")
    made = start()
    assert reached.wait(PATIENCE)
    database.execute(f"INSERT INTO t VALUES (1000, 'x'); ALTER TABLE t ADD COLUMN \"{column} 2\" int DEFAULT 7")
    with database.connect() as connection:
        before = written(connection)
    database.execute("BEGIN; TRUNCATE t; INSERT INTO t VALUES (1, 'a'), (2, 'b'); COMMIT; DELETE FROM t WHERE id = 2")
    go_on.set()
    made.live()
    assert Catalog(catalog_path(made.home.path)).bases.newest("shop", "t", before) is None
    assert made.unequal() == []
    assert made.rows("t") == [(1, "a", 7)]


def test_a_table_that_is_rewritten_after_the_snapshot_is_copied_again(
    database: Any, start: Callable[..., Copying], gate: Callable[..., Any]
) -> None:
    """Partitions are looked at as well; here one of them looks empty to the snapshot."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)")
    for number in range(2):
        bounds = f"FROM ({number * 100}) TO ({number * 100 + 100})"
        database.execute(f"CREATE TABLE t_{number} PARTITION OF t FOR VALUES {bounds}")
    database.execute("INSERT INTO t SELECT n, n FROM generate_series(0, 199) n")
    reached, go_on = gate("t")
    made = start(partitions="root")
    assert reached.wait(PATIENCE)
    database.execute("ALTER TABLE t_1 SET UNLOGGED; ALTER TABLE t_1 SET LOGGED")
    go_on.set()
    made.live()
    assert any("rewritten" in line and "trying again" in line for line in made.said)
    assert len(made.rows("t")) == 200
    assert made.unequal() == []


def test_a_copy_that_waits_says_for_whom_and_tries_again(database: Any, start: Callable[..., Copying]) -> None:
    database.execute(TWO.format("t"))
    with psycopg.connect(database.url, application_name="forgotten") as session:
        # The source's own slot waits for transactions as well: this one begins when that is made.
        made = start(lambda: session.execute("INSERT INTO t VALUES (1000, 'x')"), snapshot_wait="3 s")
        pid = session.info.backend_pid
        until(lambda: f"pid {pid} (application forgotten" in (made.table("t").waiting or ""), "the reason")
        assert made.table("t").copied_rows is None
        until(lambda: any("in vain" in line and "trying again" in line for line in made.said), "giving up")
        session.commit()
    made.live()
    assert made.table("t").waiting is None
    assert made.unequal() == []


@pytest.mark.deep
def test_progress_is_seen_by_others_in_rows_and_bytes_and_never_goes_back(
    database: Any, start_in_spark: Callable[..., Copying], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(postgres_copy, "_MOST_BYTES", 4 << 20)
    monkeypatch.setattr(snapshot, "_LOOK_SECONDS", 0.02)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO t SELECT n, repeat(md5(n::text), 8) FROM generate_series(1, 150000) n; ANALYZE t")
    seen: list[CopyProgress] = []
    real = Catalog.note_progress

    def noting(self: Catalog, source: str, local: str, found: CopyProgress) -> None:
        real(self, source, local, found)
        seen.append(Catalog(catalog_path(tmp_path / "home")).progress(source)[local])
        shown.append(made.table(local) if found.rows else None)

    shown: list[Any] = []
    made = Copying(Home(tmp_path / "home"), database, None)  # type: ignore[arg-type]
    monkeypatch.setattr(Catalog, "note_progress", noting)
    running = start_in_spark()
    running.live()
    monkeypatch.undo()
    assert [(one.rows, one.bytes) for one in seen] == sorted((one.rows, one.bytes) for one in seen)
    assert any(0 < one.rows < 150_000 for one in seen), "some of it was seen on the way"
    assert all(one.rows <= one.total_rows == 150_000 for one in seen), "nothing counts twice"
    assert all(0 <= one.bytes <= one.total_bytes for one in seen)
    on_the_way = [one for one in shown if one is not None]
    assert on_the_way
    assert all(one.copied_rows and one.copied_bytes and one.estimated_rows == 150_000 for one in on_the_way)
    assert running.table("t").copied_rows is None, "not when it is whole"
    assert running.unequal() == []


def test_a_copy_that_fails_leaves_no_files(
    database: Any, start_in_spark: Callable[..., Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last range holds a value that cannot be kept; the others are written by then, or soon after."""
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 14)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, day date, body text)")
    database.execute("INSERT INTO t SELECT n, '2026-01-01', repeat('x', 500) FROM generate_series(1, 9000) n")
    database.execute("INSERT INTO t VALUES (0, 'infinity', 'x')")
    made = start_in_spark()
    until(lambda: made.states()["t"] == "failed", "the error of the table")
    assert "column day" in made.table("t").error
    until(lambda: not list(made.home.path.glob("lake/shop/**/*.parquet")), "their removal")


def test_finished_ranges_count_exactly_what_they_gave(database: Any, spark: SparkSession, tmp_path: Path) -> None:
    from penstock.sources.postgres.connection import connect
    from penstock.sources.postgres.slot import export_snapshot
    from penstock.sources.postgres.spec import PostgresSource

    database.execute(TWO.format("t"))
    (instance,) = PostgresSource.from_url(database.url, "shop").create_instances(1)
    (table,) = instance.tables
    with connect(database.url) as connection:
        ranges = postgres_copy.page_ranges(connection, table.name, 2)
    with export_snapshot(database.url) as snapshot:
        whole = database.execute("SELECT sum(length(body)) FROM t")[0][0] + 500 * (2 + 8 + 4)
        actions = snapshot_files.files_of_ranges(spark, database.url, snapshot, table, ranges, tmp_path / "t", tmp_path)
    found = snapshot_files.finished_ranges(tmp_path)
    assert sum(tally.rows for tally in found.values()) == 500
    assert whole < sum(tally.bytes for tally in found.values()) < whole + 100 * len(ranges)
    assert len(actions) == 1
