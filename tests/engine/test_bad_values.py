"""Values that cannot be stored: the error names each column and how to find the rows; a retry recovers the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.shop import Shop

from penstock.event_log import Event
from penstock.home import Home
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

SETUP = """
CREATE DOMAIN day AS date; CREATE TYPE stay AS (since timestamp, room int);
CREATE TABLE t (id int PRIMARY KEY, d day, ts timestamptz, n numeric(9, 2), i int[], a date[], r daterange, c stay,
                fine date);
INSERT INTO t SELECT x, '2026-01-01', now(), 1.5, '{1}', '{2026-01-01}', '[2026-01-01,2026-02-01)',
                     ROW(now()::timestamp, 1)::stay, '2026-01-01' FROM generate_series(1, 50) x;
CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1); CREATE TABLE third (id int PRIMARY KEY)
"""
BAD = {
    "d": "'infinity'",
    "ts": "'20000-01-01'",
    "n": "'NaN'",
    "i": "'[2:3]={1,2}'",
    "a": "'{2026-01-01,-infinity}'",
    "r": "'[2026-01-01,infinity)'",
    "c": "'(0044-03-15 BC,7)'",
}


def error_and_hint(shop: Shop) -> tuple[str, str]:
    (source,) = shop.home.status().sources
    (found,) = [table for table in source.tables if table.upstream == "public.t"]
    return str(found.error), str(found.hint)


def rows_found_by(shop: Shop, hint: str) -> list[tuple[int]]:
    """The keys of the rows that the query in a hint returns."""
    query = hint.partition("Find them with: ")[2].partition(";")[0]
    assert query.startswith('SELECT * FROM "public"."t" WHERE ')
    found: list[tuple[int]] = shop.database.execute(query.replace("SELECT *", "SELECT id", 1))
    return found


def test_snapshot_error_names_all_columns_and_how_to_find_the_rows(start_shop: Callable[..., Shop]) -> None:
    changes = ", ".join(f"{name} = {value}" for name, value in BAD.items())
    shop = start_shop(f"{SETUP}; UPDATE t SET {changes} WHERE id = 11")
    assert shop.state("t") == "failed"
    error, hint = error_and_hint(shop)
    assert "public.t cannot be copied" in error
    assert [name for name in BAD if f"column {name} holds a value that cannot be stored" in error] == list(BAD)
    assert "column fine" not in error
    assert "drop the source" not in hint
    assert "ALTER SOURCES … RETRY TABLE public.t;" in hint
    assert not [value for value in ("20000", "0044", "[2:3]", "11") if value in error + hint], (
        "no value of the row is shown"
    )
    assert "2 of 3 tables complete" in " ".join(shop.reported)
    events = [each for each in shop.reported if isinstance(each, Event)]
    copying = [each.fields for each in events if each.name == "table_copying"]
    assert {(each["source"], each["table"]) for each in copying} > {("shop", "public.t")}
    assert all(isinstance(each["total"], int) for each in copying)
    (done,) = [each.fields for each in events if each.name == "snapshot_complete"]
    assert done == {"source": "shop", "tables": 2, "total": 3}
    assert rows_found_by(shop, hint) == [(11,)], "the query returns no other row"
    shop.database.execute("DELETE FROM t WHERE id = 11")
    shop.home.retry("shop", "t")
    until(lambda: shop.state("t") == "live", "the new snapshot")
    assert shop.equal()
    assert "1 of 1 tables complete" in " ".join(shop.reported)


@pytest.mark.parametrize("column", BAD)
def test_stream_error_names_the_column_and_how_to_find_the_rows(start_shop: Callable[..., Shop], column: str) -> None:
    shop = start_shop(SETUP)
    shop.database.execute(f"UPDATE t SET {column} = {BAD[column]} WHERE id = 11")
    until(lambda: shop.state("t") == "failed", "the error")
    error, hint = error_and_hint(shop)
    assert f"column {column} holds a value that cannot be stored" in error
    assert rows_found_by(shop, hint) == [(11,)]


def test_stopped_snapshot_reports_its_progress(
    database: Any, tmp_path: Any, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining tables are not copied."""
    database.execute("; ".join(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(12)))
    home, reported = Home(tmp_path / "home"), list[str]()
    home.create(database.url, "shop")
    monkeypatch.setattr("penstock.engine.snapshot._PARALLEL_TABLES", 1)
    with home.run(MemoryTables(), reported.append) as running:
        until(lambda: running.copied_tables()[0] > 0, "the first table")
    copied = sum(table.state == "live" for table in home.status().sources[0].tables)
    assert f"shop: snapshot of {copied} of 12 tables complete" in reported
