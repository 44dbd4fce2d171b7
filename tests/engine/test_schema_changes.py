"""DDL upstream, up to live tables; and failed tables that recover by a new snapshot while the others continue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.shop import Shop

from penstock.errors import DefiniteError, PenstockError, UsageError
from penstock.testing.waiting import until

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status text, body text); CREATE TABLE audit (id int PRIMARY KEY)"
FILL = "INSERT INTO orders SELECT n, 'new', repeat('x', 3000) FROM generate_series(1, 50) n; INSERT INTO audit SELECT 1"


def test_added_columns_reach_the_base_table_with_the_values_of_older_rows(start_shop: Callable[[str], Shop]) -> None:
    _check_added_columns(start_shop(f"{ORDERS}; {FILL}"))


@pytest.mark.deep
def test_added_columns_reach_the_delta_table_with_the_values_of_older_rows(
    start_spark_shop: Callable[[str], Shop],
) -> None:
    _check_added_columns(start_spark_shop(f"{ORDERS}; {FILL}"))


def _check_added_columns(shop: Shop) -> None:
    execute = shop.database.execute
    execute("ALTER TABLE orders ADD COLUMN note text")
    execute("UPDATE orders SET note = 'n' WHERE id < 10")
    assert shop.equal()
    assert shop.columns("orders") == ["id", "status", "body", "note"]
    execute("ALTER TABLE orders ADD COLUMN priority int NOT NULL DEFAULT 5")
    execute("ALTER TABLE orders ADD COLUMN tags text[] DEFAULT '{a,NULL}'")
    execute("INSERT INTO orders (id, priority) VALUES (100, 1)")
    assert shop.equal()
    columns = ["id", "status", "body", "note", "priority", "tags"]
    assert shop.columns("orders") == columns
    until(lambda: shop.base_columns("orders") == columns, "the columns of the base table")
    execute("DELETE FROM orders WHERE id % 3 = 0; UPDATE orders SET status = 'old' WHERE id % 2 = 0")
    assert shop.equal()


def test_longer_varchar_is_followed(start_shop: Callable[[str], Shop]) -> None:
    setup = "CREATE TABLE codes (code varchar(4) PRIMARY KEY, note varchar(4)); INSERT INTO codes VALUES ('a', 'b')"
    shop = start_shop(f"{setup}; {ORDERS}; {FILL}")
    shop.database.execute("ALTER TABLE codes ALTER code TYPE varchar(40), ALTER note TYPE text")
    shop.database.execute(
        "INSERT INTO codes VALUES ('longer than four', repeat('x', 5000)); UPDATE codes SET note = 'c'"
    )
    assert shop.equal()
    assert sorted(row["code"] for row in shop.rows("codes")) == ["a", "longer than four"]
    assert [verdict.error for verdict in shop.home.verify(shop.store, "shop")] == [None, None, None]
    until(lambda: all(table.behind == 0 for table in shop.home.status().sources[0].tables), "apply")
    assert shop.equal()


def test_failed_table_recovers_by_a_new_snapshot(start_shop: Callable[[str], Shop]) -> None:
    shop = start_shop(f"{ORDERS}; {FILL}")
    execute = shop.database.execute
    with pytest.raises(UsageError, match="no table"):
        shop.home.retry("shop", "public.order")
    execute("ALTER TABLE orders DROP COLUMN body, ADD COLUMN text text; INSERT INTO audit VALUES (2)")
    execute("INSERT INTO orders VALUES (101, 'a', 'b')")
    until(lambda: shop.state("orders") == "failed", "the error of orders")
    with pytest.raises(PenstockError, match="columns changed upstream"):
        shop.live().table("shop.orders")
    assert len(shop.rows("audit")) == 2
    shop.home.retry("shop", "public.orders")
    execute("INSERT INTO orders VALUES (102, 'a', 'b'); INSERT INTO audit VALUES (3)")
    until(lambda: shop.state("orders") == "live", "the new snapshot")
    execute("UPDATE orders SET status = 'z' WHERE id < 5; INSERT INTO audit VALUES (4)")
    assert shop.columns("orders") == ["id", "status", "text"]
    assert shop.equal()


def test_dropped_and_recreated_table_recovers_by_retry(start_shop: Callable[[str], Shop]) -> None:
    shop = start_shop(f"{ORDERS}; {FILL}; CREATE TABLE keyless (id int)")
    execute = shop.database.execute
    execute("DROP TABLE orders; CREATE TABLE orders (id bigint PRIMARY KEY, other text)")
    until(lambda: shop.state("orders") == "failed", "the check of the publication")
    execute("INSERT INTO orders VALUES (1, 'unseen'); INSERT INTO audit VALUES (2)")
    execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    shop.home.retry("shop", "orders")
    shop.home.retry("shop", "keyless")
    until(lambda: (shop.state("orders"), shop.state("keyless")) == ("live", "live"), "the new snapshots")
    execute("INSERT INTO orders VALUES (2, 'seen'); INSERT INTO audit VALUES (3)")
    execute("INSERT INTO keyless VALUES (1), (1), (2)")
    execute("DELETE FROM keyless WHERE ctid = (SELECT min(ctid) FROM keyless)")
    assert shop.equal()
    assert sorted(row["id"] for row in shop.rows("keyless")) == [1, 2]


def test_retry_of_a_table_that_still_cannot_be_captured_fails_with_the_reason(
    start_shop: Callable[[str], Shop],
) -> None:
    shop = start_shop(f"{ORDERS}; {FILL}; CREATE TABLE keyless (id int)")
    assert shop.state("keyless") == "failed"
    shop.home.retry("shop", "public.keyless")
    until(lambda: shop.state("keyless") == "failed", "the error")
    shop.database.execute("INSERT INTO audit VALUES (2)")
    assert shop.equal()


def test_tables_without_columns_are_skipped_and_do_not_affect_other_tables(start_shop: Callable[[str], Shop]) -> None:
    """One table has no column when the source is created, one when it is to be added, one loses its only column."""
    full = "ALTER TABLE {0} REPLICA IDENTITY FULL;"
    shop = start_shop(
        f"CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE bare (); {full.format('bare')}"
        f"CREATE TABLE losing (a int); {full.format('losing')} INSERT INTO losing VALUES (1)"
    )
    assert (shop.state("bare"), shop.state("losing")) == ("failed", "live")
    shop.database.execute(f"CREATE TABLE late (); {full.format('late')}")
    with pytest.raises(DefiniteError, match="no columns"):
        shop.home.sql("ALTER SOURCES shop ADD TABLE public.late")
    shop.database.execute("INSERT INTO bare DEFAULT VALUES")
    shop.database.execute("ALTER TABLE losing DROP COLUMN a; INSERT INTO losing DEFAULT VALUES")
    shop.database.execute("INSERT INTO late DEFAULT VALUES; INSERT INTO t VALUES (7)")
    until(lambda: shop.rows("t") == [{"id": 7}], "the other table to continue")
    until(lambda: shop.state("losing") == "failed", "the error of the table without columns")
    assert shop.home.status().sources[0].error is None


def check_full_row_updates(shop: Shop) -> None:
    """Change wide tables with REPLICA IDENTITY FULL, with and without a key, and add a column meanwhile."""
    for name in ("keyed", "keyless"):
        shop.database.execute(f"UPDATE {name} SET c3 = 'b' WHERE id % 2 = 0; DELETE FROM {name} WHERE id = 5")
        added = f"ALTER TABLE {name} ADD COLUMN note text DEFAULT 'it''s \\ \"ü\"'"
        shop.database.execute(
            f"BEGIN; UPDATE {name} SET c4 = NULL WHERE id < 4; {added}; UPDATE {name} SET c5 = 'c' WHERE id > 7; COMMIT"
        )
        shop.database.execute(f"UPDATE {name} SET note = NULL WHERE id = 1; INSERT INTO {name} (id) VALUES (50)")
        shop.database.execute(f"DELETE FROM {name} WHERE id = 8; UPDATE {name} SET id = id + 100 WHERE id = 9")

    def is_applied() -> bool:
        (source,) = shop.home.status().sources
        assert (source.error, [table.error for table in source.tables]) == (None, [None, None])
        return all(table.behind == 0 for table in source.tables)

    until(is_applied, "all changes to be merged")
    assert shop.equal()
    assert shop.base_columns("keyless") == shop.base_columns("keyed") == ["id", *(f"c{n}" for n in range(27)), "note"]


COLUMNS = ", ".join(f"c{n} {'int' if n % 5 == 1 else 'text'}" for n in range(27))
WIDE = "".join(
    f"CREATE TABLE {name} (id int {key}, {COLUMNS}); ALTER TABLE {name} REPLICA IDENTITY FULL;"
    f"INSERT INTO {name} (id, c3, c4, c25) SELECT n, 'x', repeat('y', n * 1000), n::text FROM generate_series(1, 12) n;"
    for name, key in (("keyed", "PRIMARY KEY"), ("keyless", ""))
)


def test_column_is_added_to_a_wide_table_with_replica_identity_full(start_shop: Callable[[str], Shop]) -> None:
    check_full_row_updates(start_shop(WIDE))


@pytest.mark.deep
def test_column_is_added_to_a_wide_table_with_replica_identity_full_in_spark(
    start_spark_shop: Callable[[str], Shop],
) -> None:
    check_full_row_updates(start_spark_shop(WIDE))
