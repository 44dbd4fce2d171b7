"""Changes that contradict the table are detected and reported, and no count falls below zero."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, MapType, StringType
from tests.envelopes.topics import NOON, fields

from penstock.envelopes import contradictions, keyed_shape
from penstock.model import Image

SHAPE = keyed_shape(fields(**{"k.1": IntegerType()}), fields(n=IntegerType(), m=MapType(StringType(), IntegerType())))
IMAGES = (
    "_lsn bigint, _ordinal bigint, _image tinyint, _xid bigint, _committed_at timestamp, _unchanged array<int>, "
    "row struct<`k.1`:int,n:int,m:map<string,int>>"
)

Change = tuple[Image, int, int | None]


def problems_of(spark: SparkSession, table: dict[int, int], *changes: Change) -> dict[int, str]:
    """Apply changes to a table; return the problems by the number of the change, which is its offset in partition 1."""
    images: list[Any] = []
    for number, (image, key, n) in enumerate(changes):
        images.append((number // 2, (1 << 44) + number, int(image), 0, NOON, None, (key, n, {"x": number})))
    frame = spark.createDataFrame(images, IMAGES)
    base = spark.createDataFrame([(key, n, {"y": 0}) for key, n in table.items()], SHAPE.columns)
    truncates = [(image[0], image[1]) for image in images if image[2] == Image.TRUNCATE]
    rows = contradictions(frame, base, SHAPE, truncates=truncates).collect()
    assert all((one["_lsn"], one["partition"]) == (one["offset"] // 2, 1) for one in rows)
    return {one["offset"]: one["problem"] for one in rows}


def test_consistent_changes_are_accepted(spark: SparkSession) -> None:
    changes: list[Change] = [
        (Image.BEFORE, 1, 10),
        (Image.UPDATED, 1, 11),
        (Image.DELETED, 1, 11),
        (Image.INSERTED, 1, 12),
        (Image.INSERTED, 3, None),
        (Image.DELETED, 3, None),
        (Image.DELETED, 2, 20),
    ]
    assert problems_of(spark, {1: 10, 2: 20, 4: 40}, *changes) == {}


def test_changes_after_a_truncate_begin_with_no_rows(spark: SparkSession) -> None:
    changes: list[Change] = [
        (Image.INSERTED, 3, 30),
        (Image.TRUNCATE, 0, None),
        (Image.INSERTED, 1, 11),
        (Image.INSERTED, 3, 31),
        (Image.DELETED, 2, 20),  # was removed by the truncate
        (Image.TRUNCATE, 0, None),
        (Image.INSERTED, 3, 32),
        (Image.DELETED, 3, 32),
    ]
    problems = problems_of(spark, {1: 10, 2: 20}, *changes)
    assert {number: "does not exist" in text for number, text in problems.items()} == {4: True}


def test_contradicting_changes_are_reported(spark: SparkSession) -> None:
    changes: list[Change] = [
        (Image.DELETED, 9, 1),  # never existed
        (Image.DELETED, 1, 10),
        (Image.DELETED, 1, 10),  # already deleted
        (Image.BEFORE, 2, 99),  # differs from the current row
        (Image.UPDATED, 2, 21),
        (Image.INSERTED, 2, 22),  # exists already
        (Image.DELETED, 3, None),  # key only
    ]
    problems = problems_of(spark, {1: 10, 2: 20, 3: 30}, *changes)
    assert set(problems) == {0, 2, 3, 5, 6}
    assert all("ENVELOPE DEBEZIUM UPSERT" in problem for problem in problems.values())
    assert "does not exist" in problems[0] and "does not exist" in problems[2]
    assert "differs from the current row" in problems[3] and "differs from the current row" in problems[6]
    assert "already exists" in problems[5]
