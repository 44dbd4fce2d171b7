"""What breaks off work with Spark and Postgres, in our words: worth another try, or not before somebody acts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.errors import TransientError
from penstock.sources.postgres.asking import asking
from penstock.spark.boundary import brief, delivering

__all__ = ["breaking_off", "spark_breaking_off"]


@contextmanager
def breaking_off(what: str, conninfo: str) -> Iterator[None]:
    """Raise our own errors from Spark's workers as they were, and those of Postgres in our words; see below."""
    with asking(conninfo), spark_breaking_off(what):
        yield


@contextmanager
def spark_breaking_off(what: str) -> Iterator[None]:
    """Raise our own errors from Spark's workers as they were; those of Spark itself as "`what` broke off"."""
    try:
        with delivering():
            yield
    except (PySparkException, Py4JError) as error:
        message = f"{what} broke off: {brief(error)}"
        raise TransientError(message) from error
