"""What breaks off work with Spark and Postgres, in our words: worth another try, or not before somebody acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.errors import TransientError
from penstock.sources.postgres.connection import connection_error
from penstock.spark.boundary import brief, delivering

__all__ = ["breaking_off"]


@contextmanager
def breaking_off(what: str, conninfo: str) -> Iterator[None]:
    """Raise our own errors from Spark's workers as they were; those of Spark itself as "`what` broke off"."""
    try:
        with delivering():
            yield
    except psycopg.Error as error:
        raise connection_error(error, conninfo) from error
    except (PySparkException, Py4JError) as error:
        message = f"{what} broke off: {brief(error)}"
        raise TransientError(message) from error
