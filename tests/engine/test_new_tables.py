"""Tables that are created upstream after their source: captured from their first row on, or reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.shop import Shop
from tests.postgres_records import postgres_spec_of

from penstock.engine import new_tables
from penstock.engine.table_names import named_source
from penstock.event_log import Event
from penstock.home import Home
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import PATIENCE, until

SETUP = "CREATE TABLE orders (id int PRIMARY KEY); INSERT INTO orders SELECT generate_series(1, 50)"
NOTES = "CREATE TABLE notes (id int PRIMARY KEY, body text)"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tables, "SECONDS", 0.1)
    monkeypatch.setattr(new_tables, "_SHARE", 1)


def test_new_table_is_captured_while_it_is_written(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    with shop.database.connect(autocommit=False) as creating:
        creating.execute(NOTES)
        creating.execute("INSERT INTO notes SELECT n, 'first' FROM generate_series(1, 100) n")
    with shop.writing("INSERT INTO orders VALUES (%s)", "INSERT INTO notes VALUES (%s, 'more')"):
        with shop.database.connect(autocommit=False) as open_transaction:
            open_transaction.execute("UPDATE notes SET body = 'open' WHERE id = 1")
            until(lambda: shop.state("notes") is not None, "the table to be found")
            open_transaction.execute("DELETE FROM notes WHERE id = 2")
        until(lambda: shop.state("notes") == "live", "the snapshot")
    assert shop.equal()
    notes = {row["id"]: row["body"] for row in shop.rows("notes")}
    assert (notes[1], 2 in notes, notes[100]) == ("open", False, "first")
    (event,) = [each for each in shop.reported if isinstance(each, Event) and each.name == "table_found"]
    assert (str(event), event.fields) == (
        "shop: new table public.notes is captured as shop.notes",
        {"source": "shop", "table": "public.notes"},
    )
    assert shop.published() == {"orders", "notes"}


def test_table_that_was_created_while_the_home_was_stopped(database: Any, tmp_path: Path, in_process: None) -> None:
    database.execute(f"{SETUP}; CREATE SCHEMA sales; CREATE TABLE sales.a (id int PRIMARY KEY)")
    home, store = Home(tmp_path / "home"), MemoryTables()
    home.create(database.url, "shop", schemas=("sales",))
    with home.run(store, lambda _: None) as running:
        running.wait_live(PATIENCE)
    database.execute(
        "CREATE TABLE sales.b (id int PRIMARY KEY); INSERT INTO sales.b VALUES (1); CREATE TABLE c (id int)"
    )
    with home.run(store, lambda _: None) as running:
        until(lambda: home.tables("shop") == ["sales.a", "sales.b"], "the table to be found")
        running.wait_live(PATIENCE)
        assert [verdict.equal for verdict in home.verify(store, "shop")] == [True, True]
    home.drop("shop")


def test_table_that_cannot_be_captured_is_reported_until_it_can(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    shop.database.execute("CREATE TABLE keyless (id int NOT NULL); CREATE TABLE never (id int)")
    until(lambda: (shop.state("keyless"), shop.state("never")) == ("failed", "failed"), "the report")
    shop.database.execute("INSERT INTO keyless VALUES (1); INSERT INTO orders VALUES (51)")
    until(lambda: len(shop.rows("orders")) == 51, "the other table to continue")
    (source,) = shop.home.status().sources
    (error,) = [table.error for table in source.tables if table.upstream == "public.keyless"]
    assert "no primary key" in str(error)
    warnings = [each for each in shop.reported if isinstance(each, Event) and each.name == "table_not_captured"]
    assert sorted((event.level, event.fields["table"]) for event in warnings) == [
        ("warning", "public.keyless"),
        ("warning", "public.never"),
    ], "each is reported once"
    shop.database.execute("ALTER TABLE keyless ADD PRIMARY KEY (id); DROP TABLE never")
    until(lambda: (shop.state("keyless"), shop.state("never")) == ("live", None), "the snapshot")
    assert shop.equal()
    assert shop.rows("keyless") == [{"id": 1}]


def test_dropped_table_stays_dropped(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(f"{SETUP}; {NOTES}")
    shop.home.drop_table("shop", "notes")
    until(lambda: shop.state("notes") is None, "the drop")
    shop.database.execute("CREATE TABLE later (id int PRIMARY KEY)")
    until(lambda: shop.state("later") == "live", "another table")
    assert shop.state("notes") is None
    assert "exclude tables = (public.notes)" in shop.home.statement("shop")
    shop.home.add_table("shop", "public.notes")
    until(lambda: shop.state("notes") == "live", "the table")
    assert postgres_spec_of(named_source(shop.catalog, "shop")).exclude_tables == ()
    assert shop.equal()


def test_new_tables_are_ignored_on_request(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP, new_tables="ignore", exclude_tables=("public.never",))
    shop.database.execute(f"{NOTES}; CREATE TABLE never (id int PRIMARY KEY)")
    found = {finding.object: finding.why for finding in shop.home.check("shop").findings}
    assert "newer than the source" in found["public.notes"]
    assert "public.never" not in found
    spec = postgres_spec_of(named_source(shop.catalog, "shop"))
    assert spec.find_new_tables(_instance(shop)) is None
    shop.home.sql("ALTER SOURCES shop SET (new tables = 'capture')")
    until(lambda: shop.state("notes") == "live", "the table")
    assert shop.state("never") is None


def _instance(shop: Shop) -> Any:
    from penstock.engine.catalog_records import instance_of

    return instance_of(named_source(shop.catalog, "shop"))


def test_listed_tables_are_all_tables(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(f"{SETUP}; {NOTES}", tables=("public.orders",))
    assert postgres_spec_of(named_source(shop.catalog, "shop")).find_new_tables(_instance(shop)) is None


@pytest.mark.parametrize("kind", ["FOR ALL TABLES", "FOR TABLE orders"])
def test_publication_of_the_user_decides(start_shop: Callable[..., Shop], kind: str) -> None:
    setup = f"{SETUP}; CREATE PUBLICATION mine {kind}"
    shop = start_shop(setup, publication="mine", publication_ownership="user")
    shop.database.execute(f"{NOTES}; INSERT INTO notes VALUES (1, 'a'); INSERT INTO orders VALUES (51)")
    if kind != "FOR ALL TABLES":
        spec = postgres_spec_of(named_source(shop.catalog, "shop"))
        assert spec.find_new_tables(_instance(shop)) == {}
        assert shop.published() == {"orders"}, "the publication is never altered"
        shop.database.execute("ALTER PUBLICATION mine ADD TABLE notes")
    until(lambda: shop.state("notes") == "live", "the table")
    shop.database.execute("INSERT INTO notes VALUES (2, 'b')")
    assert shop.equal()
    assert shop.published() == {"orders", "notes"}


def test_renamed_table_is_not_new(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(f"{SETUP}; {NOTES}")
    shop.database.execute("ALTER TABLE notes RENAME TO comments")
    spec = postgres_spec_of(named_source(shop.catalog, "shop"))
    assert spec.find_new_tables(_instance(shop)) == {}
