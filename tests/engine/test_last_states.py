"""While a table is captured again, its last consistent state stays readable, at a position of all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.engine.shop import Shop

from penstock.engine.status_document import TableStatus
from penstock.errors import PenstockError, TransientError
from penstock.positions import Lsn
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, note text);
INSERT INTO orders SELECT n, 'first' FROM generate_series(1, 5) n;
CREATE TABLE audit (id int PRIMARY KEY); INSERT INTO audit VALUES (1)
"""


def _status(shop: Shop, table: str) -> TableStatus:
    (source,) = shop.home.status().sources
    return next(each for each in source.tables if each.upstream == f"public.{table}")


def _rows(shop: Shop, table: str, at: str) -> list[tuple[Any, ...]]:
    frame: Any = shop.home.live(shop.store, as_of={"shop": Lsn.parse(at)}).table(f"shop.{table}")
    read = frame.toArrow() if isinstance(frame, DataFrame) else frame
    return sorted(tuple(row.values()) for row in read.to_pylist())


@contextmanager
def _captured_again(shop: Shop) -> Iterator[str]:
    """Request a new snapshot of orders, which a transaction delays; yield the position of the last state."""
    with shop.database.connect(autocommit=False) as delaying:
        delaying.execute("INSERT INTO audit VALUES (100)")
        shop.home.retry("shop", "orders")
        until(lambda: shop.state("orders") == "pending", "the request to be executed")
        found = _status(shop, "orders").readable_at
        assert found is not None
        yield found
        delaying.commit()
    until(lambda: shop.state("orders") == "live", "the new snapshot")
    assert _status(shop, "orders").readable_at is None


def _check(shop: Shop) -> None:
    shop.database.execute("UPDATE orders SET note = 'second' WHERE id = 1; INSERT INTO audit VALUES (2)")
    shop.database.execute("ALTER TABLE orders DROP COLUMN note, ADD COLUMN body text; INSERT INTO audit VALUES (3)")
    shop.database.execute("INSERT INTO orders VALUES (6, 'third'); INSERT INTO audit VALUES (4)")
    until(lambda: shop.state("orders") == "failed", "the error")
    rows = [(1, "second"), *((n, "first") for n in range(2, 6))]
    with _captured_again(shop) as at:
        assert _rows(shop, "orders", at) == rows
        assert _rows(shop, "audit", at) == [(1,), (2,), (3,)], "the other table at the same position"
        shop.database.execute("INSERT INTO audit VALUES (5)")
        until(lambda: len(shop.rows("audit")) == 5, "the other table to continue")
        with pytest.raises(TransientError, match="orders is being captured again") as caught:
            shop.live().table("shop.orders")
        assert f"AS OF LSN '{at}'" in caught.value.hint
        with pytest.raises(PenstockError):
            _rows(shop, "orders", str(Lsn(Lsn.parse(at) + 1)))
        assert _rows(shop, "orders", at) == rows
    assert shop.columns("orders") == ["id", "body"]
    assert shop.equal()


def test_last_state_of_a_stopped_table_is_readable_until_its_snapshot_is_complete(
    start_shop: Callable[..., Shop],
) -> None:
    _check(start_shop(SETUP))


@pytest.mark.deep
def test_last_state_of_a_stopped_delta_table_is_readable_until_its_snapshot_is_complete(
    start_spark_shop: Callable[..., Shop],
) -> None:
    _check(start_spark_shop(SETUP))


def test_last_state_of_a_live_table_that_is_retried(start_shop: Callable[..., Shop]) -> None:
    """It is the newest base table: changes after it, which are in the log alone, are not visible meanwhile."""
    shop = start_shop(SETUP)
    shop.database.execute("DELETE FROM orders WHERE id > 3; INSERT INTO audit VALUES (2)")
    until(lambda: _status(shop, "orders").behind == 0, "the changes to be applied")
    with _captured_again(shop) as at:
        assert _rows(shop, "orders", at) == [(1, "first"), (2, "first"), (3, "first")]
        shop.database.execute("DELETE FROM orders WHERE id = 1")
        assert _rows(shop, "orders", at) == [(1, "first"), (2, "first"), (3, "first")]
    assert shop.equal()
