"""Schemas, tables and columns with names that mean something to Penstock, to Spark or to a file system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.shop import Shop

from penstock.catalog.store import TableRecord
from penstock.errors import UsageError
from penstock.home import Home, check_target
from penstock.positions import Lsn
from penstock.testing.waiting import until

TABLES = [
    ("public", "_delta_log"),
    ("public", "_SUCCESS"),
    ("public", ".hidden"),
    ("public", ".."),
    ("public", "a/b"),
    ("public", "50%"),
    ("public", "year=2024"),
    ("public", "long" * 15),
    ("my.schema", "t"),
    ("my", "schema.t"),
    ("public", "keyless"),
]
OURS = ("_lsn", "_op", "_ordinal", "_image", "_gone", "_unchanged", "_from", "_count", "row", "source", "target")
"""Columns that have, or had, a meaning in Penstock."""
CASES = """
CREATE TABLE "Upper" (id int PRIMARY KEY); CREATE TABLE "UPPER" (id int PRIMARY KEY);
CREATE TABLE upper (id int PRIMARY KEY)
"""


MERGED = [("public", "_delta_log"), ("public", ".."), ("my.schema", "t"), ("public", "keyless")]
"""A table of each way to merge, and of the names that broke it."""


def _setup(tables: Sequence[tuple[str, str]]) -> str:
    columns = ", ".join(f"{name} text" for name in OURS)
    statements = ['CREATE SCHEMA "my.schema"; CREATE SCHEMA my']
    for schema, name in tables:
        key = "id int" if name == "keyless" else "id int PRIMARY KEY"
        table = f'"{schema}"."{name}"'
        statements.append(
            f"CREATE TABLE {table} ({key}, {columns}); ALTER TABLE {table} ALTER row SET STORAGE EXTERNAL"
        )
        statements.append(_insert(table, 1))
    return "; ".join([*statements, "ALTER TABLE keyless REPLICA IDENTITY FULL"])


def _insert(table: str, number: int) -> str:
    values = ", ".join(f"'{number} in {name}'" for name in OURS[:-3])
    return f"INSERT INTO {table} VALUES ({number}, {values}, repeat('x{number}', 5000), 's', 't')"


def _change(shop: Shop, tables: Sequence[tuple[str, str]]) -> None:
    with shop.database.connect() as connection:
        for schema, name in tables:
            table = f'"{schema}"."{name}"'
            connection.execute(_insert(table, 2))
            connection.execute(f"UPDATE {table} SET _lsn = 'changed', _gone = NULL WHERE id = 1")
            connection.execute(f"{_insert(table, 3)}; DELETE FROM {table} WHERE id = 3")


@pytest.mark.deep
def test_tables_with_odd_names_are_merged_in_delta(start_spark_shop: Callable[..., Shop]) -> None:
    shop = start_spark_shop(_setup(MERGED))
    _change(shop, MERGED)
    records = shop.catalog.tables("shop")
    assert {(record.upstream.schema, record.upstream.name) for record in records} == set(MERGED)
    until(lambda: all(_merged(shop, record) for record in records), "all tables to be merged")
    assert {folder.name[0] for folder in (shop.home.path / "lake" / "shop").iterdir()}.isdisjoint("_.")
    read = shop.live().sql("SELECT id, _lsn, _gone, length(row) AS size FROM shop._delta_log ORDER BY id").collect()
    assert [tuple(row) for row in read] == [(1, "changed", None, 10000), (2, "2 in _lsn", "2 in _gone", 10000)]
    changes = shop.spark.read.format("penstock").option("home", str(shop.home.path)).option("source", "shop")
    found = changes.option("table", '"my.schema".t').load().collect()
    assert {row["after"]["_op"] for row in found if row["after"]} >= {"2 in _op"}
    assert shop.equal()


def test_tables_with_odd_names_are_captured_dropped_and_retried(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop(_setup(TABLES))
    _change(shop, TABLES)
    records = shop.catalog.tables("shop")
    assert {(record.upstream.schema, record.upstream.name) for record in records} == set(TABLES)
    assert shop.equal()
    shop.home.sql('ALTER SOURCES shop DROP TABLE "my.schema".t; ALTER SOURCES shop DROP TABLE public._delta_log')
    until(lambda: len(shop.catalog.tables("shop")) == len(TABLES) - 2, "the drop")
    shop.home.sql('ALTER SOURCES shop RETRY TABLE my."schema.t"; ALTER SOURCES shop ADD TABLE "my.schema".t')
    until(lambda: (_state(shop, "my"), _state(shop, "my.schema")) == ("live", "live"), "the new snapshots")
    assert shop.equal()


def _merged(shop: Shop, record: TableRecord) -> bool:
    last = shop.catalog.bases.newest("shop", record.local, Lsn.LAST)
    return last is not None and last.version > 0


def _state(shop: Shop, schema: str) -> str:
    states = [record.state.value for record in shop.catalog.tables("shop") if record.upstream.schema == schema]
    return states[0] if states else ""


def test_names_that_differ_in_case_are_announced(database: Any, tmp_path: Path) -> None:
    database.execute(CASES)
    report = check_target(tmp_path / "home", database.url)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    try:
        local = {str(table.upstream): f"shop.{table.local}" for table in home._catalog.tables("shop")}
        assert local == {
            "public.UPPER": "shop.public_UPPER",
            "public.Upper": "shop.public_Upper_2",
            "public.upper": "shop.public_upper_3",
        }
        checked = home.check("shop")
        assert {table.name: table.live for table in checked.tables} == local
        before = {table.name: table.live.partition(".")[2] for table in report.tables}
        assert {name: f"shop.{live}" for name, live in before.items()} == local, "check names tables as create does"
        announced = {found.object: found.why for found in checked.findings if found.why.startswith("found as")}
        assert announced == {name: f"found as {live}" for name, live in local.items()}
        assert {table.upstream: table.name for table in home.status().sources[0].tables} == local
        with pytest.raises(UsageError, match="no table upper") as caught:
            home.retry("shop", "upper")
        assert "public.Upper is found as public_Upper_2" in caught.value.hint
    finally:
        home.drop("shop")


def test_error_for_an_unknown_table_names_its_live_tables(start_spark_shop: Callable[..., Shop]) -> None:
    live = start_spark_shop(CASES).live()
    known = "public.UPPER is found as shop.public_UPPER, public.Upper is found as shop.public_Upper_2"
    with pytest.raises(UsageError, match=r"there is no table shop\.upper") as caught:
        live.table("shop.upper")
    assert known in caught.value.hint
    with pytest.raises(UsageError, match=r"there is no table shop\.Upper") as caught:
        live.sql("SELECT * FROM shop.Upper")
    assert known in caught.value.hint
