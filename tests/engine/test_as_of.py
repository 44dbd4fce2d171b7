"""The past of running homes: what was seen then is what is read of then, whatever happened since."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.conftest import Database, made_database
from tests.engine.shop import Shop

from penstock.cli.rows import OutputFormat
from penstock.cli.sql import answer
from penstock.embedded.postgres import EmbeddedPostgres
from penstock.errors import DefiniteError, HistoryExpiredError, TransientError, UsageError
from penstock.home import Home
from penstock.live import Live
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE, until

pytestmark = pytest.mark.timeout(1200)

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, body text); INSERT INTO items VALUES (1, 'a'), (2, 'b')"
ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status text); INSERT INTO orders VALUES (1, 'new')"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-the-past.md"
Rows = list[tuple[Any, ...]]


def rows(live: Live, table: str) -> Rows:
    found: Any = live.table(table)
    read = found.toArrow() if isinstance(found, DataFrame) else found
    return sorted(tuple(row.values()) for row in read.to_pylist())


def server_time(database: Database) -> datetime:
    found: datetime = database.execute("SELECT clock_timestamp()")[0][0]
    return found.astimezone(UTC)


def seen(shop: Shop, statement: str) -> tuple[Lsn, Rows]:
    """Change the items; return what a view of then showed, and where that was."""
    shop.database.execute(statement)
    at = Lsn.parse(shop.database.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    live = shop.home.live(shop.spark, as_of=at, wait=PATIENCE)
    return live.position, rows(live, "shop.items")


def applied(shop: Shop, upto: Lsn, table: str = "items") -> Callable[[], bool]:
    """Whether the base of a table stands at or after a position."""

    def stands() -> bool:
        base = shop.catalog.bases.newest("shop", table, Lsn((1 << 63) - 1))
        return base is not None and base.position >= upto

    return stands


def test_what_was_seen_then_is_what_is_read_of_then(
    spark_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str]
) -> None:
    """One source: recordings at known positions, against views of the past; before and after applies and retention."""
    here = spark_shop(f"{ITEMS}; {ORDERS}", retain_history="1 second")
    _page_can_be_typed(here)
    recorded = dict(
        seen(here, statement)
        for statement in (
            "INSERT INTO items VALUES (3, 'c')",
            "UPDATE items SET body = 'B' WHERE id = 2; DELETE FROM items WHERE id = 1",
            "UPDATE items SET id = 9 WHERE id = 3",
        )
    )
    assert len(recorded) == 3
    first, middle, last = sorted(recorded)
    held = here.home.live(here.spark, as_of=first)
    query = f"SELECT o.id, n.id FROM shop.items AS OF LSN '{first}' o FULL JOIN shop.items n ON o.id = n.id"
    joined = sorted((tuple(row) for row in held.refresh().sql(query).collect()), key=str)
    assert joined == [(1, None), (2, 2), (3, None), (None, 9)]
    assert rows(here.home.live(here.spark, as_of=Lsn(middle - 1)), "shop.items") == recorded[first], "not half of it"
    capsys.readouterr()
    ids = "SELECT id FROM shop.items ORDER BY id"
    answer(here.home, lambda: here.spark, ids, OutputFormat.JSON, first)
    assert capsys.readouterr().out.splitlines() == ['{"id":1}', '{"id":2}', '{"id":3}']
    until(applied(here, last), "all of it in the base")
    for position, found in recorded.items():
        assert rows(here.home.live(here.spark, as_of=position), "shop.items") == found
    assert here.home.frontiers("shop").valid <= first, "the view keeps it"
    assert rows(held, "shop.items") == recorded[first]


def _page_can_be_typed(here: Shop) -> None:
    """Run what the page shows, of a home whose history does not move meanwhile."""
    held = here.home.live(here.spark)
    lease = here.home._views._keeper._leases["shop"]
    until(lambda: here.home.frontiers("shop").valid == lease.at, "history as short as the view lets it be")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(block.replace(".penstock", str(here.home.path)), names)
    assert [tuple(row) for row in names["orders"].collect()] == rows(held, "shop.orders") == [(1, "new")]


@pytest.mark.deep
def test_a_table_that_failed_is_read_before_its_error_and_one_that_was_added_not_before_its_copy(
    spark_shop: Callable[..., Shop],
) -> None:
    here = spark_shop(f"{ITEMS}; {ORDERS}")
    before = here.home.frontiers("shop").durable
    then = rows(here.home.live(here.spark, as_of=before), "shop.items")
    here.database.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)")
    here.home.add_table("shop", "public.late")
    here.running.check()
    until(lambda: here.state("late") == "live", "the new table")
    copied = here.catalog.bases.first("shop", "late")
    with pytest.raises(DefiniteError, match=rf"public\.late was copied at {copied}: what it was at {before}"):
        here.home.live(here.spark, as_of=before).table("shop.late")
    here.database.execute("ALTER TABLE items DROP COLUMN body; INSERT INTO items VALUES (50)")
    until(lambda: here.state("items") == "failed", "the error of a table that lost a column")
    live = here.home.live(here.spark)
    with pytest.raises(DefiniteError, match="items"):
        live.table("shop.items")
    assert rows(here.home.live(here.spark, as_of=before), "shop.items") == then
    assert rows(live, "shop.late") == [(1,)]


def test_history_that_is_gone_is_refused_and_names_what_is_left(shop: Callable[..., Shop]) -> None:
    here = shop(ITEMS, retain_history="1 second")
    began, asked = here.home.frontiers("shop").valid, server_time(here.database)

    def moved() -> bool:
        here.database.execute("UPDATE items SET body = body || '.'")
        here.running.check()
        return here.home.frontiers("shop").valid > began and here.home.frontiers("shop").valid_at > asked

    until(moved, "history that is gone")
    for as_of in (began, asked):
        with pytest.raises(
            HistoryExpiredError, match=r"source shop cannot be read as of .*: its history begins at \w+/\w+ \(2"
        ):
            here.home.live(here.store, as_of=as_of)
    held = oldest(here)
    again = rows(held, "shop.items")
    assert [id_ for id_, _ in again] == [1, 2]
    here.database.execute("DELETE FROM items")
    assert rows(here.home.live(here.store, as_of=held.position), "shop.items") == again


def oldest(here: Shop) -> Live:
    """Return a view of the oldest moment there is; which one that is moves on until the view holds it."""
    while True:
        with contextlib.suppress(HistoryExpiredError):
            return here.home.live(here.store, as_of=here.home.frontiers("shop").valid)


@pytest.fixture
def another(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    with made_database(postgres_server) as made:
        yield made


@contextmanager
def both(home: Home, spark: SparkSession, **databases: Database) -> Iterator[None]:
    """Capture databases with a table each, and run."""
    for name, database in databases.items():
        database.execute("CREATE TABLE told (id int PRIMARY KEY)")
        home.create(database.url, name)
    with home.run(spark, lambda _: None) as running:
        running.wait_live(PATIENCE)
        yield


@pytest.mark.deep
def test_two_sources_at_one_moment(database: Database, another: Database, tmp_path: Path, spark: SparkSession) -> None:
    """Each number is written to the first, and then to the second: no moment shows it in the second alone."""
    home, written = Home(tmp_path / "home"), list[datetime]()
    with both(home, spark, first=database, second=another), database.connect() as one, another.connect() as two:
        for number in range(60):
            one.execute("INSERT INTO told VALUES (%s)", [number])
            two.execute("INSERT INTO told VALUES (%s)", [number])
            written.append(server_time(database))
            time.sleep(0.05)
        with pytest.raises(TransientError, match=r"source first has come to .*; source second has come to "):
            home.live(spark, as_of=server_time(database) + timedelta(hours=1))
        with pytest.raises(UsageError, match="several sources"):
            home.live(spark, as_of=Lsn(1))

        def counted(moment: datetime) -> tuple[int, int]:
            live = home.live(spark, as_of=moment, wait=timedelta(seconds=PATIENCE))
            assert live.timestamp == moment
            query = "SELECT (SELECT count(*) FROM first.told), (SELECT count(*) FROM second.told)"
            first, second = live.sql(query).collect()[0]
            return first, second

        asked = [written[0] + (written[-1] - written[0]) * part / 7 for part in range(8)]
        asked.append(server_time(database))  # nothing happens from here on
        found = {moment: counted(moment) for moment in asked}
        for moment, (first, second) in found.items():
            whole = sum(at <= moment for at in written)
            assert whole <= second <= first <= whole + 1, moment
        assert found[asked[-1]] == (60, 60)
        one.execute("DELETE FROM told")
        assert {moment: counted(moment) for moment in asked[2::3]} == {moment: found[moment] for moment in asked[2::3]}
        query = f"SELECT count(*) FROM second.told JOIN first.told AS OF TIMESTAMP '{asked[3].isoformat()}' USING (id)"
        assert home.live(spark).sql(query).collect()[0][0] == found[asked[3]][0]
