"""Shards: several databases that are made, changed, dropped and read as one, and of which each may fail alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from tests.conftest import Database, made_database

from penstock.catalog.progress import CopyProgress
from penstock.catalog.states import SourceState
from penstock.catalog.store import Catalog
from penstock.cli.status import render
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.engine.lifecycle import recover
from penstock.engine.runner import Running
from penstock.engine.verify_report import verify_report
from penstock.errors import DefiniteError, TableError, TransientError, UsageError
from penstock.home import Home
from penstock.layout import catalog_path, lake_path, log_path
from penstock.live import Live
from penstock.model import SHARD
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.testing.postgres import start_postgres
from penstock.testing.waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(900)

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, body text)"
OURS = "CREATE TABLE t (id int PRIMARY KEY, penstock_shard text)"
Rows = list[tuple[Any, ...]]


class Shards:
    """Two databases, and a home for them."""

    def __init__(self, path: Path, one: Database, two: Database) -> None:
        self.home, self.one, self.two = Home(path), one, two
        self.catalog = Catalog(catalog_path(path))
        self.names = [f"shards_{one.name}", f"shards_{two.name}"]

    def both(self, statement: str) -> None:
        """Run SQL in both."""
        for database in (self.one, self.two):
            database.execute(statement)

    def create(self, **options: Any) -> None:
        """Capture both as one source."""
        self.home.create([self.one.url, self.two.url], "shards", **options)

    def upstream(self) -> set[str]:
        """The slots and publications in both."""
        found = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        query = f"{found} UNION ALL SELECT 'publication ' || pubname FROM pg_publication"
        return {row[0] for database in (self.one, self.two) for row in database.execute(query)}

    def states(self, table: str) -> list[str]:
        """What the catalog says of a table on each shard."""
        return [t.state.value for name in self.names for t in self.catalog.tables(name) if t.upstream.name == table]


@pytest.fixture
def another(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    with made_database(postgres_server) as made:
        yield made


@pytest.fixture
def shards(database: Database, another: Database, tmp_path: Path) -> Shards:
    return Shards(tmp_path / "home", *sorted([database, another], key=lambda each: each.name))


# -- made, changed and dropped as one; no Spark ------------------------------------------------------------------------


def test_all_are_made_and_all_are_dropped(shards: Shards) -> None:
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
    drawn = io.StringIO()
    Console(file=drawn, width=300).print(render(shards.home.status()))
    assert f"{shards.names[0]}, shard {shards.one.name} of shards, from POSTGRES" in drawn.getvalue()
    shards.catalog.note_progress(shards.names[1], "orders", CopyProgress(rows=7))
    assert {name: copy.rows for name, copy in shards.home.copied("shards").items()} == {f"{shards.names[1]}.orders": 7}
    urls = [shards.two.url, shards.one.url]
    assert shards.home.captures(urls) == shards.home.captures(urls, schemas=()) == "shards"
    with pytest.raises(UsageError, match="as source shards, with other options"):
        shards.home.captures(urls, schemas=("public",))
    for name in ("shards", shards.names[1]):
        with pytest.raises(DefiniteError, match=f"there is a source {name} already") as caught:
            shards.home.create(shards.one.url, name)
        assert caught.value.hint == "Drop it first: penstock drop shards"
    with pytest.raises(UsageError, match="is a shard of the source shards"):
        shards.home.drop(shards.names[0])
    assert shards.home.check("shards").ready
    with pytest.raises(UsageError, match="several databases, which have no name"):
        shards.home.create(urls)
    assert shards.home.drop("shards") == []
    assert (shards.catalog.sources(), shards.upstream()) == ([], set())
    assert not any(
        log_path(shards.home.path, n).exists() or lake_path(shards.home.path, n).exists() for n in shards.names
    )


@pytest.mark.parametrize(
    ("one", "two", "why"),
    [
        (ORDERS, "CREATE TABLE other (id int PRIMARY KEY)", "public.orders is not on shard {two}"),
        (ORDERS, "CREATE TABLE orders (id int PRIMARY KEY)", "column body is string on the one and not there on the"),
        (ORDERS, "CREATE TABLE orders (id int PRIMARY KEY, body int)", "column body is string on the one and int32"),
        (ORDERS, "CREATE TABLE orders (id int, body text, PRIMARY KEY (id, body))", r"its key is \(id\) on the one"),
        (ORDERS, "CREATE TABLE orders (id int, body text)", "cannot be captured on shard {two}, .* no primary key"),
        *[
            ("CREATE TABLE t (id int PRIMARY KEY, penstock_shard text)",) * 2
            + ("public.t has a column penstock_shard",)
        ],
    ],
    ids=["table", "column", "type", "key", "no key", "ours"],
)
def test_shards_that_are_not_alike_are_refused(shards: Shards, one: str, two: str, why: str) -> None:
    shards.one.execute("CREATE TABLE common (id int PRIMARY KEY);" + one)
    shards.two.execute("CREATE TABLE common (id int PRIMARY KEY);" + two)
    with pytest.raises(DefiniteError, match=why.format(two=shards.two.name)):
        shards.create()
    assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def failing_at(second: str, made: Callable[[Any], Any], error: BaseException) -> Callable[[Any], Any]:
    def prepare(config: PostgresInstanceConfig) -> Any:
        if config.source == second:
            raise error
        return made(config)

    return prepare


def test_a_failure_of_one_undoes_all(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.both(ORDERS)
    for error in (TransientError("gone", ""), KeyboardInterrupt()):
        with monkeypatch.context() as patched:
            made = failing_at(shards.names[1], PostgresInstanceConfig.prepare, error)
            patched.setattr(PostgresInstanceConfig, "prepare", made)
            with pytest.raises(type(error)):
                shards.create()
        assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def test_what_a_process_left_that_died_is_undone_for_all(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        """The process is killed."""

    def killed(*_: object) -> None:
        raise Crash

    shards.both(ORDERS)
    with monkeypatch.context() as patched:
        patched.setattr(Catalog, "made", killed)
        with pytest.raises(Crash):
            shards.create()
    assert [record.state for record in shards.catalog.sources()] == [SourceState.CREATING] * 2
    assert len(shards.upstream()) == 4
    assert recover(shards.home.path, shards.catalog) == []
    assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def test_tables_come_and_go_on_all_or_none(shards: Shards) -> None:
    shards.both(f"{ORDERS}; CREATE TABLE items (id int PRIMARY KEY)")
    shards.create()
    shards.both("CREATE TABLE late (id int PRIMARY KEY)")
    shards.one.execute("CREATE TABLE odd (id int PRIMARY KEY)")
    with pytest.raises(DefiniteError, match=r"public\.odd cannot be added"):
        shards.home.add_table("shards", "public.odd")
    shards.two.execute("CREATE TABLE odd (id bigint PRIMARY KEY)")
    with pytest.raises(DefiniteError, match="column id is int32 on the one and int64 on the other"):
        shards.home.add_table("shards", "public.odd")
    assert shards.states("odd") == []
    for ask in (shards.home.add_table, shards.home.drop_table):
        with pytest.raises(UsageError, match="is a shard of the source shards"):
            ask(shards.names[0], "public.late")
    answer = shards.home.sql("ALTER SOURCES shards ADD TABLE public.late AS later")
    assert answer is not None
    shards.home.drop_table("shards", "public.items")
    assert (shards.states("late"), shards.states("items")) == (["adding"] * 2, ["dropping"] * 2)
    assert {t.local for t in shards.catalog.tables() if t.upstream.name == "late"} == {"later"}
    with pytest.raises(UsageError, match=r"public\.orders is pending"):
        shards.home.retry("shards", "public.orders")
    for refused in (shards.home.frontiers, shards.home.accept_interference):
        with pytest.raises(UsageError, match="made of shards") as caught:
            refused("shards")
        assert shards.names[1] in caught.value.hint
    shards.home.drop("shards")


def test_the_statement_that_is_shown_makes_the_same_shards(shards: Shards) -> None:
    shards.both(ORDERS)
    urls = f"'{shards.one.url}', '{shards.two.url}'"
    shards.home.sql(f"CREATE SOURCES shards FROM POSTGRES CONNECTIONS ({urls}) WITH (slot = 'mine')")
    assert {f"mine_{shards.one.name}", f"mine_{shards.two.name}"} < shards.upstream()
    shards.home.sql("ALTER SOURCES shards SET (retain history = '3 days')")
    made = [record.spec for record in shards.catalog.sources()]
    assert [spec.count('"retain_history":"3 days"') for spec in made] == [1, 1]
    statement = shards.home.statement("shards")
    shards.home.sql("DROP SOURCES shards")
    assert shards.catalog.sources() == []
    shards.home.sql(statement)
    assert [record.spec for record in shards.catalog.sources()] == made
    shards.home.drop("shards")


# -- read as one -------------------------------------------------------------------------------------------------------


@contextmanager
def running(shards: Shards, spark: SparkSession) -> Iterator[Running]:
    """Capture both, and run."""
    shards.create()
    with shards.home.run(spark, lambda _: None) as run:
        run.wait_live(PATIENCE)
        yield run


def now(database: Database) -> datetime:
    found: datetime = database.execute("SELECT clock_timestamp()")[0][0]
    return found.astimezone(UTC)


def settled(shards: Shards, spark: SparkSession) -> Live:
    """A view of a moment at which all that was written is in it."""
    return shards.home.live(spark, as_of={"shards": now(shards.one)}, wait=PATIENCE)


def rows(live: Live, table: str) -> Rows:
    return sorted(tuple(row) for row in live.table(table).collect())


def test_two_databases_are_one_table(shards: Shards, spark: SparkSession) -> None:
    one, two = shards.one.name, shards.two.name
    shards.one.execute(f"{ORDERS}; INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    shards.two.execute("CREATE TABLE orders (body text, id int PRIMARY KEY); INSERT INTO orders VALUES ('c', 1)")
    with running(shards, spark):
        shards.two.execute("INSERT INTO orders VALUES ('d', 3); UPDATE orders SET body = 'C' WHERE id = 1")
        live = settled(shards, spark)
        assert live.tables() == ["shards.orders"]
        assert rows(live, "shards.orders") == [(one, 1, "a"), (one, 2, "b"), (two, 1, "C"), (two, 3, "d")]
        assert live.table("shards.orders").columns == [SHARD, "id", "body"]
        assert rows(live, f"{shards.names[0]}.orders") == [(1, "a"), (2, "b")]
        _filters_go_down(live, one, two)
        _names_in_queries(shards, spark, live)
        _as_a_data_source(shards, spark)
    shards.home.drop("shards")


@pytest.mark.deep
def test_two_databases_are_followed_compared_and_fail_apart(shards: Shards, spark: SparkSession) -> None:
    shards.one.execute(f"{ORDERS}; INSERT INTO orders VALUES (2, 'b')")
    shards.two.execute("CREATE TABLE orders (body text, id int PRIMARY KEY); INSERT INTO orders VALUES ('d', 3)")
    with running(shards, spark):
        _transactions_of_both(shards)
        _compared(shards, spark)
        _columns_come_one_after_the_other(shards, spark)
        _one_fails(shards, spark)
    shards.home.drop("shards")


def _filters_go_down(live: Live, one: str, two: str) -> None:
    """A shard that is not asked for is not in the plan; a filter on another column is in both halves."""
    orders = live.table("shards.orders")
    assert {one, two} == {name for name in (one, two) if any(name in file for file in orders.inputFiles())}
    pruned = orders.where(f"{SHARD} = '{one}'")
    assert [file for file in pruned.inputFiles() if two in file] == []
    assert pruned.count() == 2
    plan = orders.where("id = 2")._jdf.queryExecution().executedPlan().toString()
    assert plan.count("EqualTo(id,2)") == 2, plan


def _names_in_queries(shards: Shards, spark: SparkSession, live: Live) -> None:
    query = "SELECT {shard}, count(*) FROM shards.public.orders GROUP BY 1 HAVING count(*) > 1 ORDER BY 1"
    found = live.sql(query.format(shard=SHARD)).collect()
    assert [tuple(row) for row in found] == [(shards.one.name, 2), (shards.two.name, 2)]
    then = now(shards.one)
    shards.both("DELETE FROM orders WHERE id = 1")
    later = settled(shards, spark)
    assert later.table("shards.orders").count() == 2
    assert later.sql(f"SELECT * FROM shards.orders AS OF TIMESTAMP '{then.isoformat()}'").count() == 4
    position = live.positions[shards.names[0]]
    with pytest.raises(UsageError, match=r"source shards is made of shards, and .* is a position in one of them"):
        later.sql(f"SELECT * FROM shards.orders AS OF LSN '{position}'")
    assert later.sql(f"SELECT * FROM {shards.names[0]}.orders AS OF LSN '{position}'").count() == 2
    with pytest.raises(UsageError, match="several sources"):
        _ = later.position


def _as_a_data_source(shards: Shards, spark: SparkSession) -> None:
    asked = {"home": str(shards.home.path), "source": "shards", "table": "public.orders"}
    reader = spark.read.format("penstock").options(**asked, rows="live")
    orders = reader.load()
    assert orders.columns == [SHARD, "id", "body"]
    assert rows(settled(shards, spark), "shards.orders") == sorted(tuple(row) for row in orders.collect())
    assert [row.id for row in orders.where(f"{SHARD} = '{shards.two.name}'").collect()] == [3]
    for options, why in (({"rows": "changes"}, "name a shard"), ({"rows": "live", "asOf": "0/1"}, "in one of them")):
        with pytest.raises(Exception, match=f"(?is)made of shards.*{why}"):
            spark.read.format("penstock").options(**asked, **options).load().collect()
    changes = {**asked, "source": shards.names[1], "rows": "changes", "startingPosition": "earliest"}
    assert spark.read.format("penstock").options(**changes).load().count() == 1


def _transactions_of_both(shards: Shards) -> None:
    found = {}
    with pytest.raises(UsageError, match="a position in one of them"):
        shards.home.tail("shards", start="0/1")
    tail = shards.home.tail("shards", start="latest")
    shards.both("INSERT INTO orders (id) VALUES (10)")
    for transaction in tail:
        found[transaction.shard] = list(transaction.tables)
        if len(found) == 2:
            break
    tail.close()
    assert found == {shards.one.name: ["public.orders"], shards.two.name: ["public.orders"]}


def _compared(shards: Shards, spark: SparkSession) -> None:
    verdicts = shards.home.verify(spark, "shards")
    assert [(v.source, v.shard, v.equal) for v in verdicts] == [
        (name, database.name, True) for name, database in zip(shards.names, (shards.one, shards.two), strict=True)
    ]
    report = verify_report("shards", verdicts)
    assert (report.equal, report.position) == (True, None)
    assert [table.name for table in report.tables] == [f"{name}.orders" for name in shards.names]


def _columns_come_one_after_the_other(shards: Shards, spark: SparkSession) -> None:
    """A column that one shard has is null in the rows of the other, until that has it, too."""
    one, two = shards.one.name, shards.two.name
    shards.one.execute("ALTER TABLE orders ADD note text DEFAULT 'x'; INSERT INTO orders (id) VALUES (20)")
    found = settled(shards, spark).sql(f"SELECT id, {SHARD}, note FROM shards.orders WHERE id >= 10 ORDER BY 1, 2")
    assert [tuple(row) for row in found.collect()] == [(10, one, "x"), (10, two, None), (20, one, "x")]
    asked = {"home": str(shards.home.path), "source": "shards", "table": "public.orders", "rows": "live"}
    read = spark.read.format("penstock").options(**asked).load().where("id >= 10").select("id", SHARD, "note")
    assert sorted(map(tuple, read.collect()), key=str) == sorted(map(tuple, found.collect()), key=str)
    shards.two.execute("ALTER TABLE orders ADD note text DEFAULT 'y'; INSERT INTO orders (id) VALUES (20)")
    notes = settled(shards, spark).sql("SELECT DISTINCT note FROM shards.orders WHERE id >= 10 ORDER BY 1")
    assert [row.note for row in notes.collect()] == ["x", "y"]


def _one_fails(shards: Shards, spark: SparkSession) -> None:
    """The table is never shown in part; what is whole is read by its own name; the one is mended alone."""
    shards.one.execute("ALTER TABLE orders DROP COLUMN body; INSERT INTO orders (id) VALUES (30)")
    until(lambda: shards.states("orders") == ["failed", "live"], "the error of a table that lost a column")
    live = shards.home.live(spark)
    with pytest.raises(DefiniteError, match=f"shards.orders cannot be read whole: on shard {shards.one.name}") as told:
        live.table("shards.orders")
    assert f"{shards.names[1]}.orders" in told.value.hint
    assert live.table(f"{shards.names[1]}.orders").count() == 3
    with pytest.raises(TableError, match=f"on shard {shards.one.name}"):
        for _ in shards.home.tail("shards", ["public.orders"], start="earliest"):
            pass
    shards.home.retry(shards.names[0], "public.orders")
    until(lambda: shards.states("orders") == ["live", "live"], "a fresh copy")
    read = settled(shards, spark).table("shards.orders")
    assert read.where(f"{SHARD} = '{shards.one.name}'").where("body IS NOT NULL").count() == 0
    assert read.where("id = 30").count() == 1


ACCOUNTS = "CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts SELECT n, 100 FROM "
TAKE, GIVE = (f"UPDATE accounts SET balance = balance {sign} 1 WHERE id = %s" for sign in "-+")


@pytest.mark.deep
def test_a_bank_across_shards_at_one_moment(shards: Shards, spark: SparkSession) -> None:
    """Money leaves one shard, and then comes to the other: at no moment is there more of it, or two less."""
    shards.both(f"{ACCOUNTS} generate_series(1, 10) n")
    with running(shards, spark), shards.one.connect() as giver, shards.two.connect() as taker:
        began = now(shards.one)
        for number in range(100):
            giver.execute(TAKE, [number % 10 + 1])
            taker.execute(GIVE, [number % 10 + 1])
            if number == 49:
                halfway = now(shards.one)
        ended = now(shards.one)
        moments = sorted([halfway, *(began + (ended - began) * part / 6 for part in range(7))])
        query = f"SELECT {SHARD}, sum(balance) FROM shards.accounts GROUP BY 1"
        held: list[dict[str, int]] = [
            dict(shards.home.live(spark, moment, PATIENCE).sql(query).collect()) for moment in moments
        ]
        assert {sum(found.values()) for found in held} <= {1999, 2000}
        gone = [1000 - found[shards.one.name] for found in held]
        assert gone == sorted(gone)
        assert (gone[0], gone[-1], sum(held[-1].values())) == (0, 100, 2000)
        middle = moments.index(halfway)
        assert gone[middle] == 50
        shards.both("DELETE FROM accounts")
        assert dict(shards.home.live(spark, halfway).sql(query).collect()) == held[middle]
    shards.home.drop("shards")


# -- one is down -------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_one_that_is_down_leaves_the_others_flowing(database: Database, tmp_path: Path, spark: SparkSession) -> None:
    with start_postgres(fsync=False) as server:
        shards = Shards(tmp_path / "home", database, Database(server, "postgres"))
        shards.both(f"{ORDERS}; INSERT INTO orders VALUES (1, 'a')")
        here, away = f"shards_{database.name}", "shards_postgres"
        with running(shards, spark):
            server.stop()
            until(lambda: status(shards, away).error is not None, "an error in the status")
            assert (status(shards, away).state, status(shards, away).part_of) == ("ready", "shards")
            assert status(shards, here).error is None
            database.execute("INSERT INTO orders VALUES (2, 'b')")
            until(lambda: shards.home.live(spark).table("shards.orders").count() == 3, "the row of the other")
            with pytest.raises(TransientError, match=f"source {away} has come to") as behind:
                shards.home.live(spark, as_of=now(database), wait=4)
            assert here not in behind.value.message
            equal = {verdict.source: verdict.equal for verdict in shards.home.verify(spark, "shards")}
            assert equal == {here: True, away: False}
            report = shards.home.check("shards")
            assert (report.ready, [f.object for f in report.findings if f.level == "error"]) == (
                False,
                ["shard postgres: connection"],
            )
        with pytest.raises(TransientError, match=f"source {away} is not gone yet") as kept:
            shards.home.drop("shards")
        assert "penstock drop shards --force" in kept.value.hint
        assert [(r.name, r.state) for r in shards.catalog.sources()] == [(away, SourceState.DROPPING)]
        server.start()
        assert shards.home.recover() == []
        assert (shards.catalog.sources(), shards.upstream()) == ([], set())


def status(shards: Shards, source: str) -> Any:
    return next(found for found in shards.home.status().sources if found.name == source)
