"""``on schema change = 'resnapshot'``: a table that stopped because of a schema change is captured again by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.shop import Shop

from penstock.engine import changed_tables
from penstock.engine.catalog_records import instance_of
from penstock.engine.changed_tables import Attempts
from penstock.engine.table_names import named_source
from penstock.event_log import Event
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, status text, body text);
INSERT INTO orders SELECT n, 'new', 'x' FROM generate_series(1, 50) n;
CREATE TABLE audit (id int PRIMARY KEY); INSERT INTO audit VALUES (1)
"""
CHANGED = "ALTER TABLE orders DROP COLUMN body, ADD COLUMN text text; INSERT INTO orders VALUES (101, 'a', 'b')"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_tables, "_FIRST_PAUSE", 0.01)


def _generation(shop: Shop, table: str) -> int:
    produced = instance_of(named_source(shop.catalog, "shop")).produced()
    return next(each.generation for each in produced if each.name.name == table)


def _is_captured_again(shop: Shop, table: str, generation: int) -> Callable[[], bool]:
    return lambda: _generation(shop, table) >= generation and shop.state(table) == "live"


def _events(shop: Shop, name: str) -> list[Event]:
    return [each for each in shop.reported if isinstance(each, Event) and each.name == name]


def test_changed_table_is_captured_again_by_itself(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP, on_schema_change="resnapshot")
    with shop.writing("INSERT INTO audit VALUES (%s)"):
        shop.database.execute(CHANGED)
        until(_is_captured_again(shop, "orders", 1), "the new snapshot")
        assert shop.columns("orders") == ["id", "status", "text"]
        shop.database.execute("ALTER TABLE orders ALTER COLUMN id TYPE bigint; DELETE FROM orders WHERE id = 7")
        until(_is_captured_again(shop, "orders", 2), "the second snapshot")
    assert shop.equal()
    assert _generation(shop, "audit") == 0, "the other table is not copied again"
    first = _events(shop, "table_resnapshotted")[0]
    assert "its columns changed upstream" in str(first)
    assert (first.level, first.fields) == ("warning", {"source": "shop", "table": "public.orders"})
    (source,) = shop.home.status().sources
    assert {table.reason for table in source.tables} == {None}, "a table that is live again has no reason"


def test_option_applies_at_once_to_a_table_that_has_stopped(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    assert "on schema change" not in shop.home.statement("shop")
    shop.database.execute(CHANGED)
    until(lambda: shop.state("orders") == "failed", "the error")
    shop.home.sql("ALTER SOURCE shop SET (on schema change = 'resnapshot')")
    until(_is_captured_again(shop, "orders", 1), "the new snapshot")
    assert "on schema change = 'resnapshot'" in shop.home.statement("shop")
    shop.home.sql("ALTER SOURCE shop SET (on schema change = 'stop')")
    shop.database.execute(
        "ALTER TABLE orders DROP COLUMN text, ADD COLUMN body text; INSERT INTO orders VALUES (102, 'a', 'b')"
    )
    until(lambda: shop.state("orders") == "failed", "the error")
    assert _generation(shop, "orders") == 1


def test_table_that_cannot_be_captured_yet_says_why_and_follows_when_it_can(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP, on_schema_change="resnapshot")
    shop.database.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey; INSERT INTO orders VALUES (101, 'a', 'b')")
    until(lambda: bool(_events(shop, "table_not_captured")), "the report")
    (source,) = shop.home.status().sources
    (orders,) = [table for table in source.tables if table.upstream == "public.orders"]
    assert (orders.state, "primary key changed" in str(orders.error)) == ("failed", True)
    assert "as soon as that is possible" in str(orders.hint)
    assert "no primary key" in str(orders.hint)
    shop.database.execute("ALTER TABLE orders ADD PRIMARY KEY (id)")
    until(_is_captured_again(shop, "orders", 1), "the new snapshot")
    assert shop.equal()


def test_dropped_table_is_not_captured_again(start_shop: Callable[..., Shop]) -> None:
    """Another table of the same name is not the one that was captured; nor is a value that a column cannot hold."""
    shop = start_shop(
        f"{SETUP}; CREATE TABLE dated (id int PRIMARY KEY, d date); CREATE TABLE pair (id int PRIMARY KEY, a int)",
        on_schema_change="resnapshot",
    )
    shop.database.execute("DROP TABLE orders; CREATE TABLE orders (id int PRIMARY KEY)")
    shop.database.execute("INSERT INTO dated VALUES (1, 'infinity')")
    shop.database.execute(
        "BEGIN; ALTER TABLE pair DROP COLUMN a, ADD COLUMN b int; INSERT INTO pair VALUES (1); DROP TABLE pair;"
        " CREATE TABLE pair (id int PRIMARY KEY, a int); COMMIT"
    )
    until(lambda: {shop.state(t) for t in ("orders", "dated", "pair")} == {"failed"}, "the errors")
    shop.database.execute("INSERT INTO audit VALUES (2)")
    until(lambda: len(shop.rows("audit")) == 2, "the other table to continue")
    shop.database.execute("ALTER TABLE audit ALTER id TYPE bigint; INSERT INTO audit VALUES (3)")
    until(_is_captured_again(shop, "audit", 1), "the new snapshot of another table")
    assert [_generation(shop, table) for table in ("orders", "dated", "pair")] == [0, 0, 0]
    again = {event.fields["table"] for event in _events(shop, "table_resnapshotted")}
    assert again == {"public.audit"}


def test_pauses_grow_while_a_table_stops_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_tables, "_FIRST_PAUSE", 10.0)
    attempts, now, waits = Attempts(), 0.0, list[float]()
    for _ in range(9):
        stopped = now
        while not attempts.is_due(now):
            now += 10.0
        waits.append(now - stopped)
        attempts.made()
        attempts.note_live(now)
    assert waits == [0, 10, 20, 40, 80, 160, 320, 600, 600]
    attempts.note_live(now + 600)
    assert attempts.is_due(now + 700), "a table that was live for a while begins again"
