"""Wrong rows of live tables are found by verify, reported by key, and repaired under concurrent writes."""

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
from penstock.event_log import Event
from penstock.home import Home
from penstock.layout import catalog_path
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import PATIENCE, until

ROWS = 100
FILL_UNTOUCHED = """
INSERT INTO things SELECT 10000 + n, 'kept', repeat('k', 2500) FROM generate_series(1, 20) n;
INSERT INTO pairs SELECT 'kept', 10000 + n, 'kept', repeat('k', 2500) FROM generate_series(1, 20) n;
CREATE TABLE notes (line text); ALTER TABLE notes REPLICA IDENTITY FULL
"""
"""Rows that the writer does not change, and a keyless table."""


@pytest.fixture
def reported() -> list[str]:
    """What the running home reports."""
    return []


@pytest.fixture
def shop(database: Any, tmp_path: Path, spark: SparkSession, reported: list[str]) -> Iterator[Home]:
    """A running home with the tables of `churn`, live."""
    database.execute(fill(ROWS) + FILL_UNTOUCHED)
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    with home.run(spark, reported.append) as running:
        running.wait_live(PATIENCE)
        yield home


def damage(spark: SparkSession, home: Home, statement: str) -> None:
    """Change a base table without going through Penstock; retry if apply has committed first."""
    path = home.path.absolute() / "lake" / "shop"
    for _ in range(100):
        try:
            spark.sql(statement.format(things=f"delta.`{path}/things`", pairs=f"delta.`{path}/pairs`"))
            return
        except Exception as error:
            if "Concurrent" not in type(error).__name__ and "DELTA_CONCURRENT" not in str(error):
                raise
    pytest.fail("every attempt conflicted with a commit")


def differing(home: Home, spark: SparkSession) -> dict[str, list[dict[str, Any]]]:
    return {v.table: v.differences.keys for v in home.verify(spark, "shop") if v.differences and v.differences.count}


DAMAGE = (
    "DELETE FROM {things} WHERE id = 10007",
    "UPDATE {things} SET body = concat(body, '!') WHERE id = 10008",
    "INSERT INTO {things} VALUES (100000, 'invented', 'row')",
)


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_damage_is_found_and_repaired_under_concurrent_writes(database: Any, shop: Home, spark: SparkSession) -> None:
    with Churn(database.url, ROWS, seed=3, truncates=False, pause=0.2):
        for statement in DAMAGE:
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
        assert (
            shop.repair("shop", "things", keys=[999_999]).rows_read == 0
        )  # other rows change, which the repair did not read
        assert not differing(shop, spark)
    repairs = [(repair.table.name, repair.state, bool(repair.asked_by)) for repair in shop.repairs()]
    assert repairs == [(name, "done", True) for name in ("things", "things", "pairs", "things")]
    answer = shop.sql("SHOW REPAIRS", spark)
    assert isinstance(answer, Answer)
    assert [row[2] for row in answer.rows] == ["1 key", "id = 10001 OR status = 'wrong'", "all", "3 keys"]


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_table_with_a_missing_row_fails_and_recovers_by_repair(database: Any, shop: Home, spark: SparkSession) -> None:
    damage(spark, shop, "DELETE FROM {things} WHERE id = 10003")
    database.execute("UPDATE things SET status = 'touched' WHERE id = 10003")  # the unchanged body is not sent
    until(lambda: _state(shop) == "failed", "the error about the missing row")
    with pytest.raises(DefiniteError, match="requires a row"):
        shop.repair("shop", "things", keys=[10004])
    assert shop.repair("shop", "things", keys=[10003]).rows_changed == 1
    assert _state(shop) == "live"
    database.execute("UPDATE things SET status = 'again' WHERE id > 10000")
    assert not differing(shop, spark)


def _state(home: Home) -> str:
    return next(table.state for table in home.status().sources[0].tables if table.upstream == "public.things")


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_correct_rows_are_not_rewritten(shop: Home, spark: SparkSession, reported: list[str]) -> None:
    before = shop.status().sources[0].tables
    assert shop.repair("shop", "things", keys=[1, [2], {"id": 3}, 999999]).rows_changed == 0
    assert shop.repair("shop", "pairs", keys=[["nobody", 1]]).rows_read == 0
    assert [table.state for table in shop.status().sources[0].tables] == [table.state for table in before]
    answer = shop.sql("REPAIR shop.things WHERE KEY IN (4, 5)", spark)
    assert isinstance(answer, Answer)
    assert "2 rows read upstream, 0 changed" in answer.message
    last = until(lambda: [each for each in reported if "is repaired: 2 rows read" in each], "the report")[0]
    assert isinstance(last, Event)
    assert last.name == "repair_complete"
    assert last.fields.items() >= {"source": "shop", "table": "public.things", "rows": 2, "changed": 0}.items()


@pytest.mark.parametrize(
    ("table", "choice", "message"),
    [
        ("notes", {"keys": [1]}, "keyless table"),
        ("things", {}, "exactly one of"),
        ("things", {"keys": [1], "everything": True}, "exactly one of"),
        ("things", {"keys": [[1, 2]]}, "value for each of: id"),
        ("thing", {"keys": [1]}, "no table"),
    ],
)
def test_invalid_arguments_are_rejected(
    database: Any, tmp_path: Path, table: str, choice: dict[str, Any], message: str
) -> None:
    tables = "CREATE TABLE things (id int PRIMARY KEY); CREATE TABLE notes (line text)"
    database.execute(f"{tables}; ALTER TABLE notes REPLICA IDENTITY FULL")
    home = Home(tmp_path / "home")
    home.create(database.url, "shop")
    catalog = Catalog(catalog_path(home.path))
    for record in catalog.tables("shop"):
        catalog.set_table("shop", record.upstream, TableState.LIVE)
    with pytest.raises(UsageError, match=message):
        home.repair("shop", table, **choice)
    assert home.repairs() == []


@pytest.mark.timeout(1200)
def test_condition_that_postgres_or_spark_rejects_fails_with_the_reason(shop: Home) -> None:
    for where, message in (
        ("nothing = 1", "Postgres rejects this condition"),
        ("id = ANY(ARRAY[1])", "Spark does not accept"),
    ):
        with pytest.raises(DefiniteError, match=message):
            shop.repair("shop", "things", where=where)
    with pytest.raises(DefiniteError, match="invalid input syntax"):
        shop.repair("shop", "things", keys=["x"])
    assert [repair.state for repair in shop.repairs()] == [RepairState.FAILED] * 3
