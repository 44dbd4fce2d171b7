"""Tables come, go and begin anew while their source runs: the others never notice, and all end as upstream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from tests.engine.shop import Shop

from penstock.catalog.store import Catalog
from penstock.engine import table_loops
from penstock.engine.records import database_instance_of, database_spec_of
from penstock.engine.table_names import named_source
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.layout import base_path
from penstock.positions import Lsn
from penstock.sources.postgres.config import PostgresInstanceConfig
from penstock.sql.answer import Answer
from penstock.testing.waiting import until

MADE = """
CREATE TABLE orders (id int PRIMARY KEY, status text); INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 50) n;
CREATE TABLE audit (id int PRIMARY KEY); INSERT INTO audit SELECT 1;
CREATE TABLE invoices (id int PRIMARY KEY, total numeric(9, 2));
INSERT INTO invoices SELECT n, n FROM generate_series(1, 500) n
"""
CHOSEN = ("public.orders", "public.audit")
WRITES = (
    "INSERT INTO orders VALUES (%s, 'new')",
    "INSERT INTO invoices VALUES (%s, 1.5)",
    "UPDATE invoices SET total = total + 1 WHERE id = %s %% 500",
)


@pytest.mark.deep
def test_a_table_is_added_while_the_others_move_on(spark_shop: Callable[..., Shop]) -> None:
    made = spark_shop(MADE, tables=CHOSEN)
    counts, moved = [], [made.home.live(made.spark).position]
    with made.writing(*WRITES):
        with made.database.connect(autocommit=False) as open_meanwhile:  # begun before it is published, ended after
            open_meanwhile.execute("INSERT INTO invoices VALUES (-1, 0)")
            told = made.home.sql("ALTER SOURCES shop ADD TABLE public.invoices AS bills")
            until(lambda: "invoices" in made.published(), "the publication")
            open_meanwhile.execute("UPDATE invoices SET total = 7 WHERE id = -1")
        while made.state("invoices") != "live":
            live = made.home.live(made.spark)
            moved.append(live.position)
            counts.append(live.table("shop.orders").count())
        until(lambda: made.home.live(made.spark).position > moved[-1], "capture to go on")
    assert isinstance(told, Answer)
    assert "now, by the Penstock that runs" in told.told
    assert counts == sorted(counts)
    assert moved == sorted(moved)
    assert made.equal()
    assert made.home.live(made.spark).table("shop.bills").filter("id = -1 AND total = 7").count() == 1
    record = named_source(made.catalog, "shop")
    assert database_spec_of(record).tables == (*CHOSEN, "public.invoices AS bills")
    (captured,) = [table for table in database_instance_of(record).tables if table.name.name == "invoices"]
    assert any(f"invoices is added, published from {Lsn(captured.published)} on" in line for line in made.said)
    copied = made.catalog.bases.newest("shop", "bills", Lsn((1 << 63) - 1))
    assert copied is not None
    assert 0 < captured.published <= copied.position
    _dropped_for_readers_of_changes(made)


def _dropped_for_readers_of_changes(made: Shop) -> None:
    made.home.drop_table("shop", "public.invoices")
    until(lambda: made.state("invoices") is None, "the drop")
    changes = made.spark.read.format("penstock").option("home", str(made.home.path)).option("source", "shop")
    with pytest.raises(PySparkException, match="not captured any more"):
        changes.option("table", "public.invoices").load().count()


def test_a_table_is_dropped_and_added_again(shop: Callable[..., Shop]) -> None:
    made = shop(MADE)
    home, execute = made.home, made.database.execute
    before = made.live()
    folder = base_path(home.path, "shop", "invoices")
    assert folder.exists()
    home.drop_table("shop", "public.invoices")
    with pytest.raises(DefiniteError, match="not captured any more"):
        before.table("shop.invoices")
    until(lambda: made.state("invoices") is None, "the drop")
    assert not folder.exists()
    assert made.published() == {"orders", "audit"}
    with pytest.raises(DefiniteError, match="not captured any more"):
        before.table("shop.invoices")
    with pytest.raises(UsageError, match="no table"):
        made.live().table("shop.invoices")
    execute(
        "INSERT INTO invoices VALUES (1000, 1); DELETE FROM invoices WHERE id < 100; INSERT INTO orders VALUES (51)"
    )
    assert made.equal()
    home.add_table("shop", "public.invoices")
    until(lambda: made.state("invoices") == "live", "the new copy")
    execute("INSERT INTO invoices VALUES (1001, 1); UPDATE invoices SET total = 0 WHERE id = 200")
    assert made.equal()
    assert len(made.rows("invoices")) == 403
    assert home.status().sources[0].error is None


def test_a_live_table_is_copied_afresh(shop: Callable[..., Shop]) -> None:
    made = shop(MADE)
    made.tamper("orders", lambda rows: rows.filter(pc.field("id") != 7))
    assert not made.equal()
    with made.writing(WRITES[0]):
        made.home.retry("shop", "orders")
        until(lambda: made.state("orders") in ("retrying", "pending"), "the wish")
        until(lambda: made.state("orders") == "live", "the new copy")
    assert made.equal()


class FailsOnce:
    """Calls something, the first time in vain: before or after it did what it does."""

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


STEPS = [(kind, name) for kind, name in ((PostgresInstanceConfig, "repair"), (Catalog, "grant"))]


def test_what_breaks_off_is_carried_out_again(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop(MADE, tables=CHOSEN)
    with made.writing(*WRITES):
        for kind, name in STEPS:
            for after in (False, True):
                failing = FailsOnce(getattr(kind, name), after)
                with monkeypatch.context() as patch:
                    patch.setattr(kind, name, lambda self, *a, _call=failing, **k: _call(self, *a, **k))
                    made.home.add_table("shop", "public.invoices")
                    until(lambda: made.state("invoices") == "live", f"the copy, in spite of {name}")
                    assert failing.left == 0
                failing = FailsOnce(getattr(kind, name), after)
                with monkeypatch.context() as patch:
                    patch.setattr(kind, name, lambda self, *a, _call=failing, **k: _call(self, *a, **k))
                    made.home.drop_table("shop", "public.invoices")
                    until(lambda: made.state("invoices") is None, f"the drop, in spite of {name}")
        made.home.add_table("shop", "public.invoices")
        until(lambda: made.state("invoices") == "live", "the copy")
    assert made.equal()


def test_what_is_in_hand_of_a_table_is_let_finish(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_loops, "_LET_GO_SECONDS", 0.1)
    made = shop(MADE)
    (old,) = [t for t in made.running._sources["shop"]._follower._tables if t.record.local == "orders"]
    with old.writing:  # as a long copy would hold it
        made.home.retry("shop", "orders")
        made.home.drop_table("shop", "invoices")
        until(lambda: made.state("invoices") is None, "the other wish, which need not wait")
        assert made.state("orders") == "retrying"
        assert len(made.rows("orders")) == 50
    until(lambda: made.state("orders") in ("pending", "live"), "the wish")
    assert old.gone
    old.fail(DefiniteError("of the table that it was"))
    old.look_up()
    until(lambda: made.state("orders") == "live", "the new copy")
    assert old.at is not None
    assert old.captured.generation == 0
    assert made.equal()
