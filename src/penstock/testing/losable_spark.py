"""A Spark that a test can kill, without Spark: in-memory tables that fail after `kill`, until they are started again.

The rows survive a kill, as Delta tables on disk do. An operation that is in progress when the kill happens completes;
every later one raises the error of a JVM that has exited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from pyspark.errors import PySparkRuntimeError

from penstock.tables.interface import TableStore
from penstock.testing.memory_tables import MemoryTables

__all__ = ["LosableSpark"]


class LosableSpark:
    """Implements `penstock.engine.supervisor.RestartableSpark` over in-memory tables."""

    def __init__(self) -> None:
        self.tables = MemoryTables()
        self.starts = 0
        """The number of starts, also failed ones."""
        self.discards = 0
        self.start_error: Exception | None = None
        """An error that `start` raises."""
        self._lost = threading.Event()

    def start(self) -> TableStore:
        """Return a store that works until the next `kill`."""
        self.starts += 1
        if self.start_error is not None:
            raise self.start_error
        self._lost = threading.Event()
        return cast("TableStore", _Losable(self.tables, self._lost.is_set))

    def is_alive(self) -> bool:
        """Return whether it was not killed."""
        return not self._lost.is_set()

    def kill(self) -> None:
        """Let all further operations fail."""
        self._lost.set()

    def discard(self) -> None:
        """Count the call."""
        self.discards += 1

    def stop(self) -> None:
        """Do nothing."""


class _Losable:
    """Passes everything on to an object, until it is lost; also what the object opens: base tables."""

    def __init__(self, inner: object, is_lost: Callable[[], bool]) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_is_lost", is_lost)

    def __getattr__(self, name: str) -> Any:
        if self._is_lost():
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        if name == "base":
            return lambda *arguments: _Losable(self._inner.base(*arguments), self._is_lost)
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)
