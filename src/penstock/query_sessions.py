"""The Spark sessions in which a running home executes the queries of its clients, and the jobs of a query.

A session has settings, temporary views and functions of its own. Read-only queries cannot change theirs, so each thread
keeps one for them. Other statements get a new session, or one that the client names, so that a prompt finds its
settings and views again. All sessions are replaced when Spark is restarted. Small live tables are read in this process
(`penstock.tables.small_tables`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.spark.jobs import SparkJobs
from penstock.spark.read_only import read_only_session
from penstock.tables.small_tables import SmallTables
from penstock.tables.spark_tables import SparkTables

__all__ = ["QueryJobs", "QuerySessions"]

_LOCAL_RULE = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
"""Evaluates filters and projections of small tables while it plans a query, where no time limit can end them."""
_NAMED = 16
"""The number of named sessions that are kept; the one that was not used for the longest time is dropped first."""


class QueryJobs(SparkJobs):
    """The Spark jobs of one query: those that its thread starts inside `tagged`.

    To cancel them interrupts their tasks, which only read: most of them would otherwise not notice it.
    """

    def __init__(self, session: SparkSession, query: str) -> None:
        super().__init__(session, f"penstock-query-{query}")
        self._spark_context = session.sparkContext

    @contextmanager
    def tagged(self) -> Iterator[None]:
        """Tag the jobs that this thread starts inside the context, and let their tasks be interrupted."""
        with super().tagged():
            self._spark_context.setInterruptOnCancel(True)
            try:
                yield
            finally:
                with suppress(Py4JError, PySparkException, OSError):  # the JVM may have ended
                    self._spark_context.setInterruptOnCancel(False)


class QuerySessions:
    """Sessions of the Spark that `spark` returns; it raises `TransientError` while there is none."""

    def __init__(self, spark: Callable[[], SparkSession]) -> None:
        self._spark = spark
        self._small = SmallTables()
        self._lock = threading.Lock()
        self._made_from: SparkSession | None = None
        self._read_only: dict[int, SparkSession] = {}
        self._named: OrderedDict[str, SparkSession] = OrderedDict()

    def read_only(self) -> SparkSession:
        """Return the session of this thread for read-only queries."""
        with self._lock:
            spark, thread = self._current(), threading.get_ident()
            if thread not in self._read_only:
                self._read_only[thread] = _cancellable(read_only_session(spark))
            return self._read_only[thread]

    def changeable(self, name: str | None) -> SparkSession:
        """Return a session that a client may change: the one of this name, or a new one."""
        with self._lock:
            spark = self._current()
            if name is None:
                return _cancellable(spark.newSession())
            found = self._named.pop(name) if name in self._named else _cancellable(spark.newSession())
            self._named[name] = found
            if len(self._named) > _NAMED:
                self._named.popitem(last=False)
            return found

    def tables(self, session: SparkSession) -> SparkTables:
        """Return the tables that queries in a session read: small ones without jobs of Spark."""
        return SparkTables(session, self._small)

    def _current(self) -> SparkSession:
        """Return Spark; forget the sessions of an earlier one."""
        spark = self._spark()
        if spark is not self._made_from:
            self._made_from = spark
            self._read_only.clear()
            self._named.clear()
        return spark


def _cancellable(session: SparkSession) -> SparkSession:
    """Let a session evaluate the rows of small tables only in jobs, which can be cancelled."""
    session.conf.set("spark.sql.optimizer.excludedRules", _LOCAL_RULE)
    return session
