"""``on unrepresentable = 'rescue'``: values that the type of their column cannot hold are kept as text.

Postgres prints the texts that are expected, in a session with the settings of Penstock. Which values its types cannot
hold is written here, for every family of types.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.engine.shop import Shop

from penstock.errors import DefiniteError
from penstock.home import Home
from penstock.positions import Lsn
from penstock.testing.waiting import until

SESSION = """
SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'iso_8601';
SET extra_float_digits = 3; SET bytea_output = 'hex'
"""
TYPES = """
CREATE DOMAIN day AS date CHECK (VALUE > '4000-01-01 BC'); CREATE DOMAIN days AS day[];
CREATE DOMAIN amount AS numeric(9, 2);
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
    "integers": (
        "int[]",
        ["{}", "{1,NULL,3}"],
        ["{{1,2},{3,NULL}}", "[0:2]={1,2,3}", "[-2:-2][5:6]={{7,8}}", "{{{1}}}"],
    ),
    "words": ("text[]", ['{"a b",NULL,""}'], ['{{"a,b","\\"q\\""},{NULL,"NULL"}}', '[2:3]={"back\\\\slash",x}']),
    "date_arrays": (
        "date[]",
        ["{2026-01-01}"],
        ["{2026-01-01,infinity}", "{{-infinity},{NULL}}", "[3:3]={2026-01-01}"],
    ),
    "day_arrays": ("days", ["{2026-01-01}"], ["{infinity,NULL}"]),
    "amount_arrays": ("numeric(6,2)[]", ["{1.50}"], ["{1.50,NaN}", "{{1},{2}}"]),
    "mixed_arrays": ("jsonb[]", ['{"{\\"a\\": 1}"}'], ['{{"{\\"a\\": [1, 2]}"},{"null"}}']),
    "spans": ("daterange", ["[2026-01-01,2026-02-01)", "empty", "(,)"], ["[2026-01-01,infinity)", "[0044-03-15 BC,)"]),
    "stamp_spans": ("tsrange", ["[2026-01-01 10:00,)"], ["[2026-01-01 10:00,infinity]", "[-infinity,infinity)"]),
    "many_spans": (
        "tstzmultirange",
        ["{}"],
        ["{[2026-01-01 10:00+00,2026-01-02 10:00+00),[2026-03-01 10:00+00,infinity]}"],
    ),
    "stays": (
        "stay",
        ['("2026-01-01 10:00+00",7,"a ""b""",fine)'],
        ['(infinity,7,"a, ""b""","so so")', '("0044-03-15 00:00+00 BC",,"",)'],
    ),
    "stay_arrays": ("stay[]", ['{"(2026-01-01 10:00+00,7,x,fine)"}'], ['{"(-infinity,7,\\"a b\\",)",NULL}']),
    "trips": (
        "trip",
        ["(,,1.5,\\\\x00ff,1.5)"],
        ['("{""(infinity,1,x,)""}","{[2026-01-01,infinity)}",NaN,"\\\\x00ff",1e-5)'],
    ),
    "length_arrays": ("lengths[]", ['{"[1,2)"}'], ['{{"[0.1,1e+20)"},{empty}}']),
}
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
    """The texts of the rows of a table, by id: Postgres prints all values, and those that cannot be held."""
    printed = "CASE WHEN {0} IS DISTINCT FROM NULL THEN format('%s', {0}) END"
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(SESSION.encode())
        query = f"SELECT format('%%s', v::{kind}) FROM unnest(%s::text[]) v"
        unheld = {text for (text,) in connection.execute(query.encode(), (bad,)).fetchall()}
        query = f"SELECT id, {printed.format('v')}, {printed.format('w')} FROM {table}"
        rows = connection.execute(query.encode()).fetchall()
    return {n: {name: text for name, text in (("v", v), ("w", w)) if text in unheld} or None for n, v, w in rows}


def create_tables(database: Any) -> str:
    kinds = {name: kind for name, (kind, _, _) in values(database).items()}
    tables = [f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind}, w {kind})" for name, kind in kinds.items()]
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


FIRST = f"INSERT INTO toasted VALUES (1, {BIG.format('2026-01-01')}, {LONG.format('2, 900')}, NULL, 0)"


