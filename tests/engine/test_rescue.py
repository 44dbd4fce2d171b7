"""``on unrepresentable = 'rescue'``: values that the type of their column cannot hold are kept as text.

Postgres prints the texts that are expected, in a session with the settings of Penstock. Which values its types cannot
hold is written here, for every family of types.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.engine.shop import Shop

from penstock.errors import DefiniteError, PenstockError
from penstock.home import Home
from penstock.positions import Lsn
from penstock.testing.waiting import until

SESSION = """
SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601';
SET extra_float_digits = 3; SET bytea_output = 'hex'
"""
TYPES = """
CREATE DOMAIN day AS date CHECK (VALUE > '4000-01-01 BC'); CREATE DOMAIN days AS day[]; CREATE DOMAIN amount AS numeric(9, 2);
CREATE TYPE mood AS ENUM ('fine', 'so so', '"');
CREATE TYPE stay AS (since timestamptz, room int, "who is it" text, mood mood);
CREATE TYPE trip AS (stays stay[], seasons datemultirange, price amount, raw bytea, weight float4);
CREATE TYPE lengths AS RANGE (subtype = float8)
"""
VALUES: dict[str, tuple[str, list[str], list[str]]] = {
    "dates": ("date", ["0001-01-01", "9999-12-31"], ["infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"]),
    "stamps": (
        "timestamp",
        ["2026-11-18 17:54:20.000001", "0001-01-01"],
        ["infinity", "-infinity", "0001-12-31 23:59:59.999999 BC", "294276-12-31 23:59:59.999999"],
    ),
    "moments": (
        "timestamptz",
        ["2026-11-18 17:54:20+02", "9999-12-31 23:59:59.999999+00"],
        ["infinity", "-infinity", "4714-11-24 00:00:00+00 BC", "9999-12-31 23:59:59-01"],
    ),
    "amounts": ("numeric(9,2)", ["0", "-1234567.89"], ["NaN"]),
    "day_domains": ("day", ["2026-01-01"], ["infinity", "3999-01-01 BC"]),
    "amount_domains": ("amount", ["12.50"], ["NaN"]),
    "integers": ("int[]", ["{}", "{1,NULL,3}"], ["{{1,2},{3,NULL}}", "[0:2]={1,2,3}", "[-2:-2][5:6]={{7,8}}", "{{{1}}}"]),
    "words": ("text[]", ['{"a b",NULL,""}'], ['{{"a,b","\\"q\\""},{NULL,"NULL"}}', '[2:3]={"back\\\\slash",x}']),
    "date_arrays": ("date[]", ["{2026-01-01}"], ["{2026-01-01,infinity}", "{{-infinity},{NULL}}", "[3:3]={2026-01-01}"]),
    "day_arrays": ("days", ["{2026-01-01}"], ["{infinity,NULL}"]),
    "amount_arrays": ("numeric(6,2)[]", ["{1.50}"], ["{1.50,NaN}", "{{1},{2}}"]),
    "mixed_arrays": ("jsonb[]", ['{"{\\"a\\": 1}"}'], ['{{"{\\"a\\": [1, 2]}"},{"null"}}']),
    "spans": ("daterange", ["[2026-01-01,2026-02-01)", "empty", "(,)"], ["[2026-01-01,infinity)", "[0044-03-15 BC,)"]),
    "stamp_spans": ("tsrange", ["[2026-01-01 10:00,)"], ['[2026-01-01 10:00,infinity]', "[-infinity,infinity)"]),
    "many_spans": ("tstzmultirange", ["{}"], ["{[2026-01-01 10:00+00,2026-01-02 10:00+00),[2026-03-01 10:00+00,infinity]}"]),
    "stays": ("stay", ['("2026-01-01 10:00+00",7,"a ""b""",fine)'], ['(infinity,7,"a, ""b""","so so")', '("0044-03-15 00:00+00 BC",,"",)']),
    "stay_arrays": ("stay[]", ['{"(2026-01-01 10:00+00,7,x,fine)"}'], ['{"(-infinity,7,\\"a b\\",)",NULL}']),
    "trips": ("trip", ["(,,1.5,\\\\x00ff,1.5)"], ['("{""(infinity,1,x,)""}","{[2026-01-01,infinity)}",NaN,"\\\\x00ff",1e-5)']),
    "length_arrays": ("lengths[]", ['{"[1,2)"}'], ['{{"[0.1,1e+20)"},{empty}}']),
}  # fmt: skip
INFINITE_INTERVALS = {
    "waits": ("interval", ["1 year -2 days +03:04:05.6"], ["infinity", "-infinity"]),
    "wait_arrays": ("interval[]", ["{1 day}"], ["{infinity,1 year -2 mons +3 days -04:05:06.789}", "{{0},{-1 us}}"]),
}
"""New in Postgres 17."""


