"""A table that is gone upstream, or has another name there, is its own trouble: the others come, go and begin anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.engine.shop import Shop

from penstock.catalog.store import SourceRecord, TableRecord
from penstock.engine.reconcile import Described, describe
from penstock.sources.postgres import watch
from penstock.testing.waiting import until

MADE = """
CREATE TABLE orders (id int PRIMARY KEY, status text); INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 50) n;
CREATE TABLE items (id int PRIMARY KEY); INSERT INTO items SELECT generate_series(1, 20);
CREATE TABLE audit (id int PRIMARY KEY); INSERT INTO audit SELECT 1; CREATE SCHEMA archive;
CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later SELECT generate_series(1, 5)
"""
CHOSEN = ("public.orders", "public.items", "public.audit")
GONE = {
    "DROP TABLE audit": "there is no such table",
    "ALTER TABLE audit RENAME TO audit_2025": "it is called public.audit_2025 upstream now",
    "ALTER TABLE audit SET SCHEMA archive": "it is called archive.audit upstream now",
}


@pytest.fixture(autouse=True)
def looks_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_SECONDS", 0.1)


def record(made: Shop, table: str) -> TableRecord:
    return next(each for each in made.catalog.tables("shop") if str(each.upstream) == f"public.{table}")


@pytest.mark.parametrize(("statement", "why"), GONE.items())
def test_one_that_is_gone_is_in_nobodys_way(shop: Callable[..., Shop], statement: str, why: str) -> None:
    made = shop(MADE, tables=CHOSEN)
    execute = made.database.execute
    execute(statement)
    execute("ALTER TABLE orders RENAME status TO state; INSERT INTO orders VALUES (51, 'x')")
    until(lambda: (made.state("audit"), made.state("orders")) == ("failed", "failed"), "the errors")
    made.home.retry("shop", "orders")
    until(lambda: made.state("orders") == "live", "the new copy")
    made.home.add_table("shop", "public.later")
    until(lambda: made.state("later") == "live", "the copy")
    execute("INSERT INTO orders VALUES (52, 'y'); INSERT INTO later VALUES (6); INSERT INTO items VALUES (21)")
    made.home.drop_table("shop", "items")
    until(lambda: made.state("items") is None, "the drop")
    assert made.equal()
    assert len(made.rows("orders")) == 52
    made.home.retry("shop", "audit")
    until(lambda: why in str(record(made, "audit").error), "the reason")
    assert made.state("audit") == "failed"
    assert made.state("orders") == "live"
    made.home.drop_table("shop", "audit")
    until(lambda: made.state("audit") is None, "the drop of what is gone")
    execute("INSERT INTO orders VALUES (53, 'z')")
    assert made.equal()
    assert made.published() == {"orders", "later"}


def test_one_that_came_back_under_its_name_begins_anew(shop: Callable[..., Shop]) -> None:
    made = shop(MADE, tables=CHOSEN)
    execute = made.database.execute
    execute("ALTER TABLE audit RENAME TO audit_2025; CREATE TABLE audit (id int PRIMARY KEY, note text)")
    until(lambda: made.state("audit") == "failed", "the error")
    made.home.retry("shop", "items")
    until(lambda: made.state("items") == "live", "the new copy")
    assert made.published() == {"orders", "items", "audit_2025"}, "it stays as it is"
    made.home.retry("shop", "audit")
    until(lambda: made.state("audit") == "live", "the new copy")
    execute("INSERT INTO audit VALUES (2, 'x')")
    assert made.equal()
    assert made.rows("audit") == [{"id": 2, "note": "x"}]
    assert made.published() == {"orders", "items", "audit"}


def test_what_is_mended_for_one_hides_no_gap_of_another(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody takes a table out of the publication; before capture has looked, another one is captured anew."""
    monkeypatch.setattr(watch, "_SECONDS", 3600)
    made = shop(MADE, tables=CHOSEN)
    execute = made.database.execute
    until(lambda: len(made.rows("audit")) == 1, "the copy")
    execute("ALTER PUBLICATION penstock_shop DROP TABLE audit; INSERT INTO audit VALUES (2)")
    made.home.retry("shop", "orders")
    until(lambda: made.state("orders") == "live", "the new copy")
    until(lambda: made.state("audit") == "failed", "the error of the one that missed a row")
    assert "not in the publication" in str(record(made, "audit").error)
    execute("ALTER PUBLICATION penstock_shop SET (publish = 'insert'); DELETE FROM items")
    made.home.retry("shop", "audit")
    until(lambda: made.state("audit") == "live", "the new copy")
    until(lambda: made.state("items") == "failed", "the error of the one whose rows are gone")
    assert "does not publish delete or truncate or update" in str(record(made, "items").error)
    assert made.equal()


def test_one_that_cannot_be_published_is_refused_alone(
    shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes between the look at it and its being published."""
    made = shop(MADE, tables=("public.orders", "public.items"))

    def then_it_goes(record: SourceRecord, wishes: Sequence[TableRecord]) -> Described:
        found = describe(record, wishes)
        made.database.execute("DROP TABLE IF EXISTS later")
        return found

    monkeypatch.setattr("penstock.engine.source_runner.describe", then_it_goes)
    until(lambda: made.state("orders") == "live", "the copy")
    made.home.add_table("shop", "public.later")
    made.home.retry("shop", "orders")
    until(lambda: (made.state("later"), made.state("orders")) == ("failed", "live"), "both")
    assert "later" in str(record(made, "later").error)
    assert made.equal()
