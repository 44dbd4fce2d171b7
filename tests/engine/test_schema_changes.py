"""DDL upstream, all the way to live tables; and tables that come back by a fresh copy, while others run on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.shop import Shop

from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.testing.waiting import until

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status text, body text); CREATE TABLE audit (id int PRIMARY KEY)"
FILL = "INSERT INTO orders SELECT n, 'new', repeat('x', 3000) FROM generate_series(1, 50) n; INSERT INTO audit SELECT 1"


def test_added_columns_reach_the_lake_with_what_older_rows_hold(spark_shop: Callable[[str], Shop]) -> None:
    made = spark_shop(f"{ORDERS}; {FILL}")
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
        made.live().table("shop.orders")
    assert len(made.rows("audit")) == 2
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
    assert sorted(row["id"] for row in made.rows("keyless")) == [1, 2]


def test_what_cannot_be_captured_yet_fails_again_with_the_reason(shop: Callable[[str], Shop]) -> None:
    made = shop(f"{ORDERS}; {FILL}; CREATE TABLE keyless (id int)")
    assert made.state("keyless") == "failed"
    made.home.retry("shop", "public.keyless")
    until(lambda: made.state("keyless") == "failed", "the refusal")
    made.database.execute("INSERT INTO audit VALUES (2)")
    assert made.equal()


def test_tables_without_columns_are_left_out_and_keep_no_other_from_going_on(shop: Callable[[str], Shop]) -> None:
    """One has none when it is captured, one when it shall be added, one loses all of them."""
    full = "ALTER TABLE {0} REPLICA IDENTITY FULL;"
    made = shop(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE bare (); {full.format('bare')}"
        f"CREATE TABLE losing (a int); {full.format('losing')} INSERT INTO losing VALUES (1)"
    )
    assert (made.state("bare"), made.state("losing")) == ("failed", "live")
    made.database.execute(f"CREATE TABLE late (); {full.format('late')}")
    with pytest.raises(DefiniteError, match="no columns"):
        made.home.sql("ALTER SOURCES shop ADD TABLE public.late")
    made.database.execute("INSERT INTO bare DEFAULT VALUES")
    made.database.execute("ALTER TABLE losing DROP COLUMN a; INSERT INTO losing DEFAULT VALUES")
    made.database.execute("INSERT INTO late DEFAULT VALUES; INSERT INTO t VALUES (7)")
    until(lambda: made.rows("t") == [{"id": 7}], "the other table goes on")
    until(lambda: made.state("losing") == "failed", "the table that lost its columns ends")
    assert made.home.status().sources[0].error is None


def wide_and_whole(made: Shop) -> None:
    """Change tables of many columns whose whole rows are sent, with a key and without, while a column comes."""
    for name in ("keyed", "bag"):
        made.database.execute(f"UPDATE {name} SET c3 = 'b' WHERE id % 2 = 0; DELETE FROM {name} WHERE id = 5")
        added = f"ALTER TABLE {name} ADD COLUMN note text DEFAULT 'it''s \\ \"ü\"'"
        made.database.execute(
            f"BEGIN; UPDATE {name} SET c4 = NULL WHERE id < 4; {added}; UPDATE {name} SET c5 = 'c' WHERE id > 7; COMMIT"
        )
        made.database.execute(f"UPDATE {name} SET note = NULL WHERE id = 1; INSERT INTO {name} (id) VALUES (50)")
        made.database.execute(f"DELETE FROM {name} WHERE id = 8; UPDATE {name} SET id = id + 100 WHERE id = 9")

    def settled() -> bool:
        (source,) = made.home.status().sources
        assert (source.error, [table.error for table in source.tables]) == (None, [None, None])
        return all(table.behind == 0 for table in source.tables)

    until(settled, "all is merged")
    assert made.equal()
    assert made.base_columns("bag") == made.base_columns("keyed") == ["id", *(f"c{n}" for n in range(27)), "note"]


COLUMNS = ", ".join(f"c{n} {'int' if n % 5 == 1 else 'text'}" for n in range(27))
WIDE = "".join(
    f"CREATE TABLE {name} (id int {key}, {COLUMNS}); ALTER TABLE {name} REPLICA IDENTITY FULL;"
    f"INSERT INTO {name} (id, c3, c4, c25) SELECT n, 'x', repeat('y', n * 1000), n::text FROM generate_series(1, 12) n;"
    for name, key in (("keyed", "PRIMARY KEY"), ("bag", ""))
)


def test_a_column_comes_to_a_wide_table_whose_whole_rows_are_sent(shop: Callable[[str], Shop]) -> None:
    wide_and_whole(shop(WIDE))


@pytest.mark.deep
def test_a_column_comes_to_a_wide_table_in_the_lake(spark_shop: Callable[[str], Shop]) -> None:
    wide_and_whole(spark_shop(WIDE))