def values(database: Any) -> dict[str, tuple[str, list[str], list[str]]]:
    (version,) = database.execute("SELECT current_setting('server_version_num')::int")[0]
    return {**VALUES, **(INFINITE_INTERVALS if version >= 170_000 else {})}


def insert(database: Any, first: int) -> None:
    """Insert each value that cannot be held, beside one that can; and rows without such values."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        for table, (_, fine, bad) in values(database).items():
            rows = [*((value, fine[0]) for value in bad), *((value, None) for value in fine), (None, bad[0])]
            for number, pair in enumerate(rows, first):
                connection.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)".encode(), (number, *pair))


def expected(database: Any, table: str, kind: str, bad: list[str]) -> dict[int, dict[str, str] | None]:
    """The texts of the rows of a table, by id: Postgres prints them, and says which values equal the bad ones."""
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(SESSION.encode())

        found: dict[int, dict[str, str] | None] = {}
        printed = {text for (text,) in connection.execute(
            f"SELECT format('%%s', v::{kind}) FROM unnest(%s::text[]) v".encode(), (bad,)).fetchall()}  # fmt: skip

        query = f"SELECT id, CASE WHEN v IS DISTINCT FROM NULL THEN format('%s', v) END, CASE WHEN w IS DISTINCT FROM NULL THEN format('%s', w) END FROM {table}"
        for number, v, w in connection.execute(query.encode()).fetchall():
            texts = {name: text for name, text in (("v", v), ("w", w)) if text in printed}
            found[number] = texts or None
        return found


def create_tables(database: Any) -> str:
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind}, w {kind})" for name, (kind, _, _) in values(database).items()]  # fmt: skip
    return "; ".join([TYPES, *tables])


def texts(row: dict[str, Any]) -> dict[str, str] | None:
    return None if row["_rescued"] is None else dict(row["_rescued"])


def check_tables(shop: Shop) -> None:
    """Every table is live, has the expected texts, and copied and streamed rows are alike."""
    assert shop.equal()
    for table, (kind, fine, bad) in values(shop.database).items():
        assert shop.state(table) == "live", table
        rows = {row["id"]: row for row in shop.rows(table)}
        wanted = expected(shop.database, table, kind, bad)
        assert {number: texts(row) for number, row in rows.items()} == wanted, table
        assert sum(each is not None for each in wanted.values()) == 2 * (len(bad) + 1)
        for number, row in rows.items():
            rescued = wanted[number] or {}
            assert all(row[name] is None for name in rescued)
            assert (row["v"] is None) == ("v" in rescued or number % 1000 == len(bad) + len(fine) + 1)
        alike = [{**row, "id": number - 1000} for number, row in rows.items() if number > 1000]
        assert sorted(map(repr, alike)) == sorted(repr(row) for number, row in rows.items() if number < 1000)


def test_rows_with_any_such_value(start_shop: Callable[..., Shop], database: Any) -> None:
    database.execute(create_tables(database))
    insert(database, 1)
    shop = start_shop("SELECT 1", on_unrepresentable="rescue")
    insert(database, 1001)
    check_tables(shop)


def test_rows_sent_as_text(start_shop: Callable[..., Shop], database: Any) -> None:
    database.execute(create_tables(database))
    insert(database, 1)
    shop = start_shop("CREATE TABLE prices (id int PRIMARY KEY, m money)", on_unrepresentable="rescue")
    insert(database, 1001)
    check_tables(shop)


TOASTED = """
CREATE TABLE toasted (id int PRIMARY KEY, big date[], other int[], d date, n int);
ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL;
"""
BIG = "array_fill('{}'::date, ARRAY[2, 900])"
"""An array of two dimensions, which Postgres stores in TOAST: an UPDATE of other columns does not send it."""
LONG = "array_fill(7, ARRAY[{}])"


def wait_applied(shop: Shop, table: str) -> None:
    """Wait until the base table contains all changes so far."""
    upto = Lsn.parse(shop.database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    shop.database.execute(f"INSERT INTO {table} (id) VALUES (0)")
    shop.database.execute(f"DELETE FROM {table} WHERE id = 0")

    def is_applied() -> bool:
        newest = shop.catalog.bases.newest("shop", table, Lsn((1 << 63) - 1))
        return newest is not None and newest.position >= upto

    until(is_applied, "the base table")


def toasted_texts(shop: Shop) -> dict[int, set[str] | None]:
    """The names of the rescued columns of each row; their texts are compared with Postgres by `equal`."""
    assert shop.equal()
    rows = {row["id"]: texts(row) for row in shop.rows("toasted")}
    return {number: None if found is None else set(found) for number, found in rows.items()}


def change_toasted(shop: Shop, apply: Callable[[], None]) -> None:
    execute = shop.database.execute
    inserted = f"INSERT INTO toasted VALUES (2, {BIG.format('2026-01-02')}, {LONG.format('2, 900')}, 'infinity', 0)"
    execute(inserted)
    assert toasted_texts(shop) == {1: {"big", "other"}, 2: {"big", "other", "d"}}
    apply()
    execute("UPDATE toasted SET n = 1")
    assert toasted_texts(shop) == {1: {"big", "other"}, 2: {"big", "other", "d"}}, "the omitted arrays keep their texts"
    execute("UPDATE toasted SET d = '-infinity' WHERE id = 1; UPDATE toasted SET d = '2026-01-01' WHERE id = 2")
    assert toasted_texts(shop) == {1: {"big", "other", "d"}, 2: {"big", "other"}}, "a sent value replaces its text"
    apply()
    execute(f"UPDATE toasted SET big = {BIG.format('2026-01-03')}, other = '{{1}}' WHERE id = 1")
    execute("UPDATE toasted SET n = 2, d = NULL")
    assert toasted_texts(shop) == {1: {"big"}, 2: {"big", "other"}}, "the text of the new value, none of the old ones"
    execute("UPDATE toasted SET id = id + 10, n = 3")
    execute("UPDATE toasted SET id = 2 WHERE id = 11")
    assert toasted_texts(shop) == {2: {"big"}, 12: {"big", "other"}}, "rows that move keep their texts"
    apply()
    execute("UPDATE toasted SET big = NULL WHERE id = 2; UPDATE toasted SET n = 4")
    assert toasted_texts(shop) == {2: None, 12: {"big", "other"}}
    apply()
    assert toasted_texts(shop) == {2: None, 12: {"big", "other"}}


def test_values_that_an_update_omits_keep_their_texts(start_shop: Callable[..., Shop]) -> None:
    first = f"INSERT INTO toasted VALUES (1, {BIG.format('2026-01-01')}, {LONG.format('2, 900')}, NULL, 0)"
    shop = start_shop(TOASTED + first, on_unrepresentable="rescue")
    change_toasted(shop, lambda: wait_applied(shop, "toasted"))


def test_values_that_an_update_omits_in_spark(start_spark_shop: Callable[..., Shop]) -> None:
    first = f"INSERT INTO toasted VALUES (1, {BIG.format('2026-01-01')}, {LONG.format('2, 900')}, NULL, 0)"
    shop = start_spark_shop(TOASTED + first, on_unrepresentable="rescue")
    change_toasted(shop, lambda: wait_applied(shop, "toasted"))
    table = shop.spark.read.format("delta").load(str(shop._path("toasted")))
    assert dict(table.dtypes)["_rescued"] == "map<string,string>"
    shop.plant("toasted", lambda delta: delta.update("id = 12", {"_rescued": "map('big', '{}', 'other', '{}')"}))
    assert not shop.equal(), "verify detects a wrong text"
