"""Reads of running homes as of a past position or time: they return what was read at that time."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.conftest import Database, created_database
from tests.engine.shop import Shop

from penstock.cli.sql import answer
from penstock.cli.sql_output import OutputFormat
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


def change_and_read(shop: Shop, statement: str) -> tuple[Lsn, Rows]:
    """Change the items; return the position of a view after the change, and its rows."""
    shop.database.execute(statement)
    at = Lsn.parse(shop.database.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    live = shop.home.live(shop.store, as_of=at, wait=PATIENCE)
    return live.position, rows(live, "shop.items")


def applied(shop: Shop, upto: Lsn, table: str = "items") -> Callable[[], bool]:
    """Return a check whether the base of a table has reached a position."""

    def has_reached() -> bool:
        base = shop.catalog.bases.newest("shop", table, Lsn((1 << 63) - 1))
        return base is not None and base.position >= upto

    return has_reached


def test_past_reads_return_what_was_read_then(start_shop: Callable[..., Shop]) -> None:
    """Rows recorded at known positions equal views as of these positions, before and after apply and retention."""
    shop = start_shop(ITEMS, retain_history="1 second")
    lease = shop.home.live(shop.store)  # history does not advance meanwhile
    recorded = dict(
        change_and_read(shop, statement)
        for statement in (
            "INSERT INTO items VALUES (3, 'c')",
            "UPDATE items SET body = 'B' WHERE id = 2; DELETE FROM items WHERE id = 1",
            "UPDATE items SET id = 9 WHERE id = 3",
        )
    )
    assert len(recorded) == 3
    first, middle, last = sorted(recorded)
    pinned = shop.home.live(shop.store, as_of=first)
    assert rows(shop.home.live(shop.store, as_of=Lsn(middle - 1)), "shop.items") == recorded[first], (
        "no part of the transaction"
    )
    until(applied(shop, last), "the base to contain all changes")
    for position, found in recorded.items():
        assert rows(shop.home.live(shop.store, as_of=position), "shop.items") == found
    assert shop.home.frontiers("shop").valid <= first, "the lease of the view retains it"
    assert rows(pinned, "shop.items") == recorded[first]
    assert lease.position < first


def test_past_reads_in_spark(start_spark_shop: Callable[..., Shop], capsys: pytest.CaptureFixture[str]) -> None:
    shop = start_spark_shop(ITEMS)
    first, then = change_and_read(shop, "UPDATE items SET body = 'B' WHERE id = 2; INSERT INTO items VALUES (3, 'c')")
    last, now = change_and_read(shop, "UPDATE items SET id = 9 WHERE id = 3; DELETE FROM items WHERE id = 1")
    assert (then, now) == ([(1, "a"), (2, "B"), (3, "c")], [(2, "B"), (9, "c")])
    query = f"SELECT o.id, n.id FROM shop.items AS OF LSN '{first}' o FULL JOIN shop.items n ON o.id = n.id"
    joined = sorted((tuple(row) for row in shop.home.live(shop.spark).sql(query).collect()), key=str)
    assert joined == [(1, None), (2, 2), (3, None), (None, 9)]
    until(applied(shop, last), "the base to contain all changes")
    capsys.readouterr()
    ids = "SELECT id, body FROM shop.items ORDER BY id"
    answer(shop.home, lambda: shop.spark, ids, OutputFormat.JSON, first)
    assert [tuple(json.loads(line).values()) for line in capsys.readouterr().out.splitlines()] == then


@pytest.mark.deep
def test_code_of_the_page(start_spark_shop: Callable[..., Shop]) -> None:
    shop = start_spark_shop(f"{ITEMS}; {ORDERS}", retain_history="1 second")
    _check_page(shop)


def _check_page(shop: Shop) -> None:
    """Run the code blocks of the page on a home whose history does not advance meanwhile."""
    pinned = shop.home.live(shop.spark)
    lease = shop.home._views._keeper._leases["shop"]
    until(lambda: shop.home.frontiers("shop").valid == lease.at, "history to advance to the lease of the view")
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(block.replace(".penstock", str(shop.home.path)), names)
    assert [tuple(row) for row in names["orders"].collect()] == rows(pinned, "shop.orders") == [(1, "new")]


@pytest.mark.deep
def test_failed_table_is_readable_before_its_error_and_an_added_table_only_from_its_snapshot(
    start_spark_shop: Callable[..., Shop],
) -> None:
    shop = start_spark_shop(f"{ITEMS}; {ORDERS}")
    before = shop.home.frontiers("shop").durable
    then = rows(shop.home.live(shop.spark, as_of=before), "shop.items")
    shop.database.execute("CREATE TABLE late (id int PRIMARY KEY); INSERT INTO late VALUES (1)")
    shop.home.add_table("shop", "public.late")
    shop.running.check()
    until(lambda: shop.state("late") == "live", "the added table")
    snapshot = shop.catalog.bases.first("shop", "late")
    with pytest.raises(
        DefiniteError, match=rf"the snapshot of public\.late is at {snapshot}: it cannot be read as of {before}"
    ):
        shop.home.live(shop.spark, as_of=before).table("shop.late")
    shop.database.execute("ALTER TABLE items DROP COLUMN body, ADD COLUMN text text; INSERT INTO items VALUES (50)")
    until(lambda: shop.state("items") == "failed", "the error of the table with another column")
    live = shop.home.live(shop.spark)
    with pytest.raises(DefiniteError, match="items"):
        live.table("shop.items")
    assert rows(shop.home.live(shop.spark, as_of=before), "shop.items") == then
    assert rows(live, "shop.late") == [(1,)]


def test_expired_history_is_rejected_and_the_error_names_the_start_of_history(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(ITEMS, retain_history="1 second")
    first_valid, first_valid_time = shop.home.frontiers("shop").valid, server_time(shop.database)

    def has_moved() -> bool:
        shop.database.execute("UPDATE items SET body = body || '.'")
        shop.running.check()
        return (
            shop.home.frontiers("shop").valid > first_valid and shop.home.frontiers("shop").valid_at > first_valid_time
        )

    until(has_moved, "history to expire")
    for as_of in (first_valid, first_valid_time):
        with pytest.raises(
            HistoryExpiredError, match=r"source shop cannot be read as of .*: its history begins at \w+/\w+ \(2"
        ):
            shop.home.live(shop.store, as_of=as_of)
    pinned = oldest_view(shop)
    oldest_rows = rows(pinned, "shop.items")
    assert [id_ for id_, _ in oldest_rows] == [1, 2]
    shop.database.execute("DELETE FROM items")
    assert rows(shop.home.live(shop.store, as_of=pinned.position), "shop.items") == oldest_rows


def oldest_view(shop: Shop) -> Live:
    """Return a view as of the oldest readable position, which advances until a view leases it."""
    while True:
        with contextlib.suppress(HistoryExpiredError):
            return shop.home.live(shop.store, as_of=shop.home.frontiers("shop").valid)


@pytest.fixture
def another(postgres_server: EmbeddedPostgres) -> Iterator[Database]:
    with created_database(postgres_server) as created:
        yield created


@contextmanager
def running_sources(home: Home, spark: SparkSession, **databases: Database) -> Iterator[None]:
    """Capture databases that have one table each, and run the home."""
    for name, database in databases.items():
        database.execute("CREATE TABLE told (id int PRIMARY KEY)")
        home.create(database.url, name)
    with home.run(spark, lambda _: None) as running:
        running.wait_live(PATIENCE)
        yield


@pytest.mark.deep
def test_two_sources_are_consistent_at_one_time(
    database: Database, another: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Each number is written to the first source, then to the second: no time shows it in the second source only."""
    home, written = Home(tmp_path / "home"), list[datetime]()
    with (
        running_sources(home, spark, first=database, second=another),
        database.connect() as one,
        another.connect() as two,
    ):
        for number in range(60):
            one.execute("INSERT INTO told VALUES (%s)", [number])
            two.execute("INSERT INTO told VALUES (%s)", [number])
            written.append(server_time(database))
            time.sleep(0.05)
        with pytest.raises(TransientError, match=r"source first has reached .*; source second has reached "):
            home.live(spark, as_of=server_time(database) + timedelta(hours=1))
        with pytest.raises(UsageError, match="several sources"):
            home.live(spark, as_of=Lsn(1))

        def row_counts(moment: datetime) -> tuple[int, int]:
            live = home.live(spark, as_of=moment, wait=timedelta(seconds=PATIENCE))
            assert live.timestamp == moment
            query = "SELECT (SELECT count(*) FROM first.told), (SELECT count(*) FROM second.told)"
            first, second = live.sql(query).collect()[0]
            return first, second

        times = [written[0] + (written[-1] - written[0]) * part / 7 for part in range(8)]
        times.append(server_time(database))  # nothing is written after this
        found = {moment: row_counts(moment) for moment in times}
        for moment, (first, second) in found.items():
            complete = sum(at <= moment for at in written)
            assert complete <= second <= first <= complete + 1, moment
        assert found[times[-1]] == (60, 60)
        one.execute("DELETE FROM told")
        assert {moment: row_counts(moment) for moment in times[2::3]} == {
            moment: found[moment] for moment in times[2::3]
        }
        query = f"SELECT count(*) FROM second.told JOIN first.told AS OF TIMESTAMP '{times[3].isoformat()}' USING (id)"
        assert home.live(spark).sql(query).collect()[0][0] == found[times[3]][0]
