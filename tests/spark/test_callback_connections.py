"""Threads of the JVM that call Python leave neither a thread nor a connection behind when they end."""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql import SparkSession

from penstock.spark.table_function import TableFunction
from penstock.testing.waiting import until

THREADS = 12


class Query:
    """A query, as a task of a thread of the JVM."""

    class Java:
        """The interface that Py4J implements with this class."""

        implements = ("java.lang.Runnable",)

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.rows: list[int] = []

    def run(self) -> None:
        """Execute the query."""
        self.rows.append(self.spark.sql("SELECT * FROM numbers('3') JOIN numbers('3') USING (id)").count())


def test_threads_that_ended_leave_nothing_behind(spark: SparkSession) -> None:
    session = spark.newSession()
    TableFunction(session, "numbers", lambda given: lambda: session.range(int(given[0]))).add_to(session)
    query = Query(session)
    jvm: Any = session._jvm
    before = threading.active_count()
    for _ in range(THREADS):
        thread = jvm.java.lang.Thread(query)
        thread.start()
        thread.join()
    assert query.rows == [3] * THREADS
    until(lambda: threading.active_count() < before + THREADS / 2, "the threads to end")
