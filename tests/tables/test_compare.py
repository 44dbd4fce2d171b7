"""Comparison of tables: what counts as a difference, and how it is reported."""

from __future__ import annotations

import ast
import itertools
import random
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import UsageError
from penstock.tables.compare import BUCKETS, Difference, Differences, How, differences


def frame(spark: SparkSession, rows: list[tuple[Any, ...]], kind: str = "string") -> DataFrame:
    return spark.createDataFrame(rows, f"id int, v {kind}")


def test_equal_tables(spark: SparkSession) -> None:
    rows = [(1, "x"), (2, None), (3, "")]
    assert differences(frame(spark, rows), frame(spark, rows[::-1]), ["id"]) == Differences(0, [], 3)
    assert differences(frame(spark, []), frame(spark, []), ["id"]) == Differences(0, [], 0)


EXPECTED_DIFFERENCES = [
    Difference({"id": 1}, How.CHANGED),
    Difference({"id": 2}, How.MISSING),
    Difference({"id": 5}, How.UNEXPECTED),
]


@pytest.mark.parametrize("exact", [False, True])
def test_differences_are_found(spark: SparkSession, exact: bool) -> None:
    upstream = frame(spark, [(1, "x"), (2, None), (3, "z"), (4, "same")])
    live = frame(spark, [(1, "X"), (3, "z"), (4, "same"), (5, "")])
    found = differences(upstream, live, ["id"], exact=exact)
    assert found == Differences(3, EXPECTED_DIFFERENCES, 4, missing=1, unexpected=1)
    assert found.changed == 1
    assert [difference.json for difference in found.first] == ['{"id":1}', '{"id":2}', '{"id":5}']


def test_null_is_not_empty(spark: SparkSession) -> None:
    assert differences(frame(spark, [(1, None)]), frame(spark, [(1, "")]), ["id"]).changed == 1


def test_duplicate_rows_are_counted(spark: SparkSession) -> None:
    twice, once = frame(spark, [(1, "x"), (1, "x")]), frame(spark, [(1, "x")])
    assert differences(twice, once, ["id"]) == Differences(1, [Difference({"id": 1}, How.MISSING)], 2, missing=1)
    row = Difference({"id": 1, "v": "x"}, How.UNEXPECTED)
    assert differences(once, twice, []) == Differences(1, [row], 1, unexpected=1)


@pytest.mark.deep
def test_only_the_first_keys_are_reported(spark: SparkSession) -> None:
    found = differences(spark.range(1000), spark.range(500, 1000), ["id"], limit=3)
    assert (found.count, found.missing, found.rows_compared) == (500, 500, 1000)
    assert found.keys == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert len(differences(spark.range(1000), spark.range(0), ["id"], limit=100_000).keys) == 1000


def test_values_are_compared_bit_by_bit(spark: SparkSession) -> None:
    """One row for each pair of values; all other values of the row are equal."""
    pairs = [
        ("double", 0.0, -0.0),
        ("float", 0.0, -0.0),
        ("double", 1.0, 1.0000000000000002),
        ("array<double>", [0.0], [-0.0]),
        ("struct<a: array<struct<b: float>>>", ([(0.0,)],), ([(-0.0,)],)),
        ("map<string, double>", {"a": 0.0}, {"a": -0.0}),
        ("array<map<string, int>>", [{"a": 1}], [{"a": 2}]),
        ("struct<m: map<string, int>>", ({"a": 1},), None),
        ("binary", b"\x00", b""),
    ]
    kinds = ", ".join(["id int", *(f"c{n} {kind}" for n, (kind, _, _) in enumerate(pairs))])
    same = [one for _, one, _ in pairs]
    changed = [[*same[:n], other, *same[n + 1 :]] for n, (_, _, other) in enumerate(pairs)]
    left = spark.createDataFrame([(n, *same) for n in range(len(pairs))], kinds)
    right = spark.createDataFrame([(n, *row) for n, row in enumerate(changed)], kinds)
    found = differences(left, right, ["id"])
    assert sorted(one["id"] for one in found.keys) == list(range(len(pairs)))
    assert found.changed == len(pairs)
    assert differences(left, left, ["id"]).count == 0


def test_nan_equals_nan_and_maps_are_unordered(spark: SparkSession) -> None:
    nan = frame(spark, [(1, float("nan"))], "double")
    assert differences(nan, nan, ["id"]).count == 0
    one, other = ({"a": 1, "b": 2}, {"b": 2, "a": 1})
    kind = "map<string, int>"
    assert differences(frame(spark, [(1, one)], kind), frame(spark, [(1, other)], kind), ["id"]).count == 0


