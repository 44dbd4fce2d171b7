"""The Spark jobs of one source, identified by a tag: when the source stops, its running jobs are cancelled together.

A commit of a table is atomic, and cancelled work restarts at the next start, as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["SparkJobs"]


class SparkJobs:
    """The jobs that threads start inside `tagged`."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._context = spark.sparkContext
        self._tag = tag

    @contextmanager
    def tagged(self) -> Iterator[None]:
        """Tag the jobs that this thread starts inside the context; must not be nested."""
        self._context.addJobTag(self._tag)
        try:
            yield
        finally:
            with suppress(Py4JError, PySparkException, OSError):  # the JVM may have ended
                self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        """Cancel the running jobs; threads that wait for them get an error from Spark."""
        with suppress(Py4JError, PySparkException, OSError):
            self._context.cancelJobsWithTag(self._tag)
