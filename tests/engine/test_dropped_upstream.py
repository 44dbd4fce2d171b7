"""A table that was dropped or renamed upstream fails alone: other tables can be added, dropped and retried."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.engine.shop import Shop

from penstock.catalog.store import SourceRecord, TableRecord
from penstock.engine.reconcile import Described, describe
from penstock.sources.postgres.replication import publication_watch
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, status text); INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 50) n;
CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 20);
CREATE TABLE audit (id int PRIMARY KEY); INSERT INTO audit SELECT 1; CREATE SCHEMA archive;
CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later SELECT generate_series(1, 5)
"""
CAPTURED = ("public.orders", "public.items", "public.audit")
CHANGES = {
    "DROP TABLE audit": "table does not exist",
    "ALTER TABLE audit RENAME TO audit_2025": "it was renamed to public.audit_2025 upstream",
    "ALTER TABLE audit SET SCHEMA archive": "it was renamed to archive.audit upstream",
}


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication_watch, "_SECONDS", 0.1)


def record(shop: Shop, table: str) -> TableRecord:
    return next(each for each in shop.catalog.tables("shop") if str(each.upstream) == f"public.{table}")


@pytest.mark.parametrize(("statement", "message"), CHANGES.items())
def test_table_missing_upstream_does_not_affect_other_tables(
    start_shop: Callable[..., Shop], statement: str, message: str
) -> None:
    shop = start_shop(SETUP, tables=CAPTURED)
    execute = shop.database.execute
    execute(statement)
    execute("ALTER TABLE orders DROP COLUMN status, ADD COLUMN state text; INSERT INTO orders VALUES (51, 'x')")
    until(lambda: (shop.state("audit"), shop.state("orders")) == ("failed", "failed"), "the errors")
    shop.home.retry("shop", "orders")
    until(lambda: shop.state("orders") == "live", "the new snapshot")
    shop.home.add_table("shop", "public.later")
    until(lambda: shop.state("later") == "live", "the snapshot")
    execute("INSERT INTO orders VALUES (52, 'y'); INSERT INTO later VALUES (6); INSERT INTO items VALUES (21)")
    shop.home.drop_table("shop", "items")
    until(lambda: shop.state("items") is None, "the drop")
    assert shop.equal()
    assert len(shop.rows("orders")) == 52
    shop.home.retry("shop", "audit")
    until(lambda: message in str(record(shop, "audit").error), "the reason in the error")
    assert shop.state("audit") == "failed"
    assert shop.state("orders") == "live"
    shop.home.drop_table("shop", "audit")
    until(lambda: shop.state("audit") is None, "the drop of the missing table")
    execute("INSERT INTO orders VALUES (53, 'z')")
    assert shop.equal()
    assert shop.published() == {"orders", "later"}


def test_table_created_again_under_its_name_is_captured_by_retry(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SETUP, tables=CAPTURED)
    execute = shop.database.execute
    execute("ALTER TABLE audit RENAME TO audit_2025; CREATE TABLE audit (id int PRIMARY KEY, note text)")
    until(lambda: shop.state("audit") == "failed", "the error")
    shop.home.retry("shop", "items")
    until(lambda: shop.state("items") == "live", "the new snapshot")
    assert shop.published() == {"orders", "items", "audit_2025"}, "the publication is unchanged"
    shop.home.retry("shop", "audit")
    until(lambda: shop.state("audit") == "live", "the new snapshot")
    execute("INSERT INTO audit VALUES (2, 'x')")
    assert shop.equal()
    assert shop.rows("audit") == [{"id": 2, "note": "x"}]
    assert shop.published() == {"orders", "items", "audit"}


def test_repair_of_one_table_does_not_hide_a_gap_of_another(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is removed from the publication; another one is captured again before capture has checked."""
    monkeypatch.setattr(publication_watch, "_SECONDS", 3600)
    shop = start_shop(SETUP, tables=CAPTURED)
    execute = shop.database.execute
    until(lambda: len(shop.rows("audit")) == 1, "the snapshot")
    execute("ALTER PUBLICATION penstock_shop DROP TABLE audit; INSERT INTO audit VALUES (2)")
    shop.home.retry("shop", "orders")
    until(lambda: shop.state("orders") == "live", "the new snapshot")
    until(lambda: shop.state("audit") == "failed", "the error of the table that missed a row")
    assert "no longer in publication" in str(record(shop, "audit").error)
    execute("ALTER PUBLICATION penstock_shop SET (publish = 'insert'); DELETE FROM items")
    shop.home.retry("shop", "audit")
    until(lambda: shop.state("audit") == "live", "the new snapshot")
    until(lambda: shop.state("items") == "failed", "the error of the table whose deletes are not published")
    assert "no longer publishes delete or truncate or update" in str(record(shop, "items").error)
    assert shop.equal()


def test_table_that_cannot_be_published_fails_alone(
    start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is dropped after it was described and before it is published."""
    shop = start_shop(SETUP, tables=("public.orders", "public.items"))

    def describe_then_drop(record: SourceRecord, requests: Sequence[TableRecord]) -> Described:
        found = describe(record, requests)
        shop.database.execute("DROP TABLE IF EXISTS later")
        return found

    monkeypatch.setattr("penstock.engine.source_runner.describe", describe_then_drop)
    until(lambda: shop.state("orders") == "live", "the snapshot")
    shop.home.add_table("shop", "public.later")
    shop.home.retry("shop", "orders")
    until(lambda: (shop.state("later"), shop.state("orders")) == ("failed", "live"), "both tables")
    assert "later" in str(record(shop, "later").error)
    assert shop.equal()
