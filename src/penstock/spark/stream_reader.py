"""Streaming queries with ``spark.readStream``.

**Offsets.** An offset is JSON in Spark's checkpoint, and contains everything needed to plan the same batch again::

    {"start": "latest"}                       nothing was read yet, and the start is not determined
    {"lsn": "16/B374D848"}                    everything up to this transaction was read
    {"lsn": …, "bases": {…}, "read": 3, "of": 7}   of the tables at this position, 3 of 7 pieces were read

Spark requests the initial offset again whenever it repeats the first batch. So anything that depends on the current
time (latest, a time, the current state of a table) is not in that offset but in the one that ends the first batch,
which Spark stores before it runs the batch. With ``latest``, that first batch is empty: it determines the start.

Offsets are positions of transactions, hence a batch never ends within a transaction. The log returns the same rows
for the same range, hence a repeated batch is identical.

A query retains the part of the log that it still needs by a lease, or by the position of a registered reader (option
`reader`).

**The end of a micro-batch** is after the given number of changes or bytes, and always between transactions. Chunks
record their number of rows, and their first and last transaction. Whole chunks of all tables are taken, in order of
their end, while they fit. The first chunk that does not fit may contain many transactions, and so may the chunks that
overlap with it: their positions are read, to end after the last transaction that fits. At least one transaction is
always taken; otherwise a stream would be stuck at a transaction larger than the limit.

**Small micro-batches** are prefetched: their rows are passed to Spark with the plan, without a Python task. Spark can
take rows from the planning process, store them as a block, and pass that block to the only task of the batch. It does
so for simple readers, which it wraps in an internal class and recognizes by `isinstance`. A `PrefetchingReader` passes
that check exactly while it has prefetched rows. At all other times it is an ordinary reader, so that Spark's other
calls (limits, progress) are not affected. On two cores this saves a fifth of the time of a small batch.

The class is not part of Spark's public API. If it is missing, tasks read all batches. If a block is lost, Spark lets a
task read the piece instead: the rows are the same.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.changelog.interface import ChangeLogReader, Extent
from penstock.errors import DefiniteError, HistoryExpiredError, UsageError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.spark.input_partitions import CombinedPiece, EmptyPiece, Piece, log_pieces, read_piece
from penstock.spark.source_options import EARLIEST, LATEST, PenstockOptions, Rows, Shape, TableSelection, parse_position
from penstock.spark.table_snapshot import Snapshot

__all__ = ["Limits", "PenstockStreamReader", "PrefetchingReader", "StreamPlanner", "check_stream_options"]

_Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """The maximum size of a micro-batch; None for no limit."""

    rows: int | None = None
    size: int | None = None

    def end(self, log: ChangeLogReader, extents: Sequence[Extent], upto: Lsn) -> Lsn:
        """Return the position at which the batch ends, at most `upto`."""
        if self.rows is None and self.size is None:
            return upto
        parts = [replace(extent, chunks=(chunk,)) for extent in extents for chunk in extent.chunks]
        parts.sort(key=lambda part: part.chunks[0].last)
        fitting = self._whole(parts)
        if fitting == len(parts):
            return upto
        reach = parts[fitting].chunks[0].last
        mixed = [part for part in parts[fitting:] if part.chunks[0].first <= reach]
        begins = min(part.chunks[0].first for part in mixed)
        disjoint = [part for part in parts[:fitting] if part.chunks[0].last < begins]
        return min(upto, self._within(log, disjoint, parts[len(disjoint) : fitting] + mixed, reach))

    def _whole(self, parts: Sequence[Extent]) -> int:
        """Return how many whole chunks fit."""
        rows = size = 0
        for number, part in enumerate(parts):
            rows, size = rows + part.rows, size + part.size
            if not self._fits(rows, size):
                return number
        return len(parts)

    def _within(self, log: ChangeLogReader, disjoint: Sequence[Extent], mixed: Sequence[Extent], reach: Lsn) -> Lsn:
        """Find the last transaction of overlapping chunks that fits together with the chunks before them."""
        lsns, sizes = self._positions(log, mixed)
        positions, at = np.unique(lsns, return_inverse=True)
        rows = sum(part.rows for part in disjoint) + np.cumsum(np.bincount(at))
        size = sum(part.size for part in disjoint) + np.cumsum(np.bincount(at, sizes))
        fits = (positions <= reach) & (rows <= (self.rows or np.inf)) & (size <= (self.size or np.inf))
        if fits.any():
            return Lsn(int(positions[fits][-1]))
        return disjoint[-1].chunks[0].last if disjoint else Lsn(int(positions[0]))

    def _positions(self, log: ChangeLogReader, parts: Sequence[Extent]) -> tuple[_Numbers, _Numbers]:
        """Return the position and the approximate size in bytes of each image of some chunks."""
        found = [(_lsns(log, part), part.size / max(1, part.rows)) for part in parts]
        sizes = [np.full(len(lsns), each) for lsns, each in found]
        return np.concatenate([lsns for lsns, _ in found]), np.concatenate(sizes)

    def _fits(self, rows: float, size: float) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.size is None or size <= self.size)


def _lsns(log: ChangeLogReader, part: Extent) -> _Numbers:
    """Return the positions in one chunk; a chunk of a single transaction, possibly a very large one, is not read."""
    (chunk,) = part.chunks
    if chunk.first == chunk.last:
        return np.full(chunk.rows, int(chunk.last))
    return np.concatenate([batch.column("_lsn").to_numpy() for batch in log.read(part)])


try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _SimpleReader
except ImportError:  # another version of Spark
    _SimpleReader = None  # type: ignore[assignment,misc]

_SMALL_ROWS = 5_000


class PrefetchingReader:
    """A reader that prefetches small batches."""

    _prefetched: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Spark's internal class while there are prefetched rows."""
        return type(self) if self._prefetched is None else _SimpleReader

    def prefetch(self, pieces: Sequence[Piece], shape: Shape) -> list[Piece]:
        """Prefetch the pieces if they are small, and return one piece for them; otherwise return them."""
        if _SimpleReader is None or sum(piece.rows for piece in pieces) > _SMALL_ROWS:
            return list(pieces)
        whole = CombinedPiece(pieces) if pieces else EmptyPiece()
        self._prefetched = list(whole.read(shape))
        return [whole]

    def getCache(self, start: object, end: object) -> Iterator[pa.RecordBatch] | None:
        """Return the prefetched rows, as Spark's internal class does."""
        prefetched, self._prefetched = self._prefetched, None
        return None if prefetched is None else iter(prefetched)


