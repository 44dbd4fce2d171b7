"""The parallel copy, all the way into Delta: odd tables, sessions that die, and what is said meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.catalog.progress import CopyProgress
from penstock.catalog.store import Catalog
from penstock.control import copying, progress
from penstock.control.home import Home
from penstock.control.running import Running
from penstock.layout import catalog_path
from penstock.sources.postgres import copy as postgres_copy
from penstock.sources.postgres.wal import written
from penstock.tables import initial_copy

PATIENCE = 240.0


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)


class Copying:
    """A home whose source is being copied."""

    def __init__(self, home: Home, database: Any, spark: SparkSession) -> None:
        self.home, self.database, self.spark = home, database, spark
        self.said: list[str] = []
        self.running: Running | None = None

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
        """The tables that are not as they are upstream, at one position, in Spark."""
        return [str(verdict.table) for verdict in self.home.verify(self.spark, "shop") if not verdict.equal]


@pytest.fixture
def start(database: Any, tmp_path: Path, spark: SparkSession) -> Iterator[Callable[..., Copying]]:
    stack: list[Any] = []

    def begin(before_it_runs: Callable[[], object] = lambda: None, **options: Any) -> Copying:
        made = Copying(Home(tmp_path / "home"), database, spark)
        made.home.create(database.url, "shop", **options)
        before_it_runs()
        context = made.home.run(spark, made.said.append)
        made.running = context.__enter__()
        stack.append(context)
        return made

    yield begin
    for context in stack:
        context.__exit__(None, None, None)


def positions(made: Copying) -> dict[str, int]:
    """At which position each table was copied, by its first commit."""
    found = {}
    for table in made.states():
        frame = made.spark.sql(f"SHOW TBLPROPERTIES delta.`{made.home.path.absolute() / 'lake' / 'shop' / table}`")
        found[table] = int({row.key: row.value for row in frame.collect()}["penstock.created"])
    return found


def test_odd_tables_become_what_they_are_upstream(
    database: Any, start: Callable[..., Copying], monkeypatch: pytest.MonkeyPatch
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
    made = start(partitions="root")
    made.live()
    assert made.states() == dict.fromkeys(["empty", "huge", "many", "named", "one", "parts", "wide"], "live")
    assert made.unequal() == []
    base = made.spark.read.format("delta").load(str(made.home.path / "lake" / "shop" / "many"))
    assert len(base.inputFiles()) > 1
    assert base.filter("id = 7").count() == base.filter("at < timestamp '0800-01-03'").count() == 1
    assert not list((made.home.path / "lake" / "shop").glob(".copying-*"))


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], tuple[threading.Event, threading.Event]]]:
    """Hold the copy of a table at its start: an event that says it is there, and one that lets it go on."""
    real = copying.ParallelCopy._create
    gates: dict[str, tuple[threading.Event, threading.Event]] = {}

    def waiting(self: Any, table: Any, *rest: Any) -> None:
        if table.record.local in gates:
            reached, opened = gates[table.record.local]
            reached.set()
            assert opened.wait(PATIENCE)
        real(self, table, *rest)

    monkeypatch.setattr(copying.ParallelCopy, "_create", waiting)

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
    assert found["first"] < found["second"], "the second was copied at another snapshot, the first was kept"
    assert any("lost its snapshot" in line for line in made.said)
    assert made.unequal() == []


def test_a_copying_session_that_is_killed_is_begun_again(
    database: Any, start: Callable[..., Copying], monkeypatch: pytest.MonkeyPatch
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
        made = start()
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
    assert "RETRY TABLE" in made.table("dropped").remedy
    database.execute("INSERT INTO kept VALUES (1000, 'x')")
    until(lambda: made.home.live(made.spark).table("shop.kept").count() == 501, "the others to run on")


@pytest.mark.parametrize("column", ["body", "odd name"])  # Delta renames the second one: its copy is written otherwise
def test_a_table_that_is_truncated_after_the_snapshot_begins_after_that(
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
    assert [tuple(row) for row in made.home.live(made.spark).table("shop.t").collect()] == [(1, "a", 7)]


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
    assert made.home.live(made.spark).table("shop.t").count() == 200
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


def test_progress_is_seen_by_others_in_rows_and_bytes_and_never_goes_back(
    database: Any, start: Callable[..., Copying], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 16)
    monkeypatch.setattr(postgres_copy, "_MOST_BYTES", 4 << 20)
    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0.02)
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
    running = start()
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
    database: Any, start: Callable[..., Copying], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last range holds a value that cannot be kept; the others are written by then, or soon after."""
    monkeypatch.setattr(postgres_copy, "_LEAST_BYTES", 1 << 14)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, day date, body text)")
    database.execute("INSERT INTO t SELECT n, '2026-01-01', repeat('x', 500) FROM generate_series(1, 9000) n")
    database.execute("INSERT INTO t VALUES (0, 'infinity', 'x')")
    made = start()
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
        actions = initial_copy.files_of_ranges(spark, database.url, snapshot, table, ranges, tmp_path / "t", tmp_path)
    found = initial_copy.finished_ranges(tmp_path)
    assert sum(tally.rows for tally in found.values()) == 500
    assert whole < sum(tally.bytes for tally in found.values()) < whole + 100 * len(ranges)
    assert len(actions) == 1
