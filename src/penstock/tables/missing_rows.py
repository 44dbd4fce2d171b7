"""A row that must be in the base table and is not: loud inside Spark, a `TableError` outside.

It cannot happen while every change reached the table once and in order. Should it, a null in the place of a value that
nobody sent would be worse than a table that stops: the expression fails the job, and the job's failure is told as what
it is. The mark in the text survives however Spark wraps the error on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.errors import TableError
from penstock.model import TableSchema
from penstock.positions import Lsn

__all__ = ["absent_row", "absent_rows_told"]

_MARK = "PENSTOCK_ROW_ABSENT"


def absent_row(schema: TableSchema) -> Column:
    """Return an expression that fails the job when it is evaluated."""
    return F.raise_error(F.lit(f"{_MARK}: a change of {schema.table} needs a row that its base table does not hold"))


@contextmanager
def absent_rows_told(schema: TableSchema, position: Lsn) -> Iterator[None]:
    """Turn the failure of a job by `absent_row` into a `TableError` at `position`; leave all others alone."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        if _MARK not in str(error):
            raise
        message = f"a change of {schema.table} up to {position} needs a row that its base table does not hold"
        hint = (
            f"Read its rows anew: penstock repair SOURCE {schema.table} --all; or capture it anew:"
            f" ALTER SOURCES … RETRY TABLE {schema.table};"
        )
        raise TableError(str(schema.table), position, message, hint) from error