_WAIT_SECONDS = 0.05
_LEASE_SECONDS = 600.0
_MOVE_SECONDS = 2.0
_IDLE_ADVANCE_SECONDS = 60.0
"""The time after which an empty batch advances the checkpoint of a query on idle tables, to release history."""

_Offset = dict[str, Any]


class PenstockStreamReader(PrefetchingReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a query in a process beside the driver, and reads them in tasks."""

    def __init__(self, options: PenstockOptions, columns: Sequence[str]) -> None:
        check_stream_options(options)
        self._options = options
        self._columns = list(columns)
        self._shape = TableSelection(options).shape
        self._driver: StreamPlanner | None = None

    def initialOffset(self) -> _Offset:
        """Return the offset of a query without a checkpoint; always the same."""
        return self._planner.initial()

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the end of the next micro-batch, or `start` if there is nothing to read."""
        return self._planner.end(start, limit)

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """Divide a micro-batch into tasks."""
        return self.prefetch(self._planner.pieces(start, end), self._shape)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one piece, in a task."""
        return read_piece(partition, self._shape)

    def commit(self, end: _Offset) -> None:
        """Release the log before the next batch: Spark calls this when that batch is about to run."""
        self._planner.commit(end)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the position at which the query ends."""
        self._planner.stop_at_end_of_log()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        return self._planner.default_limit()

    def reportLatestOffset(self) -> _Offset | None:
        """Return the end of the log, for the progress report of the query."""
        return self._planner.latest()

    def stop(self) -> None:
        """Release the lease. Spark does not always call this; a lease also expires."""
        self._planner.release()

    @property
    def _planner(self) -> StreamPlanner:
        """The planner, created on first use; tasks never use it."""
        if self._driver is None:
            self._driver = StreamPlanner(TableSelection(self._options), self._columns)
        return self._driver


def check_stream_options(options: PenstockOptions) -> None:
    """Raise `UsageError` for options that a stream does not have."""
    if options.rows is Rows.LIVE:
        message = "rows=live is not valid for a stream"
        raise UsageError(message, "Set rows=changes or rows=updates, or read the live table as a batch (spark.read).")
    if options.ending_position != LATEST:
        message = "option endingPosition is not valid for a stream"
        raise UsageError(message, "Remove the option, or read a batch (spark.read).")


class StreamPlanner:
    """Plans the micro-batches of one log: offsets, their pieces, and the lease on what they need."""

    def __init__(self, chosen: TableSelection, columns: Sequence[str]) -> None:
        self._chosen = chosen
        self._columns = chosen.columns(columns)
        self._seen = Lsn.ZERO
        self._target: Lsn | None = None
        self._moved = time.monotonic()
        self._lease = _Lease(chosen)

    # -- offsets ----------------------------------------------------------------------------------------------------

    def initial(self) -> _Offset:
        """Return the offset of a query without a checkpoint."""
        text = self._chosen.options.starting_position or LATEST
        fixed = None if text == EARLIEST else parse_position(text)
        return {"lsn": str(fixed)} if isinstance(fixed, Lsn) else {"start": text}

    def end(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the end of the next micro-batch, or `start` if there is nothing to read."""
        self._lease.renew(start)
        if "start" in start:
            return self._resolve_start(start["start"], limit)
        if start.get("read", 0) < start.get("of", 0):
            return self._advance_snapshot(start, limit)
        after = Lsn.parse(start["lsn"])
        upto = self._newest(after, limit)
        return start if upto <= after else {"lsn": str(upto)}

    def latest(self) -> _Offset:
        """Return the end of the log."""
        return {"lsn": str(self._chosen.reader().frontiers().durable)}

    def stop_at_end_of_log(self) -> None:
        """Fix the position at which the query ends."""
        self._target = self._chosen.reader().frontiers().durable

    def default_limit(self) -> ReadLimit:
        """Return the limit that the options set."""
        options = self._chosen.options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadMaxBytes(options.max_bytes or 1 << 62)

    def commit(self, end: _Offset) -> None:
        """Release the log before the next batch."""
        self._lease.move(end)

    def release(self) -> None:
        """Release the lease."""
        self._lease.release()

    def _resolve_start(self, text: str, limit: ReadLimit) -> _Offset:
        """Determine the start now, and take a lease on it."""
        if text == EARLIEST:
            snapshot = Snapshot.choose(self._chosen, self._reach(self._chosen.readable()), self._columns)
            start = {"lsn": str(snapshot.at), "bases": snapshot.bases(), "read": 0, "of": len(snapshot.pieces())}
            self._lease.renew(start)
            return self._advance_snapshot(start, limit)
        start = {"lsn": str(self._chosen.position(text))}
        self._lease.renew(start)
        return start

    def _advance_snapshot(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Take as many pieces of the tables as the limit allows, at least one."""
        pieces = self._snapshot(start).pieces()
        limits, taken, rows = self._limits(limit), start["read"], 0
        while taken < len(pieces) and (not rows or limits.rows is None or rows + pieces[taken].rows <= limits.rows):
            rows += pieces[taken].rows
            taken += 1
        return {**start, "read": taken}

    def _newest(self, after: Lsn, limit: ReadLimit) -> Lsn:
        """Wait briefly for new changes; return the end of those after `after`.

        Transactions that do not touch these tables start no batch. A permanent error is raised after all changes before
        it have been returned.
        """
        log = self._chosen.reader()
        self._seen = durable = log.wait(self._seen, _WAIT_SECONDS).durable
        reach = self._reach(durable)
        error = self._chosen.error()
        upto = reach if error is None else Lsn(min(reach, error.lsn - 1))
        if upto > after:
            extents = [log.extent(name, after, upto) for name in self._chosen.names]
            if any(extent.chunks for extent in extents) or self._should_advance():
                self._moved = time.monotonic()
                return self._limits(limit).end(log, extents, upto)
        if error is not None and reach >= error.lsn:
            raise error
        return after

    def _reach(self, position: Lsn) -> Lsn:
        """Return a position, or the end of the query if that is earlier."""
        return position if self._target is None else Lsn(min(position, self._target))

    def _should_advance(self) -> bool:
        return self._target is None and time.monotonic() - self._moved > _IDLE_ADVANCE_SECONDS

    def _limits(self, limit: ReadLimit) -> Limits:
        options = self._chosen.options
        rows, size = options.max_rows, options.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        return Limits(rows, size)

    # -- pieces -----------------------------------------------------------------------------------------------------

    def pieces(self, start: _Offset, end: _Offset) -> list[Piece]:
        """Return the pieces of a micro-batch."""
        if end.get("read", 0) > start.get("read", 0):
            return self._snapshot(end).pieces()[start.get("read", 0) : end["read"]]
        if "start" in start:
            return []
        after, upto = Lsn.parse(start["lsn"]), Lsn.parse(end["lsn"])
        self._chosen.check_readable(upto)
        return [
            piece
            for name in self._chosen.names
            for piece in log_pieces(self._chosen.log, self._extent(name, after, upto), self._columns[name])
        ]

    def _extent(self, name: TableName, after: Lsn, upto: Lsn) -> Extent:
        try:
            return self._chosen.reader().extent(name, after, upto)
        except HistoryExpiredError as expired:
            raise DefiniteError(expired.message, _EXPIRED_HINT) from expired

    def _snapshot(self, offset: Mapping[str, Any]) -> Snapshot:
        return Snapshot.restore(self._chosen, Lsn.parse(offset["lsn"]), offset["bases"], self._columns)


_EXPIRED_HINT = (
    "Start a new query, with a new checkpoint and startingPosition=earliest. To retain history while a query is"
    " stopped, set the option `reader`, or increase the retention of the source."
)


class _Lease:
    """The lease of a query on the log."""

    def __init__(self, chosen: TableSelection) -> None:
        self._chosen = chosen
        self._registered = chosen.options.reader
        self._name = f"reader {self._registered}" if self._registered else f"query {uuid.uuid4().hex[:12]}"
        self._at: Lsn | None = None
        self._renew = self._move = 0.0

    def renew(self, offset: _Offset) -> None:
        """Retain the log after an offset, from the first call on; renew the lease in time."""
        if "start" not in offset and (self._at is None or time.monotonic() >= self._renew):
            self._set(self._at or self._needed(offset))

    def move(self, offset: _Offset) -> None:
        """Release the log up to an offset; not on every call, because this is a write."""
        if time.monotonic() >= self._move:
            self._move = time.monotonic() + _MOVE_SECONDS
            self._set(self._needed(offset))

    def release(self) -> None:
        if self._registered is None and self._at is not None:
            self._chosen.reader().set_lease(self._name, None)

    def _needed(self, offset: _Offset) -> Lsn:
        if offset.get("read", 0) < offset.get("of", 0):
            return min(Lsn.parse(position) for _, position in offset["bases"].values())
        return Lsn.parse(offset["lsn"])

    def _set(self, at: Lsn) -> None:
        if at == self._at and time.monotonic() < self._renew:
            return
        try:
            self._chosen.reader().set_lease(self._name, at, None if self._registered else _LEASE_SECONDS)
        except HistoryExpiredError as expired:
            raise DefiniteError(expired.message, _EXPIRED_HINT) from expired
        self._at, self._renew = at, time.monotonic() + _LEASE_SECONDS / 3
