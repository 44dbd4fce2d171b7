"""Values that cannot be kept: the error names every column, and how to find the rows; a retry brings the table back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.shop import Shop

from penstock.home import Home
from penstock.testing.memory_tables import MemoryTables
from penstock.testing.waiting import until

MADE = """
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


def said_of(made: Shop) -> tuple[str, str]:
    (source,) = made.home.status().sources
    (found,) = [table for table in source.tables if table.upstream == "public.t"]
    return str(found.error), str(found.hint)


def found_by(made: Shop, hint: str) -> list[tuple[int]]:
    """The keys of the rows that a hint finds."""
    query = hint.partition("They are among: ")[2].partition(";")[0]
    assert query.startswith('SELECT * FROM "public"."t" WHERE ')
    found: list[tuple[int]] = made.database.execute(query.replace("SELECT *", "SELECT id", 1))
    return found


def test_a_copy_names_all_columns_and_how_to_find_the_rows(shop: Callable[..., Shop]) -> None:
    changes = ", ".join(f"{name} = {value}" for name, value in BAD.items())
    made = shop(f"{MADE}; UPDATE t SET {changes} WHERE id = 11")
    assert made.state("t") == "failed"
    error, hint = said_of(made)
    assert "public.t cannot be copied" in error
    assert [name for name in BAD if f"column {name} holds a value that cannot be kept" in error] == list(BAD)
    assert "column fine" not in error
    assert "drop the source" not in hint
    assert "ALTER SOURCES … RETRY TABLE public.t;" in hint
    assert not [value for value in ("20000", "0044", "[2:3]", "11") if value in error + hint], "no value of the row"
    assert "2 of 3 tables are copied" in " ".join(made.said)
    assert found_by(made, hint) == [(11,)], "and no other row"
    made.database.execute("DELETE FROM t WHERE id = 11")
    made.home.retry("shop", "t")
    until(lambda: made.state("t") == "live", "the new copy")
    assert made.equal()
    assert "1 of 1 tables are copied" in " ".join(made.said)


@pytest.mark.parametrize("column", BAD)
def test_the_stream_says_the_same(shop: Callable[..., Shop], column: str) -> None:
    made = shop(MADE)
    made.database.execute(f"UPDATE t SET {column} = {BAD[column]} WHERE id = 11")
    until(lambda: made.state("t") == "failed", "the error")
    error, hint = said_of(made)
    assert f"column {column} holds a value that cannot be kept" in error
    assert found_by(made, hint) == [(11,)]


def test_a_copy_that_is_stopped_says_how_far_it_came(
    database: Any, tmp_path: Any, in_process: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the tables that are left, nothing is copied."""
    database.execute("; ".join(f"CREATE TABLE t{n} (id int PRIMARY KEY)" for n in range(12)))
    home, said = Home(tmp_path / "home"), list[str]()
    home.create(database.url, "shop")
    monkeypatch.setattr("penstock.engine.snapshot._SIDE_BY_SIDE", 1)
    with home.run(MemoryTables(), said.append) as running:
        until(lambda: running.copied_tables()[0] > 0, "the first")
    copied = sum(table.state == "live" for table in home.status().sources[0].tables)
    assert f"shop: {copied} of 12 tables are copied" in said
