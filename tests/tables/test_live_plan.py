"""Query plans of a live table: only required columns and rows of base and log tail are read."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.changelog.chunks import Row, chunk

from penstock.changelog.sqlite.log import SqliteLog
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.spark.images import spark_schema
from penstock.tables.base import DeltaBaseTable
from penstock.tables.base_state import State
from penstock.tables.live_table import live_table

COLUMNS = pa.schema([("id", pa.int64()), ("status", pa.string()), ("note", pa.string()), ("n", pa.int32())])
ORDERS = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
BASE = [(1, "new", "one", 10), (2, "new", "two", 20), (3, "paid", "three", 30)]


@pytest.fixture(scope="module")
def live(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Three rows in the base; the tail updates one, deletes one and inserts one."""
    folder: Path = tmp_path_factory.mktemp("live")
    rows = pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in BASE], COLUMNS)
    base = DeltaBaseTable(spark, str(folder / "base"), ORDERS)
    base.create(spark.createDataFrame(rows, spark_schema(COLUMNS)).coalesce(1), Lsn(10))
    log = SqliteLog(folder / "log.db")
    log.create(Lsn(10))
    writer = log.writer()
    version = writer.define(ORDERS, Lsn(10))
    images = [
        Row(20, 0, Image.UPDATED, (2, "paid", "new two", 21)),
        Row(20, 1, Image.DELETED_KEY, (3, None, None, None)),
        Row(20, 2, Image.INSERTED, (4, "new", "four", 40)),
    ]
    writer.publish([chunk(ORDERS, images, version)], Lsn(20), committed_at=20)
    writer.close()
    return live_table(spark, log, folder / "base", State(0, Lsn(10), ORDERS), ORDERS, Lsn(20))


@pytest.fixture
def compiled(spark: SparkSession) -> Iterator[None]:
    """Compile queries, as for users; the fast tier interprets them."""
    settings = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    before = {name: spark.conf.get(name) or default for name, default in settings.items()}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def test_only_required_columns_are_read(live: DataFrame) -> None:
    query = live.groupBy("status").agg(F.sum("n"))
    text = plan(query)
    assert re.findall(r"ReadSchema: (.*)", text) == ["struct<id:bigint,status:string,n:int>"]
    assert "note" not in text
    assert sorted(map(tuple, query.collect())) == [("new", 50), ("paid", 21)]


@pytest.mark.parametrize(("key", "found"), [(1, ["one"]), (2, ["new two"]), (3, []), (4, ["four"])])
def test_key_is_looked_up_in_base_and_tail(live: DataFrame, key: int, found: list[str]) -> None:
    query = live.filter(F.col("id") == key).select("note")
    text = plan(query)
    assert f"EqualTo(id,{key})" in text, "the filter is pushed down to Parquet"
    assert [row["note"] for row in query.collect()] == found
    tail = [node for node in text.split("\n\n") if "LocalTableScan" in node.partition("\n")[0]]
    assert all("Filter" not in node for node in tail), "the tail is filtered during planning"


def test_query_is_one_compiled_stage(live: DataFrame, compiled: None) -> None:
    """Rows of the base are not copied one by one into the union."""
    assert re.search(r"^\s*\+- \* Union", plan(live.groupBy("status").agg(F.sum("n"))), re.MULTILINE)


def plan(frame: DataFrame) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain("formatted")
    return text.getvalue()
