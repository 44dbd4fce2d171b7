"""The jobs of one source, by a tag: when the source stops, those that still run are cancelled together.

A commit of a table is atomic, and the work that was cancelled begins again at the next start, as after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["SparkJobs"]


class SparkJobs:
    """Jobs that threads start within `tagged`."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        self._context = spark.sparkContext
        self._tag = tag

    @contextmanager
    def tagged(self) -> Iterator[None]:
        """Tag the jobs that this thread starts within it; not to be nested."""
        self._context.addJobTag(self._tag)
        try:
            yield
        finally:
            with suppress(Py4JError, PySparkException, OSError):  # Spark may be gone by now
                self._context.removeJobTag(self._tag)

    def cancel(self) -> None:
        """Cancel the jobs that run; whoever waits for one gets an error of Spark's."""
        with suppress(Py4JError, PySparkException, OSError):
            self._context.cancelJobsWithTag(self._tag)
