"""The identity of the query that Spark is analyzing.

Spark resolves the tables of one query one after the other. Whatever must be the same for all of them is kept here, by
query. A query is identified by

- the operation of Spark Connect, if there is one: Connect may analyze parts of a query on their own;
- otherwise Spark's `QueryPlanningTracker`, which each query has from its analysis on.

It is also known when a query has ended: Spark Connect lists the operations that it executes, and the JVM keeps a
tracker as long as the query exists; here it is only referenced weakly.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pyspark.sql import SparkSession

__all__ = ["ByQuery"]

_T = TypeVar("_T")

_OPERATION = "SparkConnect_OperationTag_"
_USED_SECONDS = 60.0
"""A value is kept this long after a query last used it: analysis of a Connect operation has several steps."""
_LONGEST_SECONDS = 3600.0
"""The JVM may keep the tracker of an ended query until it collects garbage."""


@dataclass
class _Kept(Generic[_T]):
    """The value of one query, and the trackers of the query, each as a weak reference in the JVM."""

    value: _T
    opened: float
    used: float
    operation: str | None
    trackers: list[tuple[int, Any]] = field(default_factory=list)

    def is_recent(self, now: float) -> bool:
        """Whether the query used the value a short time ago."""
        return now < self.used + _USED_SECONDS

    def is_needed(self, now: float, operations: Collection[str]) -> bool:
        """Whether the query may still exist; `operations` are those that Spark Connect executes."""
        if self.is_recent(now):
            return True
        if self.operation is not None:
            return self.operation in operations
        return now < self.opened + _LONGEST_SECONDS and any(tracker.get() is not None for _, tracker in self.trackers)


class ByQuery(Generic[_T]):
    """One value for each query, made when the query first asks for it and kept while the query exists."""

    def __init__(self, spark: SparkSession, make: Callable[[], _T]) -> None:
        self._context = spark.sparkContext
        self._make = make
        self._kept: list[_Kept[_T]] = []
        self._lock = threading.Lock()

    def current(self) -> _T:
        """Return the value of the query that is being analyzed; only for code that Spark called to analyze it."""
        jvm: Any = self._context._jvm
        operation, found = self._operation(), jvm.org.apache.spark.sql.catalyst.QueryPlanningTracker.get()
        tracker = found.get() if found.isDefined() else None
        code = jvm.java.lang.System.identityHashCode(tracker)
        with self._lock:
            now = time.monotonic()
            self._forget_ended(now)
            kept = next((kept for kept in self._kept if self._is_of(kept, operation, code, tracker)), None)
            if kept is None:
                kept = _Kept(self._make(), now, now, operation)
                self._kept.append(kept)
            if tracker is not None and not any(_is(tracker, known, code) for known in kept.trackers):
                kept.trackers.append((code, jvm.java.lang.ref.WeakReference(tracker)))
            kept.used = now
            return kept.value

    def forget_ended(self) -> None:
        """Forget the values of queries that have ended, in case no other query follows."""
        with self._lock:
            self._forget_ended(time.monotonic())

    def _forget_ended(self, now: float) -> None:
        asked = any(kept.operation is not None and not kept.is_recent(now) for kept in self._kept)
        operations = self._operations() if asked else ()
        self._kept = [kept for kept in self._kept if kept.is_needed(now, operations)]

    def _operations(self) -> Collection[str]:
        """Return the operations that Spark Connect executes."""
        jvm: Any = self._context._jvm
        found = jvm.org.apache.spark.sql.connect.service.SparkConnectService.listActiveExecutions()
        if found.isLeft():
            return ()  # none, and since when
        executed = found.toOption().get()
        return {executed.apply(at).jobTag() for at in range(executed.size())}

    def _operation(self) -> str | None:
        tags = (self._context.getLocalProperty("spark.job.tags") or "").split(",")
        return next((tag for tag in tags if tag.startswith(_OPERATION)), None)

    def _is_of(self, kept: _Kept[_T], operation: str | None, code: int, tracker: Any) -> bool:
        if operation is not None or kept.operation is not None:
            return kept.operation == operation
        return any(_is(tracker, known, code) for known in kept.trackers)


def _is(tracker: Any, known: tuple[int, Any], code: int) -> bool:
    """Whether a weak reference is to this tracker."""
    return known[0] == code and known[1].get() == tracker