def test_column_names_are_quoted(spark: SparkSession) -> None:
    table = pa.table({"a.b": [1, 2], "c `d`": ["x", "y"]})
    found = differences(spark.createDataFrame(table), spark.createDataFrame(table.slice(1)), ["a.b"])
    assert found == Differences(1, [Difference({"a.b": 1}, How.MISSING)], 2, missing=1)


def test_different_columns_are_rejected(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="columns: v"):
        differences(frame(spark, []), frame(spark, [], "int"), ["id"])


# -- by buckets --------------------------------------------------------------------------------------------------------


def test_keys_are_reported_exactly(spark: SparkSession) -> None:
    moment = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)
    kind = "at timestamp, n decimal(38, 2), f double"
    one = spark.createDataFrame([(moment, Decimal("1.50"), -0.0)], kind)
    (found,) = differences(one, one.limit(0), ["at", "n", "f"]).first
    assert found.key == {"at": moment, "n": Decimal("1.50"), "f": "-0.0"}
    assert found.json == '{"at":"2026-01-01T12:00:00.000001Z","n":1.50,"f":"-0.0"}'


CONFUSABLE = {
    "a string": (None, "", "a"),
    "b string": (None, "", "a"),
    "c int": (None, 0, 1),
    "d array<int>": (None, [], [None], [0], [0, None], [None, 0]),
    "e struct<x: string, y: string>": (None, (None, None), ("a", None), (None, "a")),
    "f array<array<string>>": (None, [["a"], []], [["a", None]], [[], ["a"]], [None, ["a"]], [["a"], None]),
}


def leaves(value: Any) -> list[str]:
    """Return the values inside a value, without nulls and structure: all that a careless hash would include."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if value is None else [repr(value)]


@pytest.mark.deep
def test_similar_rows_are_distinguished(spark: SparkSession) -> None:
    """Nulls in another column or position, empty arrays, values in another field: a pair of rows per key."""
    alike: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
    for row in itertools.product(*CONFUSABLE.values()):
        alike.setdefault(tuple(leaves(row)), []).append(row)
    pairs = [pair for rows in alike.values() for pair in itertools.pairwise(rows)]
    chosen = random.Random(1).sample(pairs, BUCKETS // 4)  # few enough that most pairs have a separate bucket
    here, there = (
        spark.createDataFrame([(n, *pair[side]) for n, pair in enumerate(chosen)], f"n int, {', '.join(CONFUSABLE)}")
        for side in (0, 1)
    )
    assert differences(here, there, ["n"]).changed == len(chosen)
    assert differences(here, here, ["n"]).count == 0


def changed(rows: list[tuple[Any, ...]], random: random.Random) -> list[tuple[Any, ...]]:
    """Apply a few random changes: change a value, swap two values, duplicate, delete or insert a row."""
    rows = list(rows)
    for _ in range(random.randrange(4)):
        at = random.randrange(len(rows))
        n, *values = rows[at]
        match random.randrange(5):
            case 0:
                values[random.randrange(2)] = random.choice([None, "", "a", "b"])
                rows[at] = (n, *values)
            case 1:
                rows[at] = (n, values[1], values[0], values[2])
            case 2:
                rows.append(rows[at])
            case 3:
                del rows[at]
            case _:
                rows.append((random.randrange(300), None, "a", [None]))
    return rows


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(1, 6))])
def test_result_equals_a_comparison_of_row_counts(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    words = [None, "", "a", "b"]
    rows = [(n, rng.choice(words), rng.choice(words), rng.choice([None, [], [None]])) for n in range(200)]
    other = changed(rows, rng)
    kind = "n int, a string, b string, c array<string>"
    here, there = (spark.createDataFrame(each, kind) for each in (rows, other))
    count, recount = (Counter(repr(row) for row in each) for each in (rows, other))
    less, more = count - recount, recount - count
    assert differences(here, there, []) == differences(here, there, [], exact=True)
    found = differences(here, there, [], limit=1000)
    assert (found.count, found.missing, found.unexpected) == (len(less) + len(more), len(less), len(more))
    keys = {ast.literal_eval(row)[0] for row in (*less, *more)}
    assert {key["n"] for key in differences(here, there, ["n"]).keys} == keys
