"""Fault injection at named points: fail once or always, pause, and count, to test crashes between two steps.

::

    faults = Faults()
    with home.run(FaultyTables(MemoryTables(), faults)):
        faults.fail_once("merge.before", TransientError("…"))     the next merge fails, the one after it succeeds
        with faults.paused("create.after") as pause:              the next create stops after its commit
            pause.wait()                                          wait until it has reached the point
            …                                                     other steps of the test
        with faults.failing("merge.before", RuntimeError, "orders"):
            …                                                     every merge of that table fails in this block

A point is ``<operation>.before`` or ``<operation>.after``; the operations are the methods of `BaseTable` that commit
(`TABLE_OPERATIONS`) and those of `ChangeLogWriter` that make data durable (`LOG_OPERATIONS`). At ``after``, the
operation is durable and its caller does not know it yet: the hardest case for crash recovery.

The wrappers `FaultyTables` and `FaultyLog` add the points to any store and any log, so that production code contains no
test code.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.changelog.interface import ChangeLog, ChangeLogReader, ChangeLogWriter
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.tables.interface import BaseTable, TableStore
from penstock.testing.waiting import until

__all__ = ["LOG_OPERATIONS", "TABLE_OPERATIONS", "Faults", "FaultyLog", "FaultyTables", "Pause"]

TABLE_OPERATIONS = frozenset({"create", "append", "merge", "evolve", "add_chunk"})
LOG_OPERATIONS = frozenset({"define", "stage", "settle", "publish", "retain"})


class Pause:
    """A point at which a thread blocks until it is released."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        """Wait until a thread has reached the point."""
        until(self._reached.is_set, f"some thread at {self._point}")

    def release(self) -> None:
        """Unblock the thread."""
        self._released.set()

    def block(self) -> None:
        """Block until released."""
        self._reached.set()
        until(self._released.is_set, f"the release of {self._point}")


class Faults:
    """The actions to perform at each point; none at first. Thread-safe."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        """The number of times that each point was reached."""
        self._once: dict[str, list[Callable[[], None]]] = {}
        self._always: list[tuple[str, Callable[[], BaseException], str | None]] = []
        self._lock = threading.Lock()

    def fail_once(self, point: str, error: BaseException) -> None:
        """Raise `error` the next time the point is reached."""

        def fail() -> None:
            raise error

        self._arm(point, fail)

    @contextmanager
    def failing(self, point: str, error: Callable[[], BaseException], table: str | None = None) -> Iterator[None]:
        """Raise `error()` each time that the point is reached in the block, for one table or for all."""
        self._require(point)
        armed = (point, error, table)
        with self._lock:
            self._always.append(armed)
        try:
            yield
        finally:
            with self._lock:
                self._always.remove(armed)

    @contextmanager
    def paused(self, point: str) -> Iterator[Pause]:
        """Block the next thread that reaches the point, until the block ends or `Pause.release` is called."""
        pause = Pause(point)
        self._arm(point, pause.block)
        try:
            yield pause
        finally:
            pause.release()
            self._disarm(point, pause.block)

    def reach(self, point: str, table: str | None = None) -> None:
        """Run the next action that is armed for this point; raise the errors of `failing`."""
        with self._lock:
            self.reached[point] += 1
            armed = self._once.get(point, [])
            action = armed.pop(0) if armed else None
            errors = [error for at, error, of in self._always if at == point and of in (None, table)]
        if action is not None:
            action()
        for error in errors:
            raise error()

    def around(self, operation: str, call: Callable[..., Any], table: str | None = None) -> Callable[..., Any]:
        """Wrap `call` with a point before and one after it."""

        def proxy(*args: Any, **options: Any) -> Any:
            self.reach(f"{operation}.before", table)
            result = call(*args, **options)
            self.reach(f"{operation}.after", table)
            return result

        return proxy

    def _require(self, point: str) -> None:
        operation, _, when = point.partition(".")
        if operation not in TABLE_OPERATIONS | LOG_OPERATIONS or when not in ("before", "after"):
            message = f"unrecognized fault point {point!r}"
            raise ValueError(message)

    def _arm(self, point: str, action: Callable[[], None]) -> None:
        self._require(point)
        with self._lock:
            self._once.setdefault(point, []).append(action)

    def _disarm(self, point: str, action: Callable[[], None]) -> None:
        with self._lock:
            if action in self._once.get(point, []):
                self._once[point].remove(action)


class _FaultProxy:
    """A proxy of an object, with fault points at the given operations."""

    def __init__(self, inner: Any, faults: Faults, operations: frozenset[str], table: str | None = None) -> None:
        self.__dict__.update(_inner=inner, _faults=faults, _operations=operations, _table=table)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._faults.around(name, found, self._table) if name in self._operations else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


class FaultyTables:
    """A store whose base tables have fault points."""

    def __init__(self, store: TableStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def base(self, path: Path, schema: TableSchema) -> BaseTable:
        """Open a base table."""
        proxy: Any = _FaultProxy(self._store.base(path, schema), self._faults, TABLE_OPERATIONS, path.name)
        return proxy  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the store."""
        return getattr(self._store, name)


class FaultyLog(ChangeLog):
    """A change log whose writer has fault points."""

    def __init__(self, log: ChangeLog, faults: Faults) -> None:
        self._log = log
        self._faults = faults

    def exists(self) -> bool:
        """Return whether the log exists."""
        return self._log.exists()

    def create(self, start: Lsn) -> None:
        """Create the log."""
        self._log.create(start)

    def writer(self) -> ChangeLogWriter:
        """Open a writer with fault points."""
        proxy: Any = _FaultProxy(self._log.writer(), self._faults, LOG_OPERATIONS)
        return proxy  # type: ignore[no-any-return]

    def reader(self) -> ChangeLogReader:
        """Open a reader."""
        return self._log.reader()

    def remove(self) -> None:
        """Remove the log."""
        self._log.remove()
