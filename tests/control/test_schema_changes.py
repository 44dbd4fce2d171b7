"""DDL upstream, all the way to live tables; and tables that come back by a fresh copy, while others run on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.control.shop import Shop, until

from penstock.errors import PenstockError, UsageError

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status text, body text); CREATE TABLE audit (id int PRIMARY KEY)"
FILL = "INSERT INTO orders SELECT n, 'new', repeat('x', 3000) FROM generate_series(1, 50) n; INSERT INTO audit SELECT 1"


def test_added_columns_reach_the_lake_with_what_older_rows_hold(shop: Callable[[str], Shop]) -> None:
    made = shop(f"{ORDERS}; {FILL}")
    execute = made.database.execute
    execute("ALTER TABLE orders ADD COLUMN note text")
    execute("UPDATE orders SET note = 'n' WHERE id < 10")
    assert made.equal()
    assert made.columns("orders") == ["id", "status", "body", "note"]
    execute("ALTER TABLE orders ADD COLUMN priority int NOT NULL DEFAULT 5")
    execute("ALTER TABLE orders ADD COLUMN tags text[] DEFAULT '{a,NULL}'")
    execute("INSERT INTO orders (id, priority) VALUES (100, 1)")
    assert made.equal()
    wide = ["id", "status", "body", "note", "priority", "tags"]
    assert made.columns("orders") == wide
    until(lambda: made.base_columns("orders") == wide, "the base table to follow")
    execute("DELETE FROM orders WHERE id % 3 = 0; UPDATE orders SET status = 'old' WHERE id % 2 = 0")
    assert made.equal()


def test_a_failed_table_comes_back_by_a_fresh_copy(shop: Callable[[str], Shop]) -> None:
    made = shop(f"{ORDERS}; {FILL}")
    execute = made.database.execute
    with pytest.raises(UsageError, match="no table"):
        made.home.retry("shop", "public.order")
    execute("ALTER TABLE orders RENAME body TO text; INSERT INTO audit VALUES (2)")
    execute("INSERT INTO orders VALUES (101, 'a', 'b')")
    until(lambda: made.state("orders") == "failed", "the error of orders")
    with pytest.raises(PenstockError, match="columns changed upstream"):
        made.home.live(made.spark).table("shop.orders")
    assert made.home.live(made.spark).table("shop.audit").count() == 2
    made.home.retry("shop", "public.orders")
    execute("INSERT INTO orders VALUES (102, 'a', 'b'); INSERT INTO audit VALUES (3)")
    until(lambda: made.state("orders") == "live", "the new copy")
    execute("UPDATE orders SET status = 'z' WHERE id < 5; INSERT INTO audit VALUES (4)")
    assert made.columns("orders") == ["id", "status", "text"]
    assert made.equal()


def test_a_table_that_was_dropped_and_created_again_comes_back(shop: Callable[[str], Shop]) -> None:
    made = shop(f"{ORDERS}; {FILL}; CREATE TABLE keyless (id int)")
    execute = made.database.execute
    execute("DROP TABLE orders; CREATE TABLE orders (id bigint PRIMARY KEY, other text)")
    until(lambda: made.state("orders") == "failed", "the look at the publication")
    execute("INSERT INTO orders VALUES (1, 'unseen'); INSERT INTO audit VALUES (2)")
    execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    made.home.retry("shop", "orders")
    made.home.retry("shop", "keyless")
    until(lambda: (made.state("orders"), made.state("keyless")) == ("live", "live"), "the new copies")
    execute("INSERT INTO orders VALUES (2, 'seen'); INSERT INTO audit VALUES (3)")
    execute("INSERT INTO keyless VALUES (1), (1), (2)")
    execute("DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless)")
    assert made.equal()
    assert sorted(row.id for row in made.home.live(made.spark).table("shop.keyless").collect()) == [1, 2]


def test_what_cannot_be_captured_yet_fails_again_with_the_reason(shop: Callable[[str], Shop]) -> None:
    made = shop(f"{ORDERS}; {FILL}; CREATE TABLE keyless (id int)")
    assert made.state("keyless") == "failed"
    made.home.retry("shop", "public.keyless")
    until(lambda: made.state("keyless") == "failed", "the refusal")
    made.database.execute("INSERT INTO audit VALUES (2)")
    assert made.equal()
