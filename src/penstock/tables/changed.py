"""Which rows of two tables differ, by key: for those who put them right."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame

from penstock.model import TableSchema
from penstock.tables.columns import column, exact, own

__all__ = ["changed_keys"]


def changed_keys(right: DataFrame, live: DataFrame, schema: TableSchema) -> DataFrame:
    """Return, once each, the keys whose row is in one of the two only, or has another value in any column."""
    here, there = (rows.select(*_keys(schema), *_values(rows)) for rows in (right, live))
    differing = here.exceptAll(there).unionAll(there.exceptAll(here))
    return differing.select(*(column(own(f"key_{i}")).alias(name) for i, name in enumerate(schema.key))).distinct()


def _keys(schema: TableSchema) -> list[Column]:
    return [column(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)]


def _values(rows: DataFrame) -> list[Column]:
    return [exact(column(field.name), field.dataType).alias(field.name) for field in rows.schema]
