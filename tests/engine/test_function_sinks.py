"""Sinks into a function, of a running home: what the function is called with, and what the status shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from tests.engine.shop import Shop

from penstock.catalog.states import SinkState
from penstock.changelog.interface import ChangeLogReader
from penstock.errors import DefiniteError, UsageError
from penstock.home import Home
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sinks.call_record import calls_path
from penstock.sinks.function.registration import unregister
from penstock.sql.show_statements import Answer
from penstock.testing.waiting import until

SETUP = """
CREATE TABLE orders (id int PRIMARY KEY, name text, notes text);
ALTER TABLE orders ALTER notes SET STORAGE EXTERNAL;
INSERT INTO orders SELECT n, 'old', repeat('x', 4000) FROM generate_series(1, 5) n;
"""
TYPES = """
CREATE TABLE orders (id int PRIMARY KEY, name text, a numeric(20, 4), t timestamptz, n timestamp, d date, b bytea,
  i interval, arr int[], u uuid, j jsonb, f float8, tm time, en numeric)
"""
VALUES = (
    "1.5, '2026-11-18 03:00Z', '2026-11-18 03:00', '1900-01-01', 'abc', '1 day', '{1,NULL}',"
    " '6f0e0c5c-0000-4000-8000-000000000001', '{}', 2.5, '10:00', 1e40"
)


class Recorder:
    """A function that notes its calls, and fails as often as a test requires."""

    def __init__(self) -> None:
        self.calls: list[tuple[Lsn | None, Lsn, list[dict[str, Any]]]] = []
        self.table: dict[int, str] = {}
        self.failures = 0
        self.columns: list[str] = []

    def __call__(self, df: DataFrame, first: Lsn | None, last: Lsn) -> None:
        rows = df.toArrow().to_pylist()
        self.columns = df.columns
        self.calls.append((first, last, rows))
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the target\nis down")
        for row in sorted(rows, key=lambda row: (Lsn.parse(row["_lsn"]), row["_ordinal"] or 0)):
            if row["before"] is not None:
                self.table.pop(row["before"]["id"])
            if row["after"] is not None:
                self.table[row["after"]["id"]] = row["after"]["name"]

    def ops(self) -> list[list[tuple[str, Any]]]:
        return [[(row["_op"], (row["after"] or row["before"])["id"]) for row in rows] for _, _, rows in self.calls]


def upstream(shop: Shop) -> dict[int, str]:
    return dict(shop.database.execute("SELECT id, name FROM orders"))


def error_of(shop: Shop, sink: str = "out") -> str | None:
    return next(found.error for found in shop.home.status().sinks if found.name == sink)


def test_rows_then_changes(start_spark_shop: Callable[..., Shop]) -> None:
    shop, found = start_spark_shop(SETUP), Recorder()
    with shop.writing("INSERT INTO orders VALUES (%s, 'new', NULL)"):
        shop.home.sink("out", "shop.orders", found)
        until(lambda: len(found.calls) >= 3, "calls")
    until(lambda: found.table == upstream(shop), "the changes")
    first, last, rows = found.calls[0]
    assert first is None
    assert {row["_op"] for row in rows} == {"snapshot"}
    assert {row["_lsn"] for row in rows} == {str(last)}
    ranges = [(first, last) for first, last, _ in found.calls]
    assert [first for first, _ in ranges[1:]] == [last for _, last in ranges[:-1]], "contiguous"
    for first, last, rows in found.calls[1:]:
        assert first is not None
        assert all(first < Lsn.parse(row["_lsn"]) <= last for row in rows)
    stream = shop.spark.readStream.format("penstock").option("home", str(shop.home.path)).option("source", "shop")
    assert stream.option("table", "public.orders").load().columns == found.columns

    shop.database.execute("UPDATE orders SET name = 'changed' WHERE id <= 3")
    shop.database.execute("DELETE FROM orders WHERE id = 4")
    until(lambda: found.table == upstream(shop), "the changes")
    changed = [row["after"] for _, _, rows in found.calls for row in rows if row["_op"] == "update"]
    assert [row["notes"] for row in changed] == ["x" * 4000] * 3, "values that Postgres omits are filled in"
    assert all(row["_unchanged"] is None for _, _, rows in found.calls for row in rows)
    shown = until(lambda: [s for s in shop.home.status().sinks if s.behind == 0], "the report")[0]
    assert (shown.into, shown.format, shown.error) == (
        "function tests.engine.test_function_sinks:Recorder",
        "dataframe",
        None,
    )
    assert shown.messages and shown.lag_ms
    with closing(shop.catalog.log("shop").reader()) as reader:
        assert "sink out" in [lease.reader for lease in reader.leases()]
    shop.home.drop_sink("out")
    until(lambda: shop.catalog.sinks.get("out") is None, "the drop")
    assert not calls_path(shop.home.path, "out").exists()
    with closing(shop.catalog.log("shop").reader()) as reader:
        assert "sink out" not in [lease.reader for lease in reader.leases()]


def test_failing_function(start_spark_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.sink_runner.LONGEST_TRANSIENT_PAUSE", 0.2)
    shop, good, bad = start_spark_shop(SETUP), Recorder(), Recorder()
    bad.failures = 2
    shop.home.sink("out", "shop.orders", bad)
    shop.home.sink("other", "shop.orders", good, snapshot=False)
    until(lambda: len(bad.calls) == 3, "two failures, and a success")
    assert bad.calls[0] == bad.calls[1] == bad.calls[2]
    until(lambda: bool(shop.catalog.sinks.get("other").started), "the other sink")  # type: ignore[union-attr]
    bad.failures = 10**6
    shop.database.execute("INSERT INTO orders VALUES (6, 'secret of row 6', NULL)")
    until(lambda: len(bad.calls) >= 5, "two failures")
    shop.database.execute("INSERT INTO orders VALUES (7, 'b', NULL)")
    until(
        lambda: [op for ops in good.ops() for op in ops] == [("insert", 6), ("insert", 7)], "the other sink to continue"
    )
    assert good.calls[0][0] is not None
    shown = error_of(shop) or ""
    place = r"tests\.engine\.test_function_sinks:\d+"
    name = "function tests.engine.test_function_sinks:Recorder failed with RuntimeError"
    assert re.match(rf"{re.escape(name)} at {place}: the target, in its call with \(", shown)
    assert "row 6" not in shown
    assert error_of(shop, "other") is None

    unregister(shop.home.path, "out")
    until(lambda: "is not registered in this process" in (error_of(shop) or ""), "the error of an unknown function")
    assert shop.catalog.sinks.get("out").state is SinkState.RUNNING  # type: ignore[union-attr]
    again = Recorder()
    shop.home.sink("out", "shop.orders", again)
    until(lambda: len(again.calls) == 2, "the changes")
    assert again.calls[0] == bad.calls[-1], "the range that failed"
    assert again.ops() == [[("insert", 6)], [("insert", 7)]]
    until(lambda: error_of(shop) is None, "the error to disappear")
    shop.home.retry("shop", "public.orders")
    until(lambda: "was captured again" in (error_of(shop) or ""), "another history to be an error")
    assert shop.catalog.sinks.get("out").state is SinkState.FAILED  # type: ignore[union-attr]


def test_snapshot_is_the_same_again_after_the_table_has_changed(
    start_spark_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.sink_runner.LONGEST_TRANSIENT_PAUSE", 0.2)
    shop, found = start_spark_shop(SETUP), Recorder()
    found.failures = 10**6
    shop.home.sink("out", "shop.orders", found)
    until(lambda: found.calls, "the first call")
    shop.database.execute("ALTER TABLE orders ADD COLUMN extra int DEFAULT 7")
    shop.database.execute("INSERT INTO orders VALUES (6, 'a', NULL, 8)")
    shop.database.execute("DELETE FROM orders WHERE id = 1")
    until(lambda: shop.base_columns("orders")[-1] == "extra", "the base table to follow")
    failed = len(found.calls)
    until(lambda: len(found.calls) > failed, "another call")
    found.failures = 0
    until(lambda: found.table == upstream(shop), "the changes")
    snapshots = [call for call in found.calls if call[0] is None]
    assert [call for call in snapshots if call != snapshots[0]] == []
    assert "extra" not in snapshots[0][2][0]["after"]
    assert [row["after"]["extra"] for _, _, rows in found.calls for row in rows if row["_op"] == "insert"] == [8]


def test_large_changes_are_read_from_a_file(
    start_spark_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.function.frames._LOCAL_BYTES", 100)
    shop, found = start_spark_shop(TYPES), Recorder()
    small = Recorder()
    shop.home.sink("out", "shop.orders", found, snapshot=False)
    until(lambda: bool(shop.catalog.sinks.get("out").started), "the sink")  # type: ignore[union-attr]
    shop.database.execute(f"INSERT INTO orders SELECT n, 'x', {VALUES} FROM generate_series(1, 2000) n")
    until(lambda: found.calls, "a call")
    monkeypatch.undo()
    shop.home.sink("small", "shop.orders", small)
    until(lambda: small.calls, "a call")
    (_, _, large), (_, _, rows) = found.calls[0], small.calls[0]
    by_id = {row["after"]["id"]: row["after"] for row in rows}
    assert len(large) == len(by_id) == 2000
    assert {row["after"]["id"]: row["after"] for row in large} == by_id, "the same values as in the snapshot"
    assert not list(calls_path(shop.home.path, "out").glob("*.parquet"))


# -- without Spark -----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a source of four tables: auctions, bids, organizations and users."""
    home = Home(tmp_path / "home")
    home.sql("CREATE SOURCE shop FROM LOAD GENERATOR AUCTION")
    return home


