"""ADD, DROP and RETRY TABLE of a running source: other tables are unaffected, and all equal upstream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from tests.engine.shop import Shop
from tests.postgres_records import postgres_instance_of, postgres_spec_of

from penstock.catalog.store import Catalog
from penstock.engine import table_loops
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.layout import base_path
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, status text); INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 50) n;
CREATE TABLE audit (id int PRIMARY KEY); INSERT INTO audit SELECT 1;
CREATE TABLE invoices (id int PRIMARY KEY, total numeric(9, 2));
INSERT INTO invoices SELECT n, n FROM generate_series(1, 500) n
"""
CAPTURED = ("public.orders", "public.audit")
WRITES = (
    "INSERT INTO orders VALUES (%s, 'new')",
    "INSERT INTO invoices VALUES (%s, 1.5)",
    "UPDATE invoices SET total = total + 1 WHERE id = %s %% 500",
)


@pytest.mark.deep
def test_table_is_added_while_the_others_are_captured(start_spark_shop: Callable[..., Shop]) -> None:
    shop = start_spark_shop(SETUP, tables=CAPTURED)
    row_counts, positions = [], [shop.home.live(shop.spark).position]
    with shop.writing(*WRITES):
        with shop.database.connect(
            autocommit=False
        ) as long_transaction:  # begins before the table is published, ends after
            long_transaction.execute("INSERT INTO invoices VALUES (-1, 0)")
            answer = shop.home.sql("ALTER SOURCES shop ADD TABLE public.invoices AS bills")
            until(lambda: "invoices" in shop.published(), "invoices in the publication")
            long_transaction.execute("UPDATE invoices SET total = 7 WHERE id = -1")
        while shop.state("invoices") != "live":
            live = shop.home.live(shop.spark)
            positions.append(live.position)
            row_counts.append(live.table("shop.orders").count())
        until(lambda: shop.home.live(shop.spark).position > positions[-1], "capture to continue")
    assert isinstance(answer, Answer)
    assert "requested from the running Penstock" in answer.message
    assert row_counts == sorted(row_counts)
    assert positions == sorted(positions)
    assert shop.equal()
    assert shop.home.live(shop.spark).table("shop.bills").filter("id = -1 AND total = 7").count() == 1
    record = named_source(shop.catalog, "shop")
    assert postgres_spec_of(record).tables == (*CAPTURED, "public.invoices AS bills")
    (captured,) = [table for table in postgres_instance_of(record).tables if table.name.name == "invoices"]
    assert any(f"invoices is added, published from {Lsn(captured.published)}" in line for line in shop.reported)
    base = shop.catalog.bases.newest("shop", "bills", Lsn((1 << 63) - 1))
    assert base is not None
    assert 0 < captured.published <= base.position
    _check_change_reader_after_drop(shop)


def _check_change_reader_after_drop(shop: Shop) -> None:
    shop.home.drop_table("shop", "public.invoices")
    until(lambda: shop.state("invoices") is None, "the drop")
    changes = shop.spark.read.format("penstock").option("home", str(shop.home.path)).option("source", "shop")
    with pytest.raises(PySparkException, match="no longer captured"):
        changes.option("table", "public.invoices").load().count()


def test_table_is_dropped_and_added_again(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    home, execute = shop.home, shop.database.execute
    before = shop.live()
    folder = base_path(home.path, "shop", "invoices")
    assert folder.exists()
    home.drop_table("shop", "public.invoices")
    with pytest.raises(DefiniteError, match="no longer captured"):
        before.table("shop.invoices")
    until(lambda: shop.state("invoices") is None, "the drop")
    assert not folder.exists()
    assert shop.published() == {"orders", "audit"}
    with pytest.raises(DefiniteError, match="no longer captured"):
        before.table("shop.invoices")
    with pytest.raises(UsageError, match="no table"):
        shop.live().table("shop.invoices")
    execute(
        "INSERT INTO invoices VALUES (1000, 1); DELETE FROM invoices WHERE id < 100; INSERT INTO orders VALUES (51)"
    )
    assert shop.equal()
    home.add_table("shop", "public.invoices")
    until(lambda: shop.state("invoices") == "live", "the new snapshot")
    execute("INSERT INTO invoices VALUES (1001, 1); UPDATE invoices SET total = 0 WHERE id = 200")
    assert shop.equal()
    assert len(shop.rows("invoices")) == 403
    assert home.status().sources[0].error is None


def test_retry_takes_a_new_snapshot_of_a_live_table(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP)
    shop.tamper("orders", lambda rows: rows.filter(pc.field("id") != 7))
    assert not shop.equal()
    with shop.writing(WRITES[0]):
        shop.home.retry("shop", "orders")
        until(lambda: shop.state("orders") in ("retrying", "pending"), "the request")
        until(lambda: shop.state("orders") == "live", "the new snapshot")
    assert shop.equal()


class FailingOnce:
    """Calls a function; the first call raises an error, before or after the function has run."""

    def __init__(self, work: Callable[..., Any], after: bool) -> None:
        self.work, self.after, self.left = work, after, 1
        self.lock = threading.Lock()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self.lock:
            fails, self.left = self.left > 0, 0
        if fails and not self.after:
            raise TransientError("before")
        result = self.work(*arguments, **named)
        if fails:
            raise TransientError("after")
        return result


STEPS = [(owner, name) for owner, name in ((PostgresInstanceConfig, "republish"), (Catalog, "complete_request"))]


def test_interrupted_request_is_executed_again(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = start_shop(SETUP, tables=CAPTURED)
    with shop.writing(*WRITES):
        for owner, name in STEPS:
            for after in (False, True):
                failing = FailingOnce(getattr(owner, name), after)
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, lambda self, *a, _call=failing, **k: _call(self, *a, **k))
                    shop.home.add_table("shop", "public.invoices")
                    until(lambda: shop.state("invoices") == "live", f"the snapshot after an error in {name}")
                    assert failing.left == 0
                failing = FailingOnce(getattr(owner, name), after)
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, lambda self, *a, _call=failing, **k: _call(self, *a, **k))
                    shop.home.drop_table("shop", "public.invoices")
                    until(lambda: shop.state("invoices") is None, f"the drop after an error in {name}")
        shop.home.add_table("shop", "public.invoices")
        until(lambda: shop.state("invoices") == "live", "the snapshot")
    assert shop.equal()


def test_request_waits_for_work_on_its_table_to_finish(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_loops, "_RELEASE_SECONDS", 0.1)
    shop = start_shop(SETUP)
    tables = shop.running._sources["shop"]._tables
    assert tables is not None
    (old,) = [t for t in tables._tables if t.record.local == "orders"]
    with old.writing:  # as a long snapshot would hold it
        shop.home.retry("shop", "orders")
        shop.home.drop_table("shop", "invoices")
        until(lambda: shop.state("invoices") is None, "the other request, which does not wait")
        assert shop.state("orders") == "retrying"
        assert len(shop.rows("orders")) == 50
    until(lambda: shop.state("orders") in ("pending", "live"), "the request")
    assert old.gone
    old.fail(DefiniteError("error of the released table"))
    old.load_state()
    until(lambda: shop.state("orders") == "live", "the new snapshot")
    assert old.at is not None
    assert old.captured.generation == 0
    assert shop.equal()
