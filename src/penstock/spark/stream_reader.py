"""Following tables with ``readStream``.

An offset is JSON in Spark's checkpoint, and holds all that is needed to plan the same batch again::

    {"start": "latest"}                       nothing was read yet, and where to begin is not fixed
    {"lsn": "16/B374D848"}                    everything up to this transaction was read
    {"lsn": …, "bases": {…}, "read": 3, "of": 7}   of the tables as they were at this position, 3 of 7 pieces were read

Spark asks for the first offset anew whenever it repeats the first batch. So what depends on the moment (latest, a
time, the present state of a table) is not in that offset, but in the one that ends the first batch, which Spark
stores before it runs. With ``latest`` that first batch is empty: it fixes the place.

Offsets are positions of transactions, hence a batch never ends within one. The log gives a range as the same rows each
time, hence a batch that Spark repeats is the same.

A query keeps what it still needs in the log by a pin: a lease, or the mark of a registered reader (option `reader`).

Where a micro-batch ends: after so many changes or bytes, and always between transactions.

Chunks say how many rows they hold and from which to which transaction. Whole chunks are taken, over all tables by where
they end, while they fit. The one that does not fit may hold many transactions, and so may those that overlap with it:
their positions are read, to end after the last transaction that fits. At least one transaction is always taken,
or a stream would stand still before one that is larger than the limit.

Small micro-batches are handed to Spark with their plan: no Python task has to start for them.

Spark can take rows from the process that plans, keep them as a block, and give that block to the one task of the batch.
It does so for what it calls simple readers, which it wraps in a class of its own, and tells those by `isinstance`. A
reader of this kind passes for one exactly while rows are waiting to be taken, and is itself at all other times, so that
all else that Spark asks of it (limits, progress) stays as it is. On two cores this saves a fifth of a small batch.

The class is not part of Spark's interface. Where it is missing, all batches are read by tasks. Where a block is lost,
Spark has a task read the piece instead: the rows are the same.
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
from penstock.spark.pieces import Nothing, Piece, Together, log_pieces, read_piece
from penstock.spark.snapshot import Snapshot
from penstock.spark.source_options import EARLIEST, LATEST, Chosen, PenstockOptions, Rows, Shape, parse_position

__all__ = ["HandsOver", "Limits", "PenstockStreamReader"]

_Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """How much a micro-batch may hold; None: no limit."""

    rows: int | None = None
    size: int | None = None

    def end(self, log: ChangeLogReader, extents: Sequence[Extent], upto: Lsn) -> Lsn:
        """Return the position at which to end, `upto` at most."""
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
        apart = [part for part in parts[:fitting] if part.chunks[0].last < begins]
        return min(upto, self._within(log, apart, parts[len(apart) : fitting] + mixed, reach))

    def _whole(self, parts: Sequence[Extent]) -> int:
        """Return how many chunks fit whole."""
        rows = size = 0
        for number, part in enumerate(parts):
            rows, size = rows + part.rows, size + part.size
            if not self._fits(rows, size):
                return number
        return len(parts)

    def _within(self, log: ChangeLogReader, apart: Sequence[Extent], mixed: Sequence[Extent], reach: Lsn) -> Lsn:
        """Look for the last transaction of overlapping chunks that fits together with what lies before them."""
        lsns, sizes = self._positions(log, mixed)
        positions, at = np.unique(lsns, return_inverse=True)
        rows = sum(part.rows for part in apart) + np.cumsum(np.bincount(at))
        size = sum(part.size for part in apart) + np.cumsum(np.bincount(at, sizes))
        fits = (positions <= reach) & (rows <= (self.rows or np.inf)) & (size <= (self.size or np.inf))
        if fits.any():
            return Lsn(int(positions[fits][-1]))
        return apart[-1].chunks[0].last if apart else Lsn(int(positions[0]))

    def _positions(self, log: ChangeLogReader, parts: Sequence[Extent]) -> tuple[_Numbers, _Numbers]:
        """Return the position of each image of some chunks, and about how many bytes it has."""
        found = [(_lsns(log, part), part.size / max(1, part.rows)) for part in parts]
        sizes = [np.full(len(lsns), each) for lsns, each in found]
        return np.concatenate([lsns for lsns, _ in found]), np.concatenate(sizes)

    def _fits(self, rows: float, size: float) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.size is None or size <= self.size)


def _lsns(log: ChangeLogReader, part: Extent) -> _Numbers:
    """Return the positions in one chunk; one of a single transaction, which may have very many, is not read."""
    (chunk,) = part.chunks
    if chunk.first == chunk.last:
        return np.full(chunk.rows, int(chunk.last))
    return np.concatenate([batch.column("_lsn").to_numpy() for batch in log.read(part)])


try:
    from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper as _Taken
except ImportError:  # another Spark
    _Taken = None  # type: ignore[assignment,misc]

_SMALL_ROWS = 5_000


class HandsOver:
    """What a reader needs to hand small batches over."""

    _waiting: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """Spark's own class, while rows wait."""
        return type(self) if self._waiting is None else _Taken

    def hand_over(self, pieces: Sequence[Piece], shape: Shape) -> list[Piece]:
        """Read pieces here if they are small, and return the one that stands for them; else return them."""
        if _Taken is None or sum(piece.rows for piece in pieces) > _SMALL_ROWS:
            return list(pieces)
        whole = Together(pieces) if pieces else Nothing()
        self._waiting = list(whole.read(shape))
        return [whole]

    def getCache(self, start: object, end: object) -> Iterator[pa.RecordBatch] | None:
        """Give the rows that wait, as Spark's class would."""
        waiting, self._waiting = self._waiting, None
        return None if waiting is None else iter(waiting)


