"""Deliver the changes of a log: the loop of a sink, apart from where tables come from and messages go to.

::

    open      the position of the last transaction of the output, or a new one: the end of the log
    step      a table that is not in the position   ─▶ its rows at the position, in parts; then it has joined
              changes after the position            ─▶ a window of all tables that have joined ─▶ one transaction
              no changes                            ─▶ wait

The output stores the position in the same atomic step as the messages, so a crash at any point repeats nothing and
skips nothing. Windows end between upstream transactions, so a transaction of the output contains whole ones.

**The start of a table.** Its rows at the position P are written first, then its changes after P: no gap, no overlap.
While they are copied, the position stays at P, and the history after the base version that they are read from is
retained.

**Continuity.** A table that was captured again has another history, and rows may have disappeared in between. The
delivery stops with an error, because the topics would keep these rows.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import pyarrow as pa

from penstock.changelog.interface import ChangeLog, ChangeLogReader, Extent, LoggedTable
from penstock.changelog.windows import Window, windows
from penstock.errors import DefiniteError, TableError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn
from penstock.sinks.position import Copying, SinkPosition
from penstock.sinks.truncates import truncates_as_deletes

__all__ = ["Delivery", "ImageNeeds", "Output", "SinkTables", "TableImages"]

_WINDOW_BYTES = 8 << 20
_BATCH_ROWS = 50_000
_IDLE_SECONDS = 10.0
"""How often the position is written while it advances over no changes."""
_LEASE_SECONDS = 2.0
_WRITE_SECONDS = 60.0
"""Brokers end a longer transaction: see `penstock.sinks.kafka.transaction_writer`."""


@dataclass(frozen=True)
class TableImages:
    """Images of one table: whole changes in order, with the columns of `schema`."""

    schema: TableSchema
    images: pa.RecordBatch


@dataclass(frozen=True)
class ImageNeeds:
    """What an output needs of images beyond what the log has."""

    whole_rows: bool
    """Values that the log omits are filled in."""
    deletes_for_truncate: bool
    """A TRUNCATE is replaced by the deletes of all rows."""


class Output(Protocol):
    """Where messages go: all or nothing, with the position."""

    def open(self, seconds: float) -> bytes | None:
        """Become the only writer; return the last position, or None."""

    def prepare(self, table: TableName) -> None:
        """Make room for a table that joins."""

    def write(self, tables: Iterable[TableImages], position: bytes, seconds: float) -> int:
        """Write the messages of these images and the position; return the number of messages."""

    def begun(self) -> Lsn | None:
        """Return the end of a window that was begun before, and must be the next one; None if any may be."""
        return None

    def close(self) -> None:
        """Stop writing; what is not committed is discarded."""


class SinkTables(ABC):
    """The tables of a sink, and their rows at a position."""

    @abstractmethod
    def states(self) -> Mapping[TableName, bool | DefiniteError]:
        """Return the tables that the sink includes, each with whether its initial snapshot is complete, or its error.

        The error of a table that has joined is in the log, at its position.
        """

    @abstractmethod
    def base(self, table: TableName, at: Lsn) -> tuple[int, Lsn] | None:
        """Return the version and the position of the newest base of a table at or before a position, or None."""

    @abstractmethod
    def rows(self, table: TableName, at: Lsn, version: int, base: Lsn) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """Return the columns of a table at a position, and its rows as images: the same in the same order each time."""

    @abstractmethod
    def current_rows(self, schema: TableSchema, at: Lsn) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table at a position, with the columns of `schema`."""

    @abstractmethod
    def complete(self, images: pa.RecordBatch, schema: TableSchema, after: Lsn) -> pa.RecordBatch:
        """Return images of a range that begins after a position with the values that the log omits."""


