"""Shards: several databases that are created, altered, dropped and read as one source, and fail independently."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from tests.conftest import Database, created_database

from penstock.catalog.progress import CopyProgress
from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.cli.status import render
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine import new_tables
from penstock.engine.lifecycle import recover
from penstock.engine.runner import HomeRunner
from penstock.engine.sinks import sink_reader
from penstock.engine.verify import verify_report
from penstock.errors import DefiniteError, TableError, TransientError, UsageError
from penstock.home import Home
from penstock.layout import catalog_path, lake_path, log_path
from penstock.live import Live
from penstock.model import SHARD
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(900)

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, body text)"
OURS = "CREATE TABLE t (id int PRIMARY KEY, penstock_shard text)"
Rows = list[tuple[Any, ...]]


class Shards:
    """Two databases, and a home that captures them as one source."""

    def __init__(self, path: Path, one: Database, two: Database) -> None:
        self.home, self.one, self.two = Home(path), one, two
        self.catalog = Catalog(catalog_path(path))
        self.names = [f"shards_{one.name}", f"shards_{two.name}"]

    def both(self, statement: str) -> None:
        """Execute SQL in both databases."""
        for database in (self.one, self.two):
            database.execute(statement)

    def create(self, **options: Any) -> None:
        """Capture both databases as one source."""
        self.home.create([self.one.url, self.two.url], "shards", **options)

    def upstream(self) -> set[str]:
        """The slots and publications in both databases."""
        found = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        query = f"{found} UNION ALL SELECT 'publication ' || pubname FROM pg_publication"
        return {row[0] for database in (self.one, self.two) for row in database.execute(query)}

    def states(self, table: str) -> list[str]:
        """The state of a table on each shard, from the catalog."""
        return [t.state.value for name in self.names for t in self.catalog.tables(name) if t.upstream.name == table]


@pytest.fixture
def second_database(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    with created_database(postgres_server) as created:
        yield created


@pytest.fixture
def shards(database: Database, second_database: Database, tmp_path: Path) -> Shards:
    return Shards(tmp_path / "home", *sorted([database, second_database], key=lambda each: each.name))


# -- created, altered and dropped as one; no Spark ---------------------------------------------------------------------


def test_sink_into_a_function_reads_all_shards(shards: Shards) -> None:
    shards.both(ORDERS)
    shards.create()
    with pytest.raises(UsageError, match="shard"):
        shards.home.sink("out", f"{shards.names[0]}.orders", "my.sinks:to_http")
    assert shards.home.sinks() == []
    shards.home.sink("out", "shards.orders", "my.sinks:to_http")
    for name in shards.names:
        with closing(shards.catalog.log(name).reader()) as reader:
            assert sink_reader("out") in [lease.reader for lease in reader.leases()]


def test_sharded_source_is_created_and_dropped_as_one(shards: Shards) -> None:
    shards.both(ORDERS)
    shards.create()
    records = shards.catalog.sources()
    assert [(r.name, r.part_of, r.shard, r.state) for r in records] == [
        (name, "shards", database.name, SourceState.READY)
        for name, database in zip(shards.names, (shards.one, shards.two), strict=True)
    ]
    slots = {f"penstock_{name}" for name in shards.names}
    assert shards.upstream() == slots | {f"publication {slot}" for slot in slots}
    assert [(s.part_of, s.shard) for s in shards.home.status().sources] == [(r.part_of, r.shard) for r in records]
    output = io.StringIO()
    Console(file=output, width=300).print(render(shards.home.status()))
    assert f"{shards.names[0]}, shard {shards.one.name} of shards, from POSTGRES" in output.getvalue()
    shards.catalog.note_progress(shards.names[1], "orders", CopyProgress(rows=7))
    assert {name: copy.rows for name, copy in shards.home.copied("shards").items()} == {f"{shards.names[1]}.orders": 7}
    urls = [shards.two.url, shards.one.url]
    assert shards.home.captures(urls) == shards.home.captures(urls, schemas=()) == "shards"
    with pytest.raises(UsageError, match="source shards already captures this database, with other options"):
        shards.home.captures(urls, schemas=("public",))
    for name in ("shards", shards.names[1]):
        with pytest.raises(DefiniteError, match=f"source {name} already exists") as caught:
            shards.home.create(shards.one.url, name)
        assert caught.value.hint == "Drop it first: penstock drop shards"
    with pytest.raises(UsageError, match=r"is a shard: .* of source shards"):
        shards.home.drop(shards.names[0])
    assert shards.home.check("shards").ready
    with pytest.raises(UsageError, match="a sharded source requires a name"):
        shards.home.create(urls)
    assert shards.home.drop("shards") == []
    assert (shards.catalog.sources(), shards.upstream()) == ([], set())
    assert not any(
        log_path(shards.home.path, n).exists() or lake_path(shards.home.path, n).exists() for n in shards.names
    )


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        (ORDERS, "CREATE TABLE other (id int PRIMARY KEY)", "public.orders does not exist on shard {two}"),
        (ORDERS, "CREATE TABLE orders (id int PRIMARY KEY)", "column body is string on the first and missing on the"),
        (ORDERS, "CREATE TABLE orders (id int PRIMARY KEY, body int)", "column body is string on the first and int32"),
        (ORDERS, "CREATE TABLE orders (id int, body text, PRIMARY KEY (id, body))", r"the key is \(id\) on the first"),
        (ORDERS, "CREATE TABLE orders (id int, body text)", "cannot be captured on shard {two}, .* no primary key"),
        *[
            ("CREATE TABLE t (id int PRIMARY KEY, penstock_shard text)",) * 2
            + ("public.t has a column penstock_shard",)
        ],
    ],
    ids=["table", "column", "type", "key", "no key", "reserved column"],
)
def test_shards_with_different_tables_are_rejected(shards: Shards, one: str, two: str, message: str) -> None:
    shards.one.execute("CREATE TABLE common (id int PRIMARY KEY);" + one)
    shards.two.execute("CREATE TABLE common (id int PRIMARY KEY);" + two)
    with pytest.raises(DefiniteError, match=message.format(two=shards.two.name)):
        shards.create()
    assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def failing_at(second: str, created: Callable[[Any], Any], error: BaseException) -> Callable[[Any], Any]:
    def prepare(config: PostgresInstanceConfig) -> Any:
        if config.source == second:
            raise error
        return created(config)

    return prepare


def test_failure_of_one_shard_undoes_all(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.both(ORDERS)
    for error in (TransientError("gone", ""), KeyboardInterrupt()):
        with monkeypatch.context() as patched:
            created = failing_at(shards.names[1], PostgresInstanceConfig.prepare, error)
            patched.setattr(PostgresInstanceConfig, "prepare", created)
            with pytest.raises(type(error)):
                shards.create()
        assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def test_crash_in_create_is_undone_for_all_shards(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        """Simulates a crash of the process."""

    def killed(*_: object) -> None:
        raise Crash

    shards.both(ORDERS)
    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "mark_created", killed)
        with pytest.raises(Crash):
            shards.create()
    assert [record.state for record in shards.catalog.sources()] == [SourceState.CREATING] * 2
    assert len(shards.upstream()) == 4
    assert recover(shards.home.path, shards.catalog) == []
    assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def test_tables_are_added_and_dropped_on_all_shards_or_none(shards: Shards) -> None:
    shards.both(f"{ORDERS}; CREATE TABLE items (id int PRIMARY KEY)")
    shards.create()
    shards.both("CREATE TABLE late (id int PRIMARY KEY)")
    shards.one.execute("CREATE TABLE odd (id int PRIMARY KEY)")
    with pytest.raises(DefiniteError, match=r"public\.odd cannot be added"):
        shards.home.add_table("shards", "public.odd")
    shards.two.execute("CREATE TABLE odd (id bigint PRIMARY KEY)")
    with pytest.raises(DefiniteError, match="column id is int32 on the first and int64 on the second"):
        shards.home.add_table("shards", "public.odd")
    assert shards.states("odd") == []
    for ask in (shards.home.add_table, shards.home.drop_table):
        with pytest.raises(UsageError, match=r"is a shard: .* of source shards"):
            ask(shards.names[0], "public.late")
    answer = shards.home.sql("ALTER SOURCES shards ADD TABLE public.late AS later")
    assert answer is not None
    shards.home.drop_table("shards", "public.items")
    assert (shards.states("late"), shards.states("items")) == (["adding"] * 2, ["dropping"] * 2)
    assert {t.local for t in shards.catalog.tables() if t.upstream.name == "late"} == {"later"}
    with pytest.raises(UsageError, match=r"public\.orders is pending"):
        shards.home.retry("shards", "public.orders")
    for call in (shards.home.frontiers, shards.home.accept_interference):
        with pytest.raises(UsageError, match="is sharded") as caught:
            call("shards")
        assert shards.names[1] in caught.value.hint
    shards.home.drop("shards")


def test_show_create_statement_recreates_the_same_shards(shards: Shards) -> None:
    shards.both(ORDERS)
    urls = f"'{shards.one.url}', '{shards.two.url}'"
    shards.home.sql(f"CREATE SOURCES shards FROM POSTGRES CONNECTIONS ({urls}) WITH (slot = 'mine')")
    assert {f"mine_{shards.one.name}", f"mine_{shards.two.name}"} < shards.upstream()
    shards.home.sql("ALTER SOURCES shards SET (retain history = '3 days')")
    created = [record.spec for record in shards.catalog.sources()]
    assert [spec.count('"retain_history":"3 days"') for spec in created] == [1, 1]
    statement = shards.home.statement("shards")
    shards.home.sql("DROP SOURCES shards")
    assert shards.catalog.sources() == []
    shards.home.sql(statement)
    assert [record.spec for record in shards.catalog.sources()] == created
    shards.home.drop("shards")


# -- read as one -------------------------------------------------------------------------------------------------------


@contextmanager
def running_shards(shards: Shards, spark: SparkSession) -> Iterator[HomeRunner]:
    """Capture both databases, and run the home."""
    shards.create()
    with shards.home.run(spark, lambda _: None) as run:
        run.wait_live(PATIENCE)
        yield run


def server_time(database: Database) -> datetime:
    found: datetime = database.execute("SELECT clock_timestamp()")[0][0]
    return found.astimezone(UTC)


def settled_view(shards: Shards, spark: SparkSession) -> Live:
    """A view as of a time after everything that was written."""
    return shards.home.live(spark, as_of={"shards": server_time(shards.one)}, wait=PATIENCE)


def test_new_table_of_all_shards_is_captured(shards: Shards, in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tables, "SECONDS", 0.1)
    shards.both(ORDERS)
    shards.create()
    with shards.home.run(MemoryTables(), lambda _: None) as running:
        running.wait_live(PATIENCE)
        shards.one.execute("CREATE TABLE notes (id int PRIMARY KEY)")
        shards.both("CREATE TABLE later (id int PRIMARY KEY)")
        until(lambda: shards.states("later") == ["live", "live"], "the new table of both")
        assert shards.states("notes") == [], "it is on one shard only"
        shards.two.execute("CREATE TABLE notes (id bigint PRIMARY KEY)")
        until(lambda: shards.states("notes") == ["failed", "failed"], "the report")
        shards.two.execute("ALTER TABLE notes ALTER id TYPE int")
        until(lambda: shards.states("notes") == ["live", "live"], "the table")
    shards.home.drop("shards")


def rows(live: Live, table: str) -> Rows:
    return sorted(tuple(row) for row in live.table(table).collect())


@pytest.mark.slow("the only test of shards in Spark: two sources, queried, altered and verified")
def test_two_databases_are_one_table(shards: Shards, spark: SparkSession, in_process: None) -> None:
    one, two = shards.one.name, shards.two.name
    shards.one.execute(f"{ORDERS}; INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    shards.two.execute("CREATE TABLE orders (body text, id int PRIMARY KEY); INSERT INTO orders VALUES ('c', 1)")
    with running_shards(shards, spark):
        shards.two.execute("INSERT INTO orders VALUES ('d', 3); UPDATE orders SET body = 'C' WHERE id = 1")
        live = settled_view(shards, spark)
        assert live.tables() == ["shards.orders"]
        assert rows(live, "shards.orders") == [(one, 1, "a"), (one, 2, "b"), (two, 1, "C"), (two, 3, "d")]
        assert live.table("shards.orders").columns == [SHARD, "id", "body"]
        assert rows(live, f"{shards.names[0]}.orders") == [(1, "a"), (2, "b")]
        _check_filter_pushdown(live, one, two)
        _check_queries(shards, spark, live)
        orders = data_source(shards, spark, rows="live")
        assert orders.columns == [SHARD, "id", "body"]
        assert [(row.id, row.body) for row in orders.where(f"{SHARD} = '{two}'").collect()] == [(3, "d")]
    shards.home.drop("shards")


@pytest.mark.deep
def test_changes_of_two_databases_are_read_as_one(shards: Shards, spark: SparkSession, tmp_path: Path) -> None:
    shards.one.execute(f"{ORDERS}; INSERT INTO orders VALUES (2, 'b')")
    shards.two.execute("CREATE TABLE orders (body text, id int PRIMARY KEY); INSERT INTO orders VALUES ('d', 3)")
    shards.both("CREATE TABLE items (id int PRIMARY KEY)")
    called: list[tuple[str, str, int]] = []

    def take(frame: DataFrame, first: Lsn | None, last: Lsn) -> None:
        found = frame.selectExpr(SHARD, "_op", "coalesce(after, before).id").collect()
        called.extend((row[0], row[1], row[2]) for row in found)

    with running_shards(shards, spark):
        shards.home.sink("taken", "shards.orders", take)
        until(lambda: len(called) == 2, "the rows of both shards")
        _check_changes(shards, spark, tmp_path)
        one, two = shards.one.name, shards.two.name
        expected = [
            (one, "snapshot", 2),
            (two, "snapshot", 3),
            (one, "insert", 4),
            (two, "update", 3),
            (two, "delete", 3),
        ]
        until(lambda: sorted(called) == sorted(expected), "the changes of both shards")
        shards.home.drop_sink("taken")
        until(lambda: not shards.home.sinks(), "the drop of the sink")
    shards.home.drop("shards")


@pytest.mark.deep
def test_two_databases_are_tailed_and_verified_and_fail_independently(shards: Shards, spark: SparkSession) -> None:
    shards.one.execute(f"{ORDERS}; INSERT INTO orders VALUES (2, 'b')")
    shards.two.execute("CREATE TABLE orders (body text, id int PRIMARY KEY); INSERT INTO orders VALUES ('d', 3)")
    with running_shards(shards, spark):
        _check_data_source(shards, spark)
        _check_tail(shards)
        _check_verify(shards, spark)
        _check_added_columns(shards, spark)
        _check_failed_shard(shards, spark)
    shards.home.drop("shards")


def _check_filter_pushdown(live: Live, one: str, two: str) -> None:
    """A filter prunes shards from the plan; a filter on another column is pushed down to both shards."""
    orders = live.table("shards.orders")
    assert {one, two} == {name for name in (one, two) if any(name in file for file in orders.inputFiles())}
    pruned = orders.where(f"{SHARD} = '{one}'")
    assert [file for file in pruned.inputFiles() if two in file] == []
    assert pruned.count() == 2
    plan = orders.where("id = 2")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("EqualTo(id,2)") == 2, plan


def _check_queries(shards: Shards, spark: SparkSession, live: Live) -> None:
    query = "SELECT {shard}, count(*) FROM shards.public.orders GROUP BY 1 HAVING count(*) > 1 ORDER BY 1"
    found = live.sql(query.format(shard=SHARD)).collect()
    assert [tuple(row) for row in found] == [(shards.one.name, 2), (shards.two.name, 2)]
    then = server_time(shards.one)
    shards.both("DELETE FROM orders WHERE id = 1")
    later = settled_view(shards, spark)
    assert later.table("shards.orders").count() == 2
    assert later.sql(f"SELECT * FROM shards.orders AS OF TIMESTAMP '{then.isoformat()}'").count() == 4
    position = live.positions[shards.names[0]]
    with pytest.raises(UsageError, match=r"is ambiguous: source shards is sharded"):
        later.sql(f"SELECT * FROM shards.orders AS OF LSN '{position}'")
    assert later.sql(f"SELECT * FROM {shards.names[0]}.orders AS OF LSN '{position}'").count() == 2
    with pytest.raises(UsageError, match="exactly one source"):
        _ = later.position


def data_source(shards: Shards, spark: SparkSession, **options: str) -> DataFrame:
    """The orders, as the data source reads them."""
    fixed = {"home": str(shards.home.path), "source": "shards", "table": "public.orders"}
    return spark.read.format("penstock").options(**{**fixed, **options}).load()


def _check_data_source(shards: Shards, spark: SparkSession) -> None:
    orders = data_source(shards, spark, rows="live")
    assert rows(settled_view(shards, spark), "shards.orders") == sorted(tuple(row) for row in orders.collect())
    for options, message in (
        ({"rows": "changes", "startingPosition": "0/1"}, "belongs to one shard"),
        ({"rows": "live", "asOf": "0/1"}, "belongs to one shard"),
    ):
        with pytest.raises(Exception, match=f"(?is)sharded source.*{message}"):
            data_source(shards, spark, **options).collect()
    changes = data_source(shards, spark, source=shards.names[1], rows="changes", startingPosition="earliest")
    assert changes.count() == 1


def _check_changes(shards: Shards, spark: SparkSession, folder: Path) -> None:
    """Changes of all shards, as a stream that is stopped, and as a batch; one shard has one more column."""
    one, two = shards.one.name, shards.two.name
    then = server_time(shards.one)
    settled_view(shards, spark)
    options = {"home": str(shards.home.path), "source": "shards", "table": "public.orders", "maxRowsPerTrigger": "2"}

    def streamed() -> Rows:
        stream = spark.readStream.format("penstock").options(**options, startingPosition="earliest").load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        assert writer.trigger(availableNow=True).start(str(folder / "out")).awaitTermination(int(PATIENCE))
        return by_shard(spark.read.parquet(str(folder / "out")))

    def by_shard(frame: DataFrame) -> Rows:
        kept = frame.selectExpr(SHARD, "_op", "coalesce(after, before).id", "after.body")
        return sorted((tuple(row) for row in kept.collect()), key=str)

    copied = [(one, "snapshot", 2, "b"), (two, "snapshot", 3, "d")]
    assert streamed() == sorted(copied, key=str)
    shards.one.execute("ALTER TABLE orders ADD extra int DEFAULT 7; INSERT INTO orders VALUES (4, 'e')")
    shards.two.execute("UPDATE orders SET body = 'D' WHERE id = 3; DELETE FROM orders WHERE id = 3")
    settled_view(shards, spark)
    changed = [(one, "insert", 4, "e"), (two, "update", 3, "D"), (two, "delete", 3, None)]
    assert streamed() == sorted([*copied, *changed], key=str)
    batch = data_source(shards, spark, rows="changes", startingPosition=then.isoformat())
    assert by_shard(batch) == sorted(changed, key=str)
    assert {tuple(row) for row in batch.select(SHARD, "after.extra").collect()} == {(one, 7), (two, None)}
    assert by_shard(batch.where(f"{SHARD} = '{one}'")) == changed[:1]
    several = data_source(shards, spark, table="public.orders,public.items", startingPosition=then.isoformat())
    assert sorted(row[SHARD] for row in several.collect()) == sorted([one, two, two])


def _check_tail(shards: Shards) -> None:
    found = {}
    with pytest.raises(UsageError, match="is ambiguous: source shards is sharded"):
        shards.home.tail("shards", start="0/1")
    tail = shards.home.tail("shards", start="latest")
    shards.both("INSERT INTO orders (id) VALUES (10)")
    for transaction in tail:
        found[transaction.shard] = list(transaction.tables)
        if len(found) == 2:
            break
    tail.close()
    assert found == {shards.one.name: ["public.orders"], shards.two.name: ["public.orders"]}


def _check_verify(shards: Shards, spark: SparkSession) -> None:
    verdicts = shards.home.verify(spark, "shards")
    assert [(v.source, v.shard, v.equal) for v in verdicts] == [
        (name, database.name, True) for name, database in zip(shards.names, (shards.one, shards.two), strict=True)
    ]
    report = verify_report("shards", verdicts)
    assert (report.equal, report.position) == (True, None)
    assert [table.name for table in report.tables] == [f"{name}.orders" for name in shards.names]


def _check_added_columns(shards: Shards, spark: SparkSession) -> None:
    """A column that only one shard has is null in the rows of the other shard, until that one has it too."""
    one, two = shards.one.name, shards.two.name
    shards.one.execute("ALTER TABLE orders ADD note text DEFAULT 'x'; INSERT INTO orders (id) VALUES (20)")
    found = settled_view(shards, spark).sql(f"SELECT id, {SHARD}, note FROM shards.orders WHERE id >= 10 ORDER BY 1, 2")
    assert [tuple(row) for row in found.collect()] == [(10, one, "x"), (10, two, None), (20, one, "x")]
    options_of_reader = {"home": str(shards.home.path), "source": "shards", "table": "public.orders", "rows": "live"}
    read = (
        spark.read.format("penstock").options(**options_of_reader).load().where("id >= 10").select("id", SHARD, "note")
    )
    assert sorted(map(tuple, read.collect()), key=str) == sorted(map(tuple, found.collect()), key=str)
    shards.two.execute("ALTER TABLE orders ADD note text DEFAULT 'y'; INSERT INTO orders (id) VALUES (20)")
    notes = settled_view(shards, spark).sql("SELECT DISTINCT note FROM shards.orders WHERE id >= 10 ORDER BY 1")
    assert [row.note for row in notes.collect()] == ["x", "y"]


def _check_failed_shard(shards: Shards, spark: SparkSession) -> None:
    """The table is never shown without a shard; other shards are readable by name; the failed one is retried alone."""
    shards.one.execute("ALTER TABLE orders DROP COLUMN body, ADD COLUMN b int; INSERT INTO orders (id) VALUES (30)")
    until(lambda: shards.states("orders") == ["failed", "live"], "the error of the table with another column")
    live = shards.home.live(spark)
    with pytest.raises(DefiniteError, match=f"shards.orders cannot be read on shard {shards.one.name}") as caught:
        live.table("shards.orders")
    assert f"{shards.names[1]}.orders" in caught.value.hint
    assert live.table(f"{shards.names[1]}.orders").count() == 3
    with pytest.raises(TableError, match=f"on shard {shards.one.name}"):
        for _ in shards.home.tail("shards", ["public.orders"], start="earliest"):
            pass
    shards.home.retry(shards.names[0], "public.orders")
    until(lambda: shards.states("orders") == ["live", "live"], "the new snapshot")
    read = settled_view(shards, spark).table("shards.orders")
    assert read.where(f"{SHARD} = '{shards.one.name}'").where("body IS NOT NULL").count() == 0
    assert read.where("id = 30").count() == 1


ACCOUNTS = "CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts SELECT n, 100 FROM "
TAKE, GIVE = (f"UPDATE accounts SET balance = balance {sign} 1 WHERE id = %s" for sign in "-+")


@pytest.mark.deep
def test_bank_across_shards_is_consistent_at_one_time(shards: Shards, spark: SparkSession) -> None:
    """Money leaves one shard, then reaches the other: at no time is the total higher, or lower by more than one."""
    shards.both(f"{ACCOUNTS} generate_series(1, 10) n")
    with running_shards(shards, spark), shards.one.connect() as giver, shards.two.connect() as taker:
        began = server_time(shards.one)
        for number in range(100):
            giver.execute(TAKE, [number % 10 + 1])
            taker.execute(GIVE, [number % 10 + 1])
            if number == 49:
                halfway = server_time(shards.one)
        ended = server_time(shards.one)
        times = sorted([halfway, *(began + (ended - began) * part / 6 for part in range(7))])
        query = f"SELECT {SHARD}, sum(balance) FROM shards.accounts GROUP BY 1"
        balances: list[dict[str, int]] = [
            dict(shards.home.live(spark, moment, PATIENCE).sql(query).collect()) for moment in times
        ]
        assert {sum(found.values()) for found in balances} <= {1999, 2000}
        sent = [1000 - found[shards.one.name] for found in balances]
        assert sent == sorted(sent)
        assert (sent[0], sent[-1], sum(balances[-1].values())) == (0, 100, 2000)
        middle = times.index(halfway)
        assert sent[middle] == 50
        shards.both("DELETE FROM accounts")
        assert dict(shards.home.live(spark, halfway).sql(query).collect()) == balances[middle]
    shards.home.drop("shards")


# -- one shard is down -------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_unreachable_shard_does_not_block_the_others(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    with start_postgres(fsync=False) as server:
        shards = Shards(tmp_path / "home", database, Database(server, "postgres"))
        shards.both(f"{ORDERS}; INSERT INTO orders VALUES (1, 'a')")
        running_shard, stopped_shard = f"shards_{database.name}", "shards_postgres"
        with running_shards(shards, spark):
            server.stop()
            until(lambda: status(shards, stopped_shard).error is not None, "an error in the status")
            assert (status(shards, stopped_shard).state, status(shards, stopped_shard).part_of) == ("ready", "shards")
            assert status(shards, running_shard).error is None
            database.execute("INSERT INTO orders VALUES (2, 'b')")
            until(lambda: shards.home.live(spark).table("shards.orders").count() == 3, "the row of the other")
            with pytest.raises(TransientError, match=f"source {stopped_shard} has reached") as caught:
                shards.home.live(spark, as_of=server_time(database), wait=4)
            assert running_shard not in caught.value.message
            equal = {verdict.source: verdict.equal for verdict in shards.home.verify(spark, "shards")}
            assert equal == {running_shard: True, stopped_shard: False}
            report = shards.home.check("shards")
            assert (report.ready, [f.object for f in report.findings if f.level == "error"]) == (
                False,
                ["shard postgres: connection"],
            )
        with pytest.raises(TransientError, match=f"source {stopped_shard} is not dropped yet") as caught:
            shards.home.drop("shards")
        assert "penstock drop shards --force" in caught.value.hint
        assert [(r.name, r.state) for r in shards.catalog.sources()] == [(stopped_shard, SourceState.DROPPING)]
        server.start()
        assert shards.home.recover() == []
        assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def status(shards: Shards, source: str) -> Any:
    return next(found for found in shards.home.status().sources if found.name == source)