def test_values_that_an_update_omits_keep_their_texts(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(TOASTED + FIRST, on_unrepresentable="rescue")
    change_toasted(shop, lambda: wait_applied(shop, "toasted"))


def test_keyless_table(start_shop: Callable[..., Shop]) -> None:
    """The texts are part of the row, and so of its identity; the old row has those of omitted values."""
    setup = f"{TOASTED}; ALTER TABLE toasted DROP CONSTRAINT toasted_pkey; ALTER TABLE toasted REPLICA IDENTITY FULL;"
    shop = start_shop(f"{setup} {FIRST}; {FIRST}", on_unrepresentable="rescue")
    shop.database.execute("UPDATE toasted SET n = 1, d = 'infinity' WHERE ctid = (SELECT min(ctid) FROM toasted)")
    shop.database.execute("UPDATE toasted SET n = 2")
    assert shop.equal()
    assert sorted(sorted(texts(row) or {}) for row in shop.rows("toasted")) == [["big", "d", "other"], ["big", "other"]]
    shop.database.execute("DELETE FROM toasted WHERE d = 'infinity'")
    assert shop.equal()
    assert [set(texts(row) or {}) for row in shop.rows("toasted")] == [{"big", "other"}]


SMALL = """
CREATE TABLE t (id int PRIMARY KEY, d date NOT NULL, a int[], note text);
INSERT INTO t VALUES (1, 'infinity', '{1}', 'x'), (2, '2026-01-01', '{{1}}', 'y')
"""


def small_texts(shop: Shop) -> dict[int, dict[str, str] | None]:
    assert shop.equal()
    return {row["id"]: texts(row) for row in shop.rows("t")}


def test_option_is_changed_while_the_source_runs(start_shop: Callable[..., Shop]) -> None:
    """All tables are captured again, as with other text columns; also one that stopped at such a value."""
    shop = start_shop(SMALL.replace("infinity", "2026-02-02").replace("{{1}}", "{2}"))
    assert shop.columns("t") == ["id", "d", "a", "note"], "by default, the columns are those of the table"
    shop.database.execute("UPDATE t SET d = 'infinity' WHERE id = 1")
    until(lambda: shop.state("t") == "failed", "the value that a date cannot hold")
    (source,) = shop.home.status().sources
    assert "`on unrepresentable` = 'rescue'" in str(source.tables[0].hint)
    shop.home.sql("ALTER SOURCE shop SET (on unrepresentable = 'rescue')")
    until(lambda: shop.state("t") == "live" and shop.columns("t")[-1] == "_rescued", "the new snapshot")
    assert small_texts(shop) == {1: {"d": "infinity"}, 2: None}
    shop.database.execute("UPDATE t SET a = '[0:0]={7}', d = '0001-01-01 BC' WHERE id = 2")
    assert small_texts(shop) == {1: {"d": "infinity"}, 2: {"a": "[0:0]={7}", "d": "0001-01-01 BC"}}
    assert "on unrepresentable = 'rescue'" in shop.home.statement("shop")
    shop.database.execute("UPDATE t SET d = '2026-01-01', a = NULL")
    shop.home.sql("ALTER SOURCE shop SET (on unrepresentable = 'stop')")
    until(lambda: shop.state("t") == "live" and "_rescued" not in shop.columns("t"), "the next snapshot")
    assert shop.equal()


def test_key_cannot_be_rescued(start_shop: Callable[..., Shop]) -> None:
    setup = "CREATE TABLE t (d date PRIMARY KEY, e date); INSERT INTO t VALUES ('2026-01-01', 'infinity')"
    shop = start_shop(setup, on_unrepresentable="rescue")
    assert [texts(row) for row in shop.rows("t")] == [{"e": "infinity"}]
    shop.database.execute("INSERT INTO t VALUES ('infinity')")
    until(lambda: shop.state("t") == "failed", "the error")
    (source,) = shop.home.status().sources
    assert "column d holds a value that cannot be stored: infinity" in str(source.tables[0].error)
    assert "Values of key columns (d) cannot be rescued" in str(source.tables[0].hint)
    assert "text columns" in str(source.tables[0].hint)


def test_columns_are_added(start_shop: Callable[..., Shop]) -> None:
    """They follow the column with the texts, which has their texts, too."""
    shop = start_shop(SMALL, on_unrepresentable="rescue")
    shop.database.execute("ALTER TABLE t ADD e date, ADD big int[] DEFAULT '{5}'")
    shop.database.execute("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    shop.database.execute(f"INSERT INTO t VALUES (3, '2026-01-01', NULL, '', '-infinity', {LONG.format('2, 900')})")
    shop.database.execute("UPDATE t SET note = 'z'")
    found = small_texts(shop)
    assert shop.columns("t") == ["id", "d", "a", "note", "_rescued", "e", "big"]
    assert {number: set(texts or {}) for number, texts in found.items()} == {1: {"d"}, 2: {"a"}, 3: {"e", "big"}}
    wait_applied_row(shop)
    assert small_texts(shop) == found
    shop.database.execute("ALTER TABLE t ADD f date DEFAULT 'infinity'; UPDATE t SET note = 'w'")
    until(lambda: shop.state("t") == "failed", "older rows have a value that cannot be held, and no text")
    shop.home.retry("shop", "t")
    until(lambda: shop.state("t") == "live", "the new snapshot")
    assert all((texts or {})["f"] == "infinity" for texts in small_texts(shop).values())


def wait_applied_row(shop: Shop) -> None:
    upto = Lsn.parse(shop.database.execute("SELECT pg_current_wal_insert_lsn()::text")[0][0])
    shop.database.execute("UPDATE t SET note = 'a'")

    def is_applied() -> bool:
        newest = shop.catalog.bases.newest("shop", "t", Lsn((1 << 63) - 1))
        return newest is not None and newest.position >= upto

    until(is_applied, "the base table")


def test_verify_detects_a_wrong_text(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(SMALL, on_unrepresentable="rescue")
    assert shop.equal()

    def other_text(table: pa.Table) -> pa.Table:
        place = table.column_names.index("_rescued")
        changed = [each and [(name, "-infinity") for name, _ in each] for each in table.column(place).to_pylist()]
        return table.set_column(place, table.field(place), pa.array(changed, table.field(place).type))

    shop.tamper("t", other_text)
    assert not shop.equal()


def test_column_of_that_name(database: Any, tmp_path: Path) -> None:
    """A table with its own column of that name is not captured, and the others are; without the option, it is."""
    database.execute('CREATE TABLE t (id int PRIMARY KEY, "_Rescued" text); CREATE TABLE u (id int PRIMARY KEY)')
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with pytest.raises(
        DefiniteError, match=r"public\.t cannot be captured with these options: it has a column"
    ) as caught:
        home.sql("ALTER SOURCE shop SET (on unrepresentable = 'rescue')")
    assert "Rename it, exclude it (exclude columns = public.t._Rescued)" in caught.value.hint
    home.drop("shop")
    home.create(database.url, "shop", on_unrepresentable="rescue")
    tables = {table.upstream: table for table in home.status().sources[0].tables}
    assert tables["public.u"].error is None
    assert "it has a column _Rescued" in str(tables["public.t"].error)
    home.drop("shop")
    home.create(database.url, "shop", on_unrepresentable="rescue", exclude_columns=("public.t._Rescued",))
    assert all(table.error is None for table in home.status().sources[0].tables)
    home.drop("shop")


@pytest.mark.slow("two snapshots, verify and repair in Spark")
def test_tables_in_spark(start_spark_shop: Callable[..., Shop]) -> None:
    """The initial snapshot, changes, merge, verify, repair and the data source, with Spark."""
    shop = start_spark_shop(f"{SMALL}; {TOASTED}; {FIRST}", on_unrepresentable="rescue")
    shop.database.execute(
        "INSERT INTO t VALUES (3, '-infinity', '[2:2]={7}', 'z'); UPDATE toasted SET n = 1, d = 'infinity'"
    )
    expected = {1: {"d": "infinity"}, 2: {"a": "{{1}}"}, 3: {"d": "-infinity", "a": "[2:2]={7}"}}
    assert small_texts(shop) == expected
    assert [set(texts(row) or {}) for row in shop.rows("toasted")] == [{"big", "other", "d"}]
    wait_applied(shop, "toasted")
    base = shop.spark.read.format("delta").load(str(shop._path("toasted")))
    assert dict(base.dtypes)["_rescued"] == "map<string,string>"
    assert [set(row._rescued) for row in base.filter("id = 1").collect()] == [{"big", "other", "d"}]
    reader = shop.spark.read.format("penstock").options(home=str(shop.home.path), source="shop", table="public.t")
    changed = reader.load().select("after._rescued").collect()
    assert {"d": "-infinity", "a": "[2:2]={7}"} in [row[0] for row in changed]
    wait_applied_row(shop)
    shop.plant("t", lambda delta: delta.update("id = 1", {"_rescued": "map('d', '-infinity')"}))
    assert not shop.equal(), "verify detects a wrong text"
    shop.home.repair("shop", "t", where="id = 1")
    assert small_texts(shop) == expected


@pytest.mark.slow("an incremental snapshot in Spark")
def test_incremental_snapshot(start_spark_shop: Callable[..., Shop]) -> None:
    options = {"on_unrepresentable": "rescue", "snapshot": "chunked", "chunk_rows": 1}
    shop = start_spark_shop(SMALL, **options)
    shop.database.execute("UPDATE t SET note = 'z', d = '-infinity' WHERE id = 2")
    assert small_texts(shop) == {1: {"d": "infinity"}, 2: {"a": "{{1}}", "d": "-infinity"}}
