"""The change log: what capture writes, and what everything downstream reads by range.

::

    ChangeLog              a value that says where a log is; it travels to whoever writes or reads there
      ├─ create, remove
      ├─ writer() ─▶ ChangeLogWriter   one
      │     define(schema)       the columns of a table from here on
      │     stage(xid, chunks)   parts of a transaction in progress: written, seen by nobody
      │     settle(xid, …)       it was rolled back: its parts are gone; or prepared: they outlive their writer
      │     publish(...)         closed chunks, the staged parts of transactions that committed, table errors and
      │                          the new `durable` frontier become visible in one atomic step
      │     retain(since)        history that nobody needs is removed, and `valid` moves
      └─ reader() ─▶ ChangeLogReader   many, anywhere
            frontiers, wait      how far it goes
            tables               what it knows of each table
            extent(table, a, b)  describes what lies in (a, b]: a value that can be divided and sent elsewhere
            read(extent)         reads it
            pin                  keeps history for a reader

Contract, for every implementation:

* **Order.** Within a table, `read` returns images by (commit end LSN, ordinal, old before new).
* **Atomic.** A reader sees all of a transaction, over all tables, or nothing of it. `durable` never lies
  inside a transaction.
* **Durable.** When `publish` returns, what it published survives a crash, as far as the medium promises. Only then may
  the slot be confirmed up to it.
* **Replay.** Reading the same range again gives the same rows in the same order, for as long as
  `valid` is at or below the range's start. Below it `HistoryExpiredError` is raised, never fewer rows.
* **One writer.** Of two writers at once one is refused: the second when it opens, or the first when it next writes.
  Nothing of the refused one is ever seen. Staged parts of a writer that died are dropped when the next one opens the
  log, unless they were prepared: Postgres sends those transactions again.
* **Subtransactions.** The changes of a subtransaction that was rolled back leave no trace once the rest is published.
* **Versions.** A chunk has the columns that its table had then. Columns are added at the end, each with the value that
  earlier rows have in it; a reader that names the columns it wants gets earlier images with those values.
* **Retention.** `valid` moves in `retain` alone, and never beyond a pin that was there when that began, nor beyond
  `durable`. A pin is a lease that expires, or the mark of a registered reader, which stays until it is taken away.
* **Moments.** A transaction counts as committed at its commit time; or, where a later time was told before it (the
  commit time of another one, or a clock of the server: `passed`), at that. So a moment that was passed has one
  answer, however often it is asked for.
* **Whole.** What comes back is what was written: damage is found by checksums and is `LogCorruptError`, never data.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa

from penstock.errors import TableError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn

__all__ = [
    "ChangeLog",
    "ChangeLogReader",
    "ChangeLogWriter",
    "Chunk",
    "ChunkRef",
    "Commit",
    "Discarded",
    "Extent",
    "Frontiers",
    "LoggedTable",
    "Pin",
    "Prepared",
    "StagedCommit",
    "transaction_schema",
]


def transaction_schema() -> pa.Schema:
    """Return the schema of a chunk's transactions: one row each, in commit order."""
    return pa.schema([("lsn", pa.int64()), ("xid", pa.int64()), ("committed_at", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Chunk:
    """Images of one version of one table, in order.

    `images` has the columns ``_tx`` (int32, row of `transactions`), ``_ordinal``, ``_image``, ``_unchanged`` and
    ``row`` of `penstock.model.image_schema`. Of a staged chunk, `transactions` are the subtransactions by their xid;
    LSN and commit time are not known yet (-1).
    """

    table: TableName
    version: int
    transactions: pa.RecordBatch
    images: pa.RecordBatch
    kinds: int
    """Bit `1 << image` for every kind of image in the chunk."""
    unchanged: bool
    """Whether any image leaves out an unchanged TOAST value."""


@dataclass(frozen=True)
class Commit:
    """What tells one transaction from all others: where its commit ended, its id, and when it committed.

    Whoever finds the same three upstream again has found the same history up to there.
    """

    lsn: Lsn
    xid: int
    committed_at: int
    """In microseconds since 1970."""


@dataclass(frozen=True)
class StagedCommit:
    """How a staged transaction ended: where and when it committed, and which of its subtransactions did not."""

    lsn: Lsn
    committed_at: int
    """In microseconds since 1970."""
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Prepared:
    """A staged transaction was prepared: its parts stay until it is published or discarded, whoever writes then."""

    aborted: frozenset[int] = frozenset()
    """Those of its subtransactions that were rolled back."""


@dataclass(frozen=True)
class Discarded:
    """A staged transaction, prepared or not, was rolled back."""


@dataclass(frozen=True)
class Frontiers:
    """How far a log can be read: every range within (`valid`, `durable`]."""

    valid: Lsn
    durable: Lsn
    committed_at: datetime | None
    """Commit time of the last transaction at or before `durable`."""
    published_at: datetime | None
    """When that transaction became readable here."""
    valid_at: datetime
    """The first moment that can be asked for: what had committed by then is in `valid`."""
    passed: datetime
    """Every moment before this is settled: what comes after `durable` counts as committed then or later."""
    last: Commit | None = None
    """The last transaction that changed something, at or before `durable`, as its writer told; kept for good."""

    def reach(self, asked: Lsn | datetime) -> bool:
        """Say whether all is known of a position or a moment."""
        return asked <= self.durable if isinstance(asked, Lsn) else asked < self.passed


@dataclass(frozen=True)
class Pin:
    """What a reader still needs: everything after `at`."""

    reader: str
    at: Lsn
    expires: datetime | None
    """None for a registered reader: its pin stays until it is taken away."""


@dataclass(frozen=True)
class LoggedTable:
    """A table in the log: the versions of its schema, where its history begins, and its error if it has one."""

    schemas: tuple[TableSchema, ...]
    since: tuple[Lsn | None, ...]
    """From which position on each version holds; None while only transactions in progress have it."""
    valid: Lsn
    """Ranges that begin before this cannot be read: older history is gone, or the table was captured anew from here."""
    error: TableError | None = None
    generation: int = 0
    """How often it was captured anew."""
    begun: Lsn = Lsn.ZERO
    """Where that began last: what came before was written for an earlier generation, or not at all."""

    @property
    def schema(self) -> TableSchema:
        """The current schema."""
        return [schema for schema, since in zip(self.schemas, self.since, strict=True) if since is not None][-1]

    def schema_at(self, position: Lsn) -> TableSchema:
        """Return the schema that held at a position; before the first one, that."""
        return self.schema_within(Lsn.ZERO, position) or self.schemas[0]

    def schema_within(self, after: Lsn, upto: Lsn) -> TableSchema | None:
        """Return the last schema that came up in (after, upto]; None where the one before still holds."""
        found = [s for s, since in zip(self.schemas, self.since, strict=True) if since and after < since <= upto]
        return found[-1] if found else None


@dataclass(frozen=True)
class ChunkRef:
    """A chunk in a log, described well enough to be read by somebody who knows nothing else of that log."""

    place: tuple[int, ...]
    """Where it lies; only its log knows how to read this."""
    version: int
    """Of its table's schema."""
    first: Lsn
    last: Lsn
    """Of its first and of its last transaction."""
    rows: int
    size: int
    """In bytes."""
    kinds: int
    unchanged: bool
    checksum: int
    staged: tuple[int, int, bytes | None] | None = None
    """Of a chunk that was staged: xid, commit time, and the subtransactions that were rolled back, as its log packs
    them."""


@dataclass(frozen=True)
class Extent:
    """What a log holds of a table in (after, upto], known without reading it."""

    table: TableName
    after: Lsn
    upto: Lsn
    chunks: tuple[ChunkRef, ...] = ()
    """In order. The first and the last may reach beyond the range."""
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)
    """The versions that these chunks have."""

    @property
    def rows(self) -> int:
        """How many images there are, or some more: those of whole chunks."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def size(self) -> int:
        """How many bytes the chunks have."""
        return sum(chunk.size for chunk in self.chunks)

    @property
    def kinds(self) -> int:
        """Bit `1 << image` for every kind of image that may occur."""
        return functools.reduce(operator.or_, (chunk.kinds for chunk in self.chunks), 0)

    @property
    def unchanged(self) -> bool:
        """Whether any image may leave out an unchanged TOAST value."""
        return any(chunk.unchanged for chunk in self.chunks)

    def has(self, image: Image) -> bool:
        """Whether images of this kind may occur."""
        return bool(self.kinds >> image & 1)

    def divided(self, size: int) -> list[Extent]:
        """Divide into extents of about so many bytes, in order; one chunk is never divided."""
        parts: list[Extent] = []
        begun, held = 0, 0
        for at, chunk in enumerate(self.chunks):
            held += chunk.size
            if held >= size or at == len(self.chunks) - 1:
                parts.append(replace(self, chunks=self.chunks[begun : at + 1]))
                begun, held = at + 1, 0
        return parts


class ChangeLogWriter(ABC):
    """The one writer of a log; see the module's contract."""

    @abstractmethod
    def define(self, schema: TableSchema, since: Lsn | None = None, generation: int = 0) -> int:
        """Return the version of this schema of a table, adding it when it is not the table's last.

        It holds from `since` on; without, from the first transaction that is published with it. A `generation` above
        that which the log has of the table begins its history anew, after `durable`: its error is forgotten, and what
        lies before is not read any more.
        """

    @abstractmethod
    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction that has not committed yet."""

    @abstractmethod
    def settle(self, xid: int, outcome: Prepared | Discarded) -> None:
        """Say what became of a staged transaction, other than that it committed."""

    @abstractmethod
    def publish(
        self,
        chunks: Sequence[Chunk],
        durable: Lsn,
        *,
        committed_at: int | None = None,
        staged: Mapping[int, StagedCommit] | None = None,
        errors: Sequence[TableError] = (),
        passed: int | None = None,
        last: Commit | None = None,
    ) -> None:
        """Make everything up to `durable` visible and durable; `staged` says how staged transactions ended.

        `committed_at` is the commit time of the last transaction, in microseconds since 1970, if there was one; `last`
        is the last one that changed something, if one did.
        `passed`, in a step without transactions, is a clock of the server: what had committed before it lies at or
        before `durable`.
        """

    @abstractmethod
    def retain(self, since: datetime) -> Frontiers:
        """Remove history that ended before `since` and that no pin holds; return the frontiers after that."""

    @abstractmethod
    def frontiers(self) -> Frontiers:
        """Return where the log stands."""

    @abstractmethod
    def close(self) -> None:
        """Give up being the writer."""


class ChangeLogReader(ABC):
    """A reader, in any process; one per thread. See the module's contract."""

    @abstractmethod
    def frontiers(self) -> Frontiers:
        """Return what can be read now."""

    @abstractmethod
    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Return as soon as `durable` lies beyond a position, or after `timeout` seconds."""

    @abstractmethod
    def position_at(self, moment: datetime) -> Lsn:
        """Return the last position at which every transaction had committed at or before `moment`.

        What lies after this begins with a transaction that counts as later than `moment`; see the contract. While there
        is none, that is `durable`, and may move on over nothing. `HistoryExpiredError` where the log no longer knows.
        """

    @abstractmethod
    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables that the log knows."""

    @abstractmethod
    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe what is published of a table in (after, upto], or raise `HistoryExpiredError`."""

    @abstractmethod
    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the images of an extent, as `penstock.model.image_schema`.

        All have these `columns`, which extend those of every image; without, each batch has its own. An image with
        columns beyond these is a `DefiniteError`.
        """

    @abstractmethod
    def pin(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Keep what lies after `at` for this reader: for so many seconds, or until it pins another position.

        A reader has one pin; None removes it. Raises `HistoryExpiredError` where `at` is below `valid` already. A
        `retain` that runs at this moment may not have seen the pin: reading then raises it.
        """

    @abstractmethod
    def pins(self) -> list[Pin]:
        """Return the pins that have not expired, by reader."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the reader holds."""


class ChangeLog(ABC):
    """Where a log is: a value, which can be stored, compared and sent to where it is written or read."""

    @abstractmethod
    def create(self, start: Lsn) -> None:
        """Make an empty log whose history begins after `start`; one that is there already is left as it is."""

    @abstractmethod
    def remove(self) -> None:
        """Remove it, whether or not all of it is there."""

    @abstractmethod
    def exists(self) -> bool:
        """Say whether it was created."""

    @abstractmethod
    def writer(self) -> ChangeLogWriter:
        """Open it for writing."""

    @abstractmethod
    def reader(self) -> ChangeLogReader:
        """Open it for reading."""
