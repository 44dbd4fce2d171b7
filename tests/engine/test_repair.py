"""Rows of live tables that are wrong are found by verify, named by key, and put right beside a writer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.engine.churn import Churn, fill

from penstock.catalog.repairs import RepairState
from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.sql.answer import Answer
from penstock.testing.waiting import PATIENCE, until

ROWS = 100
FILL_KEPT = """
INSERT INTO things SELECT 10000 + n, 'kept', repeat('k', 2500) FROM generate_series(1, 20) n;
INSERT INTO pairs SELECT 'kept', 10000 + n, 'kept', repeat('k', 2500) FROM generate_series(1, 20) n;
CREATE TABLE notes (line text); ALTER TABLE notes REPLICA IDENTITY FULL
"""
"""Rows that the writer does not touch, and a table without a key."""


@pytest.fixture
def shop(database: Any, tmp_path: Path, spark: SparkSession) -> Iterator[Home]:
    """A home that runs, with the tables of `churn` live in it."""
    database.execute(fill(ROWS) + FILL_KEPT)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with home.run(spark, print) as running:
        running.wait_live(PATIENCE)
        yield home


def damage(spark: SparkSession, home: Home, statement: str) -> None:
    """Change a base table behind our back; try again where apply was quicker."""
    path = home.path.absolute() / "lake" / "shop"
    for _ in range(100):
        try:
            spark.sql(statement.format(things=f"delta.`{path}/things`", pairs=f"delta.`{path}/pairs`"))
            return
        except Exception as error:
            if "Concurrent" not in type(error).__name__ and "DELTA_CONCURRENT" not in str(error):
                raise
    pytest.fail("the table is always being written")


def differing(home: Home, spark: SparkSession) -> dict[str, list[dict[str, Any]]]:
    return {v.table: v.differences.keys for v in home.verify(spark, "shop") if v.differences and v.differences.count}


PLANTED = (
    "DELETE FROM {things} WHERE id = 10007",
    "UPDATE {things} SET body = concat(body, '!') WHERE id = 10008",
    "INSERT INTO {things} VALUES (100000, 'invented', 'row')",
)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_planted_damage_is_found_and_mended_beside_a_writer(database: Any, shop: Home, spark: SparkSession) -> None:
    with Churn(database.url, ROWS, seed=3, truncates=False):
        for statement in PLANTED:
            damage(spark, shop, statement)
        found = differing(shop, spark)
        assert {row["id"] for row in found["public.things"]} == {10007, 10008, 100000}
        done = shop.repair("shop", "things", keys=found["public.things"])
        assert (done.state, done.rows_changed) == (RepairState.DONE, 3)
        assert done.low is not None
        assert done.high is not None
        assert done.low < done.high
        damage(spark, shop, "DELETE FROM {pairs} WHERE n > 10000 AND n % 3 = 0")
        damage(spark, shop, "INSERT INTO {pairs} VALUES ('nobody', -1, 'x', 'y')")
        damage(spark, shop, "UPDATE {things} SET status = 'wrong' WHERE id > 10010")
        everything = shop.repair("shop", "public.pairs", everything=True)
        assert everything.rows_changed == 7 + 1
        some = shop.repair("shop", "public.things", where="id = 10001 OR status = 'wrong'")
        assert (some.rows_read, some.rows_changed) == (11, 10)
        assert shop.repair("shop", "things", keys=[999_999]).rows_read == 0  # others change, which were not read
        assert not differing(shop, spark)
    told = [(repair.table.name, repair.state, bool(repair.asked_by)) for repair in shop.repairs()]
    assert told == [(name, "done", True) for name in ("things", "things", "pairs", "things")]
    answer = shop.sql("SHOW REPAIRS", spark)
    assert isinstance(answer, Answer)
    assert [row[2] for row in answer.rows] == ["1 key", "id = 10001 OR status = 'wrong'", "all", "3 keys"]


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_table_that_lost_a_row_it_needs_fails_and_comes_back_by_a_repair(
    database: Any, shop: Home, spark: SparkSession
) -> None:
    damage(spark, shop, "DELETE FROM {things} WHERE id = 10003")
    database.execute("UPDATE things SET status = 'touched' WHERE id = 10003")  # its body is not sent
    until(lambda: _state(shop) == "failed", "the row to be missed")
    with pytest.raises(DefiniteError, match="needs a row"):
        shop.repair("shop", "things", keys=[10004])
    assert shop.repair("shop", "things", keys=[10003]).rows_changed == 1
    assert _state(shop) == "live"
    database.execute("UPDATE things SET status = 'again' WHERE id > 10000")
    assert not differing(shop, spark)


def _state(home: Home) -> str:
    return next(table.state for table in home.status().sources[0].tables if table.upstream == "public.things")


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_what_is_right_is_not_written_again(shop: Home, spark: SparkSession) -> None:
    before = shop.status().sources[0].tables
    assert shop.repair("shop", "things", keys=[1, [2], {"id": 3}, 999999]).rows_changed == 0
    assert shop.repair("shop", "pairs", keys=[["nobody", 1]]).rows_read == 0
    assert [table.state for table in shop.status().sources[0].tables] == [table.state for table in before]
    answer = shop.sql("REPAIR shop.things WHERE KEY IN (4, 5)", spark)
    assert isinstance(answer, Answer)
    assert "2 rows read upstream, 0 changed here" in answer.told


@pytest.mark.parametrize(
    ("table", "choice", "said"),
    [
        ("notes", {"keys": [1]}, "no key"),
        ("things", {}, "not said"),
        ("things", {"keys": [1], "everything": True}, "said twice"),
        ("things", {"keys": [[1, 2]]}, "value for each of: id"),
        ("thing", {"keys": [1]}, "no table"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(
    database: Any, tmp_path: Path, table: str, choice: dict[str, Any], said: str
) -> None:
    tables = "CREATE TABLE things (id int PRIMARY KEY); CREATE TABLE notes (line text)"
    database.execute(f"{tables}; ALTER TABLE notes REPLICA IDENTITY FULL")
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    catalog = Catalog(catalog_path(home.path))
    for record in catalog.tables("shop"):
        catalog.set_table("shop", record.upstream, TableState.LIVE)
    with pytest.raises(UsageError, match=said):
        home.repair("shop", table, **choice)
    assert home.repairs() == []


@pytest.mark.timeout(1200)
def test_what_postgres_or_spark_do_not_take_fails_with_the_reason(shop: Home) -> None:
    for where, said in (("nothing = 1", "Postgres does not take"), ("id = ANY(ARRAY[1])", "Spark does not take")):
        with pytest.raises(DefiniteError, match=said):
            shop.repair("shop", "things", where=where)
    with pytest.raises(DefiniteError, match="invalid input syntax"):
        shop.repair("shop", "things", keys=["x"])
    assert [repair.state for repair in shop.repairs()] == [RepairState.FAILED] * 3