def to_http(df: DataFrame, first: Lsn | None, last: Lsn) -> None:
    """Do nothing."""


def rows_of(home: Home, statement: str) -> list[Any]:
    answer = home.sql(statement)
    assert isinstance(answer, Answer)
    return list(answer.rows)


def test_sink_is_an_object_of_the_catalog(home: Home) -> None:
    assert home.sink("to_http", "shop.bids", to_http) == "to_http"
    assert home.sink("imported", "shop.shop.bids", "my.sinks:to_http", snapshot=False, retain_limit="1 day")
    assert [row[:5] for row in rows_of(home, "SHOW SINKS")] == [
        ("imported", "shop.bids", "function my.sinks:to_http", "changes", "running"),
        ("to_http", "shop.bids", "function tests.engine.test_function_sinks:to_http", "changes", "running"),
    ]
    statements = [rows_of(home, f"SHOW CREATE SINK {name}")[0][0] for name in home.sinks()]
    assert statements == [
        "home.sink('imported', 'shop.bids', 'my.sinks:to_http', snapshot=False, retain_limit='1 day')",
        "home.sink('to_http', 'shop.bids', to_http)",
    ]
    home.sql("ALTER SINK to_http SET (retain limit = '2 days')")
    assert home.sink_spec("to_http").retain_limit == "2 days"
    with pytest.raises(UsageError, match="cannot be changed: the sink has already started"):
        home.alter_sink("to_http", snapshot=False)
    with pytest.raises(DefiniteError, match="source shop is not dropped: sinks read it: imported, to_http"):
        home.drop("shop")
    assert "penstock_sink_up{" in home.metrics()
    answer = home.sql("DROP SINK to_http")
    assert isinstance(answer, Answer)
    assert answer.message == "dropped sink to_http; its output is kept"
    assert home.sinks() == ["imported"]