class Delivery:
    """The delivery of one log to one output, from `open` to its first error; used by one thread."""

    def __init__(
        self, name: str, log: ChangeLog, tables: SinkTables, output: Output, *, snapshot: bool, needs: ImageNeeds
    ) -> None:
        """Create a delivery; `name` is that of its lease."""
        self._name, self._log, self._tables, self._output = name, log, tables, output
        self._snapshot, self._needs = snapshot, needs
        self._reader: ChangeLogReader = log.reader()
        self._state: SinkPosition | None = None
        self._committed: SinkPosition | None = None
        self._copied: tuple[TableSchema, Iterator[pa.RecordBatch]] | None = None
        self._leased: Lsn | None = None
        self._leased_at = self._written_at = 0.0
        self.messages = 0
        """The number of messages that were written."""
        self.fault: TableError | None = None
        """An error that reading found in a window, and that the log does not have (a rejected message): delivery ends
        before it, and raises it then."""
        self._began = time.monotonic()

    @property
    def batch_seconds(self) -> float:
        """The time since the last batch had its changes or rows to write."""
        return time.monotonic() - self._began

    @property
    def position(self) -> SinkPosition | None:
        """The position of the last transaction of the output; None before the first."""
        return self._committed

    def open(self, seconds: float, *, started: bool) -> None:
        """Find the position; `started` says whether the sink has written one before."""
        found = self._output.open(seconds)
        if found is not None:
            self._state = self._committed = SinkPosition.from_bytes(found)
            self._lease(self._state, always=True)
        elif started:
            message = "the position of the sink is missing from its positions topic"
            hint = (
                "The topic was deleted or replaced. Drop the sink and create it again: its topics get all rows again."
            )
            raise DefiniteError(message, hint)
        elif self._held() is None:
            self._reader.set_lease(self._name, self._reader.frontiers().durable)

    def _held(self) -> Lsn | None:
        """Return the position after which history is retained for this delivery."""
        return next((lease.at for lease in self._reader.leases() if lease.reader == self._name), None)

    def step(self, seconds: float) -> bool:
        """Deliver a part of what is left; wait up to `seconds` if nothing is. Return whether anything was written."""
        self._began = time.monotonic()
        if self._state is None:
            return self._begin(seconds)
        state = self._state = self._without_dropped(self._state)
        logged = self._reader.tables()
        _check_generations(state, logged)
        if state.copying is None:
            state = self._state = self._join(state, logged)
        if state.copying is not None:
            self._copy(state, state.copying, logged)
            return True
        durable = self._reader.wait(state.position, seconds).durable
        self._began = time.monotonic()
        logged = self._reader.tables()  # after `durable`: with all errors up to there
        _check_generations(state, logged)
        upto, error = _readable(state, logged, durable, self.fault)
        if upto <= state.position and error is not None:
            raise error
        return self._changes(state, logged, self._next_start(state, logged, upto))

    def close(self) -> None:
        """Close the log and the output; the lease stays."""
        self._output.close()
        self._reader.close()

    # -- start -----------------------------------------------------------------------------------------------------

    def _begin(self, seconds: float) -> bool:
        """Start when each table has its initial snapshot: with rows, at the end of the log; without, at the lease."""
        states = {name: _complete(state) for name, state in self._tables.states().items()}
        durable = self._reader.frontiers().durable
        if not states or not all(states.values()):
            self._reader.wait(durable, seconds)
            return False
        held = self._held()
        self._write((), SinkPosition(durable if self._snapshot or held is None else held))
        return True

    def _without_dropped(self, state: SinkPosition) -> SinkPosition:
        """Forget the tables that are no longer part of the sink."""
        wanted = self._tables.states().keys()
        for gone in state.tables.keys() - wanted:
            state = state.without(gone)
        if state.copying is not None and state.copying.table not in wanted:
            state, self._copied = replace(state, copying=None), None
        return state

    def _join(self, state: SinkPosition, logged: Mapping[TableName, LoggedTable]) -> SinkPosition:
        """Let tables join that are readable at the position, up to the first whose rows are to be copied."""
        for name in self._joining(state, logged):
            if not self._snapshot:
                if logged[name].valid <= state.position:
                    self._output.prepare(name)
                    state = self._write((), state.joined(name, logged[name].generation))
                continue
            base = self._tables.base(name, state.position)
            if base is not None and base[1] >= logged[name].valid:  # otherwise its history begins later
                self._output.prepare(name)
                state = replace(state, copying=Copying(name, *base))
                self._lease(state, always=True)
                return self._write((), state)  # after a crash, the history after the base is still retained
        return state

    def _joining(self, state: SinkPosition, logged: Mapping[TableName, LoggedTable]) -> list[TableName]:
        """Return the tables that have not joined; one whose rows are not copied need not have any yet."""
        states = sorted(self._tables.states().items(), key=lambda item: item[0])
        names = [name for name, found in states if _complete(found) or not self._snapshot]
        return [name for name in names if name in logged and name not in state.tables]

    def _next_start(self, state: SinkPosition, logged: Mapping[TableName, LoggedTable], upto: Lsn) -> Lsn:
        """Return `upto`, or the start of a table's history before it: without rows, the table joins exactly there."""
        starts = [] if self._snapshot else [logged[name].valid for name in self._joining(state, logged)]
        return min([upto, *(start for start in starts if start > state.position)])

    def _copy(self, state: SinkPosition, copying: Copying, logged: Mapping[TableName, LoggedTable]) -> None:
        """Write one part of the rows of the table that joins."""
        if self._copied is None:
            schema, rows = self._tables.rows(copying.table, state.position, copying.version, copying.base)
            self._copied = schema, _skipped(rows, copying.rows)
        schema, rows = self._copied
        part = next(rows, None)
        if part is None:
            self._copied = None
            self._write((), state.joined(copying.table, logged[copying.table].generation))
        else:
            written = replace(copying, rows=copying.rows + len(part))
            self._write([TableImages(schema, part)], replace(state, copying=written))

    # -- changes ---------------------------------------------------------------------------------------------------

    def _changes(self, state: SinkPosition, logged: Mapping[TableName, LoggedTable], upto: Lsn) -> bool:
        """Write the next window with changes, or advance to `upto`."""
        for window in self._windows(state, upto):
            state = state.at(window.upto)
            if window.extents:
                self._write(self._images(logged, window), state)
                return True
        self._state = state
        if state != self._committed and time.monotonic() > self._written_at + _IDLE_SECONDS:
            self._write((), state)
        self._lease(state)  # the last write may have skipped it
        return False

    def _windows(self, state: SinkPosition, upto: Lsn) -> Iterator[Window]:
        """Divide the log up to a position; a window that was begun before is the same again."""
        end = self._output.begun()
        if end is None:
            yield from windows(self._reader, state.tables.keys(), state.position, upto, _WINDOW_BYTES)
            return
        found = [self._reader.extent(table, state.position, end) for table in sorted(state.tables)]
        yield Window(state.position, end, tuple(extent for extent in found if extent.chunks))

    def _images(self, logged: Mapping[TableName, LoggedTable], window: Window) -> Iterator[TableImages]:
        for extent in window.extents:
            schema = logged[extent.table].schema_at(window.upto)
            for images in self._whole_changes(extent, schema):
                yield TableImages(schema, images)

    def _whole_changes(self, extent: Extent, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Yield the images of an extent in batches that do not end within a change."""
        batches = self._reader.read(extent, schema.columns)
        truncated = self._needs.deletes_for_truncate and extent.has(Image.TRUNCATE)
        if truncated or (extent.unchanged and self._needs.whole_rows):
            images = _combined(list(batches))
            if images is not None:
                images = self._tables.complete(images, schema, extent.after)
                if truncated:
                    images = truncates_as_deletes(
                        images, schema, partial(self._tables.current_rows, schema, extent.after)
                    )
                yield images
            return
        rest: list[pa.RecordBatch] = []
        for batch in batches:
            rest.append(batch)
            if sum(map(len, rest)) >= _BATCH_ROWS:
                images = _combined(rest)
                assert images is not None
                kept = 1 if images.column("_image")[-1].as_py() in (Image.BEFORE, Image.BEFORE_KEY) else 0
                yield images.slice(0, len(images) - kept)
                rest = [images.slice(len(images) - kept)] if kept else []
        images = _combined(rest)
        if images is not None:
            yield images

    # -- output ----------------------------------------------------------------------------------------------------

    def _write(self, tables: Iterable[TableImages], state: SinkPosition) -> SinkPosition:
        self.messages += self._output.write(tables, state.to_bytes(), _WRITE_SECONDS)
        self._state = self._committed = state
        self._written_at = time.monotonic()
        self._lease(state)
        return state

    def _lease(self, state: SinkPosition, *, always: bool = False) -> None:
        """Retain the history after the last written position, and after the base version that is copied."""
        if not always and time.monotonic() < self._leased_at + _LEASE_SECONDS:
            return
        at = state.position if self._committed is None else self._committed.position
        at = at if state.copying is None else Lsn(min(at, state.copying.base))
        if at != self._leased:
            self._reader.set_lease(self._name, at)
            self._leased = at
        self._leased_at = time.monotonic()


def _complete(state: bool | DefiniteError) -> bool:
    """Return whether the initial snapshot of a table is complete; raise its error."""
    if isinstance(state, DefiniteError):
        raise state
    return state


def _check_generations(state: SinkPosition, logged: Mapping[TableName, LoggedTable]) -> None:
    for name, generation in state.tables.items():
        if name in logged and logged[name].generation != generation:
            message = f"{name} was captured again, and the sink cannot tell which rows disappeared in between"
            raise DefiniteError(message, "Drop the sink, delete what it has written, and create the sink again.")


def _readable(
    state: SinkPosition, logged: Mapping[TableName, LoggedTable], durable: Lsn, fault: TableError | None
) -> tuple[Lsn, DefiniteError | None]:
    """Return the position up to which all tables are readable, and the error that follows it, if any."""
    errors = [*(logged[name].error for name in state.tables if name in logged), fault]
    first = min((error for error in errors if error is not None), key=lambda error: error.lsn, default=None)
    if first is None or first.lsn > durable:
        return durable, None
    return Lsn(first.lsn - 1), first


def _combined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    if not batches:
        return None
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _skipped(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield batches without their first `rows` rows."""
    for batch in batches:
        if rows >= len(batch):
            rows -= len(batch)
            continue
        yield batch.slice(rows)
        rows = 0