_PATIENCE_SECONDS = 0.05
_LEASE_SECONDS = 600.0
_MOVE_SECONDS = 2.0
_MOVE_ON_SECONDS = 60.0
"""After how long a batch without rows moves the checkpoint of a query whose tables are idle: history can then go."""

_Offset = dict[str, Any]


class PenstockStreamReader(HandsOver, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of a query, in one process beside the driver; and reads them, in tasks."""

    def __init__(self, options: PenstockOptions, columns: Sequence[str]) -> None:
        if options.rows is Rows.LIVE:
            message = "a stream has no rows=live"
            raise UsageError(message, "Read changes or updates as a stream, and live tables as a batch (spark.read).")
        if options.ending_position != LATEST:
            message = "a stream has no endingPosition"
            raise UsageError(message, "Leave it out, or read a batch (spark.read).")
        self._options = options
        self._columns = list(columns)
        self._shape = Chosen(options).shape
        self._driver: _Planner | None = None

    def initialOffset(self) -> _Offset:
        """Return where a query without a checkpoint begins: always the same."""
        return self._planner.beginning()

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return where the next micro-batch ends; `start` when there is nothing to read."""
        return self._planner.end(start, limit)

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """Divide a micro-batch into tasks."""
        return self.hand_over(self._planner.pieces(start, end), self._shape)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in a task."""
        return read_piece(partition, self._shape)

    def commit(self, end: _Offset) -> None:
        """Let go of what lies before the batch that follows: Spark calls this when that one is about to run."""
        self._planner.keep(end)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix where the query ends."""
        self._planner.stop_at_present()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options name."""
        return self._planner.default_limit()

    def reportLatestOffset(self) -> _Offset | None:
        """Return how far the log goes, for the query's progress."""
        return self._planner.latest()

    def stop(self) -> None:
        """Give up a lease. Spark does not always call this: it expires by itself."""
        self._planner.let_go()

    @property
    def _planner(self) -> _Planner:
        """What plans, made by the first that asks: tasks never do."""
        if self._driver is None:
            self._driver = _Planner(Chosen(self._options), self._columns)
        return self._driver


class _Planner:
    def __init__(self, chosen: Chosen, columns: Sequence[str]) -> None:
        self._chosen = chosen
        self._columns = chosen.columns(columns)
        self._seen = Lsn.ZERO
        self._target: Lsn | None = None
        self._moved = time.monotonic()
        self._pin = _Pin(chosen)

    # -- offsets ----------------------------------------------------------------------------------------------------

    def beginning(self) -> _Offset:
        text = self._chosen.options.starting_position or LATEST
        fixed = None if text == EARLIEST else parse_position(text)
        return {"lsn": str(fixed)} if isinstance(fixed, Lsn) else {"start": text}

    def end(self, start: _Offset, limit: ReadLimit) -> _Offset:
        self._pin.hold(start)
        if "start" in start:
            return self._fixed(start["start"], limit)
        if start.get("read", 0) < start.get("of", 0):
            return self._further_in_snapshot(start, limit)
        after = Lsn.parse(start["lsn"])
        upto = self._newest(after, limit)
        return start if upto <= after else {"lsn": str(upto)}

    def latest(self) -> _Offset:
        return {"lsn": str(self._chosen.reader().frontiers().durable)}

    def stop_at_present(self) -> None:
        self._target = self._chosen.reader().frontiers().durable

    def default_limit(self) -> ReadLimit:
        options = self._chosen.options
        if options.max_rows is not None:
            return ReadMaxRows(options.max_rows)
        return ReadMaxBytes(options.max_bytes or 1 << 62)

    def keep(self, end: _Offset) -> None:
        self._pin.move(end)

    def let_go(self) -> None:
        self._pin.let_go()

    def _fixed(self, text: str, limit: ReadLimit) -> _Offset:
        """Choose now where to begin, and hold what that needs."""
        if text == EARLIEST:
            snapshot = Snapshot.choose(self._chosen, self._reach(self._chosen.readable()), self._columns)
            start = {"lsn": str(snapshot.at), "bases": snapshot.bases(), "read": 0, "of": len(snapshot.pieces())}
            self._pin.hold(start)
            return self._further_in_snapshot(start, limit)
        start = {"lsn": str(self._chosen.position(text))}
        self._pin.hold(start)
        return start

    def _further_in_snapshot(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Take as many pieces of the tables as the limit allows, one at least."""
        pieces = self._snapshot(start).pieces()
        limits, taken, rows = self._limits(limit), start["read"], 0
        while taken < len(pieces) and (not rows or limits.rows is None or rows + pieces[taken].rows <= limits.rows):
            rows += pieces[taken].rows
            taken += 1
        return {**start, "read": taken}

    def _newest(self, after: Lsn, limit: ReadLimit) -> Lsn:
        """Wait a moment for something new; return where changes after `after` end.

        Transactions that do not touch these tables start no batch. A definite error is told when all before it has
        been given.
        """
        log = self._chosen.reader()
        self._seen = durable = log.wait(self._seen, _PATIENCE_SECONDS).durable
        reach = self._reach(durable)
        error = self._chosen.error()
        upto = reach if error is None else Lsn(min(reach, error.lsn - 1))
        if upto > after:
            extents = [log.extent(name, after, upto) for name in self._chosen.names]
            if any(extent.chunks for extent in extents) or self._should_move_on():
                self._moved = time.monotonic()
                return self._limits(limit).end(log, extents, upto)
        if error is not None and reach >= error.lsn:
            raise error
        return after

    def _reach(self, position: Lsn) -> Lsn:
        """Return a position, or where the query is to end if that is before it."""
        return position if self._target is None else Lsn(min(position, self._target))

    def _should_move_on(self) -> bool:
        return self._target is None and time.monotonic() - self._moved > _MOVE_ON_SECONDS

    def _limits(self, limit: ReadLimit) -> Limits:
        options = self._chosen.options
        rows, size = options.max_rows, options.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        return Limits(rows, size)

    # -- pieces -----------------------------------------------------------------------------------------------------

    def pieces(self, start: _Offset, end: _Offset) -> list[Piece]:
        if end.get("read", 0) > start.get("read", 0):
            return self._snapshot(end).pieces()[start.get("read", 0) : end["read"]]
        if "start" in start:
            return []
        after, upto = Lsn.parse(start["lsn"]), Lsn.parse(end["lsn"])
        self._chosen.refuse_past(upto)
        return [
            piece
            for name in self._chosen.names
            for piece in log_pieces(self._chosen.log, self._extent(name, after, upto), self._columns[name])
        ]

    def _extent(self, name: TableName, after: Lsn, upto: Lsn) -> Extent:
        try:
            return self._chosen.reader().extent(name, after, upto)
        except HistoryExpiredError as gone:
            raise DefiniteError(gone.message, _TOO_LATE) from gone

    def _snapshot(self, offset: Mapping[str, Any]) -> Snapshot:
        return Snapshot.again(self._chosen, Lsn.parse(offset["lsn"]), offset["bases"], self._columns)


_TOO_LATE = (
    "Start the query anew: with another checkpoint, and from earliest. To be away for longer next time, name it with"
    " the option `reader`, or let the source retain more history."
)


class _Pin:
    """What a query keeps in the log."""

    def __init__(self, chosen: Chosen) -> None:
        self._chosen = chosen
        self._registered = chosen.options.reader
        self._name = f"reader {self._registered}" if self._registered else f"query {uuid.uuid4().hex[:12]}"
        self._at: Lsn | None = None
        self._renew = self._move = 0.0

    def hold(self, offset: _Offset) -> None:
        """Hold what comes after an offset, from the first time on; renew a lease in time."""
        if "start" not in offset and (self._at is None or time.monotonic() >= self._renew):
            self._set(self._at or self._needed(offset))

    def move(self, offset: _Offset) -> None:
        """Hold only what comes after an offset; not each time, as that is a write."""
        if time.monotonic() >= self._move:
            self._move = time.monotonic() + _MOVE_SECONDS
            self._set(self._needed(offset))

    def let_go(self) -> None:
        if self._registered is None and self._at is not None:
            self._chosen.reader().pin(self._name, None)

    def _needed(self, offset: _Offset) -> Lsn:
        if offset.get("read", 0) < offset.get("of", 0):
            return min(Lsn.parse(position) for _, position in offset["bases"].values())
        return Lsn.parse(offset["lsn"])

    def _set(self, at: Lsn) -> None:
        if at == self._at and time.monotonic() < self._renew:
            return
        try:
            self._chosen.reader().pin(self._name, at, None if self._registered else _LEASE_SECONDS)
        except HistoryExpiredError as gone:
            raise DefiniteError(gone.message, _TOO_LATE) from gone
        self._at, self._renew = at, time.monotonic() + _LEASE_SECONDS / 3
