"""A column that is dropped upstream: the table continues; the column is null in rows that change from then on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.shop import Shop

from penstock.errors import TransientError
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a text, "c.d" text NOT NULL);
INSERT INTO t SELECT n, 'a', 'c' FROM generate_series(1, 5) n;
CREATE TABLE audit (id int PRIMARY KEY)
"""


def _is_captured_again(shop: Shop) -> bool:
    try:
        shop.rows("t")
    except TransientError as error:
        assert "captured again" in error.message
        return True
    return False


def _check(shop: Shop) -> None:
    execute = shop.database.execute
    execute("UPDATE t SET a = 'b' WHERE id = 1")
    execute("ALTER TABLE t DROP COLUMN \"c.d\"; UPDATE t SET a = 'z' WHERE id = 2; DELETE FROM t WHERE id = 3")
    assert shop.all_equal()
    expected = [(1, "b", "c"), (2, "z", None), (4, "a", "c"), (5, "a", "c")]
    assert shop.values("t", "id", "a", "c.d") == expected
    assert shop.columns("t") == ["id", "a", "c.d"]
    execute("ALTER TABLE t ADD COLUMN e int DEFAULT 7; INSERT INTO t VALUES (6, 'x', 8)")
    assert shop.all_equal()
    assert shop.values("t", "id", "e") == [(1, 7), (2, 7), (4, 7), (5, 7), (6, 8)]

    def is_applied() -> bool:
        (source,) = shop.home.status().sources
        assert [table.error for table in source.tables] == [None, None]
        return all(table.behind == 0 for table in source.tables)

    until(is_applied, "all changes to be merged")
    assert shop.all_equal()
    assert shop.values("t", "id", "a", "c.d")[:4] == expected


def test_rows_that_change_after_the_drop_have_null(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    _check(shop)
    shop.home.retry("shop", "t")
    until(lambda: shop.generation("t") == 1 and shop.state("t") == "live", "the new snapshot")
    assert shop.columns("t") == ["id", "a", "e"], "a new snapshot has the present columns"
    assert shop.all_equal()


@pytest.mark.deep
def test_rows_that_change_after_the_drop_have_null_in_spark(start_spark_shop: Callable[..., Shop]) -> None:
    """A repair reads the columns that exist, and leaves rows as they are that differ in nothing else."""
    shop = start_spark_shop(SETUP)
    _check(shop)
    assert shop.home.repair("shop", "t", everything=True).rows_changed == 0
    assert (5, "c") in shop.values("t", "id", "c.d")
    shop.plant("t", lambda delta: delta.update("id = 5", {"a": "'wrong'"}))
    assert not shop.all_equal()
    assert shop.home.repair("shop", "t", keys=[5, 4]).rows_changed == 1
    assert shop.all_equal()
    assert [row for row in shop.values("t", "id", "a", "c.d") if row[0] in (4, 5)] == [(4, "a", "c"), (5, "a", None)]


def test_difference_in_another_column_is_found(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    shop.database.execute("ALTER TABLE t DROP COLUMN \"c.d\"; INSERT INTO t VALUES (6, 'x')")
    assert shop.all_equal()
    until(lambda: all(table.behind == 0 for table in shop.home.status().sources[0].tables), "apply")
    shop.tamper("t", lambda rows: rows.slice(1))
    assert not shop.all_equal()


def test_column_that_is_dropped_during_the_snapshot(start_shop: Callable[..., Shop]) -> None:
    """The snapshot waits for a transaction, while capture has begun the table with the column."""
    shop = start_shop(SETUP)
    with shop.database.connect(autocommit=False) as delaying:
        delaying.execute("INSERT INTO audit VALUES (1)")
        shop.home.retry("shop", "t")
        until(lambda: shop.state("t") == "pending", "the request to be executed")
        shop.database.execute("INSERT INTO t VALUES (6, 'before', 'c'); ALTER TABLE t DROP COLUMN \"c.d\"")
        shop.database.execute("INSERT INTO t VALUES (7, 'after')")
        until(lambda: _is_captured_again(shop), "a position after the last state")
    until(lambda: shop.state("t") == "live", "the snapshot")
    shop.database.execute("UPDATE t SET a = 'later' WHERE id = 1")
    assert shop.all_equal()
    assert shop.columns("t") == ["id", "a", "c.d"]
    assert {row[1] for row in shop.values("t", "id", "c.d")} == {None}
    (source,) = shop.home.status().sources
    assert [table.error for table in source.tables] == [None, None]
