"""Live tables by name in Spark sessions: registered views, and the names of a running home, as of each query.

Most tests use views whose tables contain one row, the number of the view: it shows which view a query has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from tests.engine.shop import Shop

from penstock.errors import TransientError, UsageError
from penstock.live_names import AS_OF, LiveNames, register_names
from penstock.positions import Lsn
from penstock.testing.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

COLUMNS = StructType().add("view", "long")
BOTH = "SELECT a.view, b.view, (SELECT max(view) FROM names.a) FROM names.a JOIN names.b ON true"


@dataclass
class Numbered:
    """A view whose tables contain its number."""

    spark: SparkSession
    number: int
    known: list[str] = field(default_factory=lambda: ["names.a", "names.b", "names.failed", "names.not-a-name"])
    declared: StructType = field(default_factory=lambda: COLUMNS)

    @property
    def positions(self) -> dict[str, Lsn]:
        return {"names": Lsn(self.number)}

    def tables(self) -> list[str]:
        return self.known

    def columns(self, name: str) -> StructType:
        return self.declared

    def table(self, name: str) -> DataFrame:
        if name == "names.failed":
            message = "the initial snapshot of public.failed is not complete"
            raise TransientError(message, "Run `penstock status`.")
        rows = self.spark.range(self.number, self.number + 1).toDF("view")
        for added in self.declared.fieldNames()[1:]:
            rows = rows.withColumn(added, rows.view)
        return rows


class NumberedViews:
    """Opens views with increasing numbers."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.last = Numbered(spark, 0)
        self.as_of: list[str | None] = []

    def open(self, as_of: str | None) -> Numbered:
        self.as_of.append(as_of)
        self.last = Numbered(self.spark, self.last.number + 1, self.last.known, self.last.declared)
        return self.last


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A new session of the application, without names in its catalog."""
    yield spark.newSession()
    spark.sql("DROP DATABASE IF EXISTS names CASCADE")


def read(spark: SparkSession, query: str) -> tuple[Any, ...]:
    (row,) = spark.sql(query).collect()
    return tuple(row)


def listed_tables(session: SparkSession) -> list[str]:
    """The tables of the source in Spark's catalog, with compiled code: Spark cannot list tables by interpretation."""
    active: Any = session._jvm.org.apache.spark.sql.SparkSession  # type: ignore[union-attr]
    before = active.getActiveSession()
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    active.setActiveSession(session._jsparkSession)  # whose settings count
    try:
        return [table.name for table in session.catalog.listTables("names")]
    finally:
        if before.isDefined():
            active.setActiveSession(before.get())


def test_a_registered_view_is_read_until_another_is_registered(session: SparkSession, spark: SparkSession) -> None:
    register_names(session, Numbered(spark, 7))
    assert listed_tables(session) == ["a", "b", "failed"]
    assert session.table("names.a").columns == ["view"]
    assert read(session, BOTH) == read(session, BOTH) == (7, 7, 7)
    register_names(session, Numbered(spark, 8))
    assert read(session, BOTH) == (8, 8, 8)
    assert read(session, "SELECT names.a.view FROM names.a JOIN names.a other USING (view)") == (8,)
    assert read(session, "SELECT * FROM penstock_table('names.not-a-name')") == (8,)
    with pytest.raises(PySparkException, match="penstock_table"):
        spark.newSession().table("names.a")


def test_every_query_of_a_running_home_reads_one_view(session: SparkSession) -> None:
    """Each view that is opened has another number: a query that opened two would return different numbers."""
    views = NumberedViews(session)
    names = LiveNames(session, views.open)
    names.declare(views.last)
    client = session.newSession()
    for query in (BOTH, BOTH, f"WITH c AS ({BOTH}) SELECT c.*, d.view FROM c JOIN names.b d", BOTH):
        assert set(read(client, query)) == {views.last.number}
    client.conf.set(AS_OF, "0/10")
    read(client, BOTH)
    assert (views.as_of[-1], views.as_of.count("0/10")) == ("0/10", 1)
    read(session, BOTH)
    assert views.as_of[-1] is None, "the setting belongs to one session"


def test_views_in_the_catalog_follow_the_tables(session: SparkSession) -> None:
    views = NumberedViews(session)
    names = LiveNames(session, views.open)
    names.declare(views.last)
    client = session.newSession()
    client.sql("DROP VIEW names.a")
    views.last.known = ["names.a", "names.new"]
    views.last.declared = StructType().add("view", "long").add("more", "long")
    names.declare(views.last)
    assert listed_tables(client) == ["a", "new"]
    assert client.sql("DESCRIBE names.a").count() == 2
    views.last.declared = COLUMNS
    assert client.table("names.a").columns == ["view"], "a query has the columns of its view, not those of the catalog"


def test_an_error_reaches_the_client_with_its_hint(session: SparkSession, spark: SparkSession) -> None:
    register_names(session, Numbered(spark, 1))
    with pytest.raises(PySparkException, match=r"public\.failed is not complete\nhint: Run `penstock status`\."):
        session.table("names.failed")
    with pytest.raises(PySparkException, match="requires one argument"):
        session.sql("SELECT * FROM penstock_table()")


def test_a_table_of_the_same_name_is_not_replaced(session: SparkSession, spark: SparkSession) -> None:
    session.sql("CREATE DATABASE names")
    session.sql("CREATE VIEW names.mine AS SELECT 1 AS one")
    with pytest.raises(UsageError, match=r"already has another table or view names\.mine"):
        register_names(session, Numbered(spark, 1, ["names.mine"]))
    assert read(session, "SELECT * FROM names.mine") == (1,)


WRITES = (
    "INSERT INTO shop.items VALUES (2, 'b')",
    "INSERT OVERWRITE shop.items VALUES (2, 'b')",
    "UPDATE shop.items SET body = 'x'",
    "DELETE FROM shop.items",
    "MERGE INTO shop.items i USING (SELECT 1 AS id) n ON i.id = n.id WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE shop.items",
    "ALTER TABLE shop.items ADD COLUMN note string",
)


@pytest.mark.slow("a running home in Spark")
def test_names_of_real_tables_can_be_read_and_not_written(start_spark_shop: Callable[..., Shop]) -> None:
    shop = start_spark_shop("CREATE TABLE items (id int PRIMARY KEY, body text); INSERT INTO items VALUES (1, 'a')")
    spark = shop.spark.newSession()
    live = shop.home.live(spark).register()
    for statement in WRITES:
        with pytest.raises((PySparkException, Py4JError)):
            spark.sql(statement)
    shop.database.execute("UPDATE items SET body = 'A'; INSERT INTO items VALUES (2, 'b')")
    at = Lsn.parse(shop.database.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
    later = shop.home.live(spark, as_of=at, wait=PATIENCE)
    assert [tuple(row) for row in spark.table("shop.items").collect()] == [(1, "a")], "it reads the registered view"
    later.register()
    assert sorted(map(tuple, spark.table("shop.items").collect())) == [(1, "A"), (2, "b")]
    assert live.table("public.items").count() == 1, "the schema of the only source"
    shop.spark.sql("DROP DATABASE shop CASCADE")
