"""Errors for rows that are missing from the base table: a job failure inside Spark, a `TableError` outside.

This cannot happen as long as every change reaches the table once and in order. If it does happen, a null in place of a
value that was never sent would be worse than a table that stops: the expression fails the job, and the failure is
reported as a `TableError`. The marker in the error text survives Spark's wrapping of exceptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.tables.arrow.fold import missing_base_row

__all__ = ["missing_row_errors", "raise_missing_row"]

_MARK = "PENSTOCK_ROW_ABSENT"


def raise_missing_row(schema: TableSchema) -> Column:
    """Return an expression that fails the job when it is evaluated."""
    return F.raise_error(
        F.lit(f"{_MARK}: a change of {schema.table} requires a row that is missing from its base table")
    )


@contextmanager
def missing_row_errors(schema: TableSchema, position: Lsn) -> Iterator[None]:
    """Convert a job failure raised by `raise_missing_row` into a `TableError` at `position`; pass on all others."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if _MARK not in str(error):
            raise
        raise missing_base_row(schema.table, position) from error