def test_second_call_replaces_the_function(home: Home) -> None:
    home.sink("out", "shop.bids", to_http)
    home.sink("out", "shop.bids", "my.sinks:other", retain_limit="1 day")
    assert home.sink_statement("out") == "home.sink('out', 'shop.bids', 'my.sinks:other', retain_limit='1 day')"
    with pytest.raises(DefiniteError, match=r"out already exists: it reads shop.bids into function my.sinks:other"):
        home.sink("out", "shop.users", to_http)
    with pytest.raises(DefiniteError, match="already exists with snapshot=True"):
        home.sink("out", "shop.bids", to_http, snapshot=False)
    home.create_sink("kafka", "shop.bids", broker="k:9092", topic="t", format="json", envelope="upsert")
    with pytest.raises(DefiniteError, match=r"sink kafka already exists: it reads shop.bids into t at k:9092"):
        home.sink("kafka", "shop.bids", to_http)


@pytest.mark.parametrize(
    ("source", "function", "options", "message", "hint"),
    [
        ("shop", to_http, {}, "requires a single table", '"shop.table"'),
        ("shop.bid", to_http, {}, "source shop has no table bid", "Did you mean"),
        ("shp.bids", to_http, {}, "source shp does not exist", "Did you mean shop?"),
        ("shop.bids", "to_http", {}, 'invalid function name "to_http"', "package.module:function"),
        ("shop.bids", "a b:c", {}, 'invalid function name "a b:c"', "package.module:function"),
        ("shop.bids", to_http, {"retain_limit": "x"}, "x", ""),
    ],
)
def test_invalid_sinks(
    home: Home, source: str, function: Any, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        home.sink("out", source, function, **options)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert home.sinks() == []


def test_home_without_spark(start_shop: Callable[..., Shop]) -> None:
    shop = start_shop("CREATE TABLE orders (id int PRIMARY KEY, name text)")
    shop.home.sink("out", "shop.orders", to_http)
    until(lambda: error_of(shop), "the error")
    (shown,) = shop.home.status().sinks
    message = "sink out calls a function with Spark DataFrames, and this home runs without Spark"
    assert (shown.state, shown.error) == ("failed", message)
    assert "home.run(spark)" in (shown.hint or "")


def test_retain_limit(start_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    shop = start_shop("CREATE TABLE orders (id int PRIMARY KEY, name text)")
    shop.home.sink("out", "shop.orders", to_http, retain_limit="1 hour")
    until(lambda: error_of(shop), "the sink to fail")
    shop.database.execute("INSERT INTO orders VALUES (1, 'a')")
    with closing(shop.catalog.log("shop").reader()) as reader:
        until(lambda: reader.extent(TableName("public", "orders"), *retained(reader)).rows, "the change")
        monkeypatch.setattr("penstock.engine.sink_runner.datetime", TwoHoursAhead)
        until(lambda: "further behind than its retain limit" in (error_of(shop) or ""), "the limit to be enforced")
        until(lambda: "sink out" not in [lease.reader for lease in reader.leases()], "the history to be released")


def retained(reader: ChangeLogReader) -> tuple[Lsn, Lsn]:
    """Return the range that is retained for the sink."""
    (held,) = [lease.at for lease in reader.leases() if lease.reader == "sink out"]
    return held, reader.frontiers().durable


class TwoHoursAhead:
    """A clock."""

    @staticmethod
    def now(zone: Any) -> datetime:
        return datetime.now(zone) + timedelta(hours=2)
