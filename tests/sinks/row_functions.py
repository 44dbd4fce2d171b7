"""Functions of sinks for tests: option transform names them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

NOT_A_FUNCTION = "text"


def unchanged(rows: DataFrame) -> DataFrame:
    return rows


def without_drafts(rows: DataFrame) -> DataFrame:
    """Leave out drafts, add a column, remove one, and return the rows in another order."""
    shown = rows.where("status <> 'draft'").withColumn("shout", F.upper("note")).drop("note")
    return shown.orderBy(F.desc("_row_number"))


def without_row_number(rows: DataFrame) -> DataFrame:
    return rows.drop("_row_number")


def without_key(rows: DataFrame) -> DataFrame:
    return rows.drop("id")


def with_another_key(rows: DataFrame) -> DataFrame:
    return rows.withColumn("id", rows.id + 1)


def with_key_as_text(rows: DataFrame) -> DataFrame:
    return rows.withColumn("id", rows.id.cast("string"))


def with_duplicates(rows: DataFrame) -> DataFrame:
    return rows.union(rows)


def with_untyped_column(rows: DataFrame) -> DataFrame:
    return rows.withColumn("empty", F.lit(None))


def with_unknown_column(rows: DataFrame) -> DataFrame:
    return rows.select("id", "_row_number", "nonsense")


def with_columns_that_vary(rows: DataFrame) -> DataFrame:
    return rows if rows.isEmpty() else rows.drop("note")


def that_returns_none(rows: DataFrame) -> Any:
    return None


def that_raises(rows: DataFrame) -> DataFrame:
    message = "out of order"
    raise RuntimeError(message)


def that_fails_for_values(rows: DataFrame) -> DataFrame:
    return rows.withColumn("number", rows.note.cast("int"))


def that_raises_values(rows: DataFrame) -> DataFrame:
    for row in rows.collect():
        raise ValueError(row.note)
    return rows


def with_copy_of_note(rows: DataFrame) -> DataFrame:
    return rows.withColumn("copy", rows.note)
