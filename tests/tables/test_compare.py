"""Comparing tables: what counts as a difference, and how it is told."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import UsageError
from penstock.tables.compare import Differences, differences


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], kind: str = "string") -> DataFrame:
    return spark.createDataFrame(rows, f"id int, v {kind}")


def test_equal_tables(spark: SparkSession) -> None:
    rows = [(1, "x"), (2, None), (3, "")]
    assert differences(frame(spark, rows), frame(spark, rows[::-1]), ["id"]) == Differences(0, [], 3)
    assert differences(frame(spark, []), frame(spark, []), ["id"]) == Differences(0, [], 0)


def test_what_differs(spark: SparkSession) -> None:
    upstream = frame(spark, [(1, "x"), (2, None), (3, "z"), (4, "same")])
    live = frame(spark, [(1, "X"), (3, "z"), (4, "same"), (5, "")])
    found = differences(upstream, live, ["id"])
    assert found == Differences(3, [{"id": 1}, {"id": 2}, {"id": 5}], 4, missing=1, unexpected=1)
    assert found.changed == 1


def test_null_is_not_empty(spark: SparkSession) -> None:
    assert differences(frame(spark, [(1, None)]), frame(spark, [(1, "")]), ["id"]).changed == 1


def test_copies_count(spark: SparkSession) -> None:
    twice, once = frame(spark, [(1, "x"), (1, "x")]), frame(spark, [(1, "x")])
    assert differences(twice, once, ["id"]) == Differences(1, [{"id": 1}], 2, missing=1)
    assert differences(once, twice, []) == Differences(1, [{"id": 1, "v": "x"}], 1, unexpected=1)


def test_only_the_first_keys_are_told(spark: SparkSession) -> None:
    found = differences(spark.range(1000), spark.range(500, 1000), ["id"], limit=3)
    assert found == Differences(500, [{"id": 0}, {"id": 1}, {"id": 2}], 1000, missing=500)


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("double", 0.0, -0.0),
        ("float", 0.0, -0.0),
        ("double", 1.0, 1.0000000000000002),
        ("array<double>", [0.0], [-0.0]),
        ("struct<a: array<struct<b: float>>>", ([(0.0,)],), ([(-0.0,)],)),
        ("map<string, double>", {"a": 0.0}, {"a": -0.0}),
        ("array<map<string, int>>", [{"a": 1}], [{"a": 2}]),
        ("struct<m: map<string, int>>", ({"a": 1},), None),
        ("binary", b"\x00", b""),
    ],
)
def test_values_are_compared_bit_by_bit(spark: SparkSession, kind: str, one: Any, other: Any) -> None:
    left, right = frame(spark, [(1, one)], kind), frame(spark, [(1, other)], kind)
    assert differences(left, right, ["id"]).changed == 1
    assert differences(left, left, ["id"]).count == differences(right, right, ["id"]).count == 0


def test_nan_is_nan_and_maps_have_no_order(spark: SparkSession) -> None:
    nan = frame(spark, [(1, float("nan"))], "double")
    assert differences(nan, nan, ["id"]).count == 0
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    kind = "map<string, int>"
    assert differences(frame(spark, [(1, one)], kind), frame(spark, [(1, other)], kind), ["id"]).count == 0


def test_names_are_data(spark: SparkSession) -> None:
    table = pa.table({"a.b": [1, 2], "c `d`": ["x", "y"]})
    found = differences(spark.createDataFrame(table), spark.createDataFrame(table.slice(1)), ["a.b"])
    assert found == Differences(1, [{"a.b": 1}], 2, missing=1)


def test_other_columns_are_refused(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="columns: v"):
        differences(frame(spark, []), frame(spark, [], "int"), ["id"])
