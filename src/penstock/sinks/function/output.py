"""The output of a sink into a function: each window of changes is one call, and so is the initial snapshot.

::

    the copy of the table is complete   ─▶ function(rows at P, None, P)
    a window of the log                 ─▶ the range on disk ─▶ function(changes, first, last) ─▶ the position on disk

The position advances only after the function has returned, so a call that a crash interrupts is repeated. It has the
same rows then: the position of the snapshot, and the end of a range, are recorded before the call.

Rows of the snapshot are read by Spark, and only when the function reads the DataFrame: the delivery copies no parts of
the table (see `penstock.engine.function_sinks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.errors import PySparkException

from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord, RecordedCall
from penstock.sinks.delivery import Output, TableImages
from penstock.sinks.function.registration import SinkFunction
from penstock.sinks.position import SinkPosition

__all__ = ["ChangeFrame", "Frames", "FunctionOutput"]

_LONGEST_TEXT = 200
_QUOTING = ("pyspark", "py4j", "pyarrow", "pandas", "numpy")
"""Packages whose exceptions may quote rows."""


@dataclass(frozen=True)
class ChangeFrame:
    """Changes as the function gets them."""

    frame: Any
    rows: int
    committed_at: int | None
    """The last commit time in them, in microseconds since 1970."""


class Frames(Protocol):
    """Makes the DataFrames that the function is called with; each is valid within its context."""

    def snapshot(self, table: TableName, at: Lsn) -> AbstractContextManager[Any]:
        """Return the rows of a table at a position."""

    def changes(self, tables: Iterable[TableImages]) -> AbstractContextManager[ChangeFrame]:
        """Return the changes of images of one table."""


class FunctionOutput(Output):
    """The only caller of the function, from `open` to its first error."""

    def __init__(
        self, function: Callable[[], SinkFunction], name: str, frames: Frames, record: CallRecord, *, started: bool
    ) -> None:
        """Create an output; `name` is that of the function, and `started` says whether a record must exist."""
        self._function, self._name, self._frames = function, name, frames
        self._record, self._started = record, started
        self.latency_ms: float | None = None
        """The time from the commit of the last transaction until the function had returned."""

    def open(self, seconds: float) -> bytes | None:
        """Read the record of calls, and require the function."""
        self._function()
        self._record.open()
        found = self._record.last
        if found is None and self._started:
            message = f"the record of the calls of function {self._name} is missing from {self._record.folder}"
            raise DefiniteError(
                message, "Restore it; or drop the sink and create it again: the function gets all rows."
            )
        return None if found is None else found.position.to_bytes()

    def begun(self) -> Lsn | None:
        """Return the end of the call that did not return."""
        return None if self._record.last is None else self._record.last.end

    def prepare(self, table: TableName) -> None:
        """Do nothing: a function needs no preparation."""

    def write(self, tables: Iterable[TableImages], position: bytes, seconds: float) -> int:
        """Call the function, if there are rows for it, and record the position."""
        reached = SinkPosition.from_bytes(position)
        before = self._record.last
        if before is None:
            self._record.write(RecordedCall(reached, None))
            return 0
        copied = before.position.copying
        if copied is not None and copied.table in reached.tables:
            with self._frames.snapshot(copied.table, reached.position) as frame:
                self._call(frame, None, reached.position)
            self._record.write(RecordedCall(reached, reached.position))
            return 0
        return self._write_changes(tables, before, reached)

    def close(self) -> None:
        """Release the record."""
        self._record.close()

    def _write_changes(self, tables: Iterable[TableImages], before: RecordedCall, reached: SinkPosition) -> int:
        with self._frames.changes(tables) as found:
            if not found.rows:
                self._record.write(replace(before, position=reached, end=None))
                return 0
            first = before.position.position if before.called is None else before.called
            self._record.write(replace(before, end=reached.position))
            self._call(found.frame, first, reached.position)
            self._record.write(RecordedCall(reached, reached.position))
        if found.committed_at is not None:
            self.latency_ms = round(time.time() * 1000 - found.committed_at / 1000, 1)
        return found.rows

    def _call(self, frame: Any, first: Lsn | None, last: Lsn) -> None:
        function = self._function()
        try:
            function(frame, first, last)
        except (Exception, SystemExit) as error:
            after = "the initial snapshot" if first is None else f"({first}, {last}]"
            message = f"function {self._name} failed with {_described(error)}, in its call with {after}"
            hint = "Penstock calls it again with the same range. Fix the function, or what it writes to."
            raise TransientError(message, hint) from error


def _described(error: BaseException) -> str:
    """Return the type of an exception, its line in the function, and its text, unless that may quote rows."""
    step = error.__traceback__.tb_next if error.__traceback__ is not None else None
    place = "" if step is None else f" at {step.tb_frame.f_globals.get('__name__', '?')}:{step.tb_lineno}"
    lines = (error.message if isinstance(error, PenstockError) else str(error)).splitlines()
    text = lines[0] if lines else ""
    package = type(error).__module__.partition(".")[0]
    is_data_error = str(getattr(error, "sqlstate", "") or "").startswith("22")  # of a database driver
    if package in _QUOTING or is_data_error:
        text = _condition(error)
    if not text:
        return f"{type(error).__name__}{place}"
    return f"{type(error).__name__}{place}: {text[:_LONGEST_TEXT]}{'…' if len(text) > _LONGEST_TEXT else ''}"


def _condition(error: BaseException) -> str:
    """Return the name that Spark gives to a kind of error, like ``DATATYPE_MISMATCH``; empty for others."""
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return condition or ""
