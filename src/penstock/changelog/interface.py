"""The change log: the interface between capture, which writes it, and all consumers, which read it by range.

::

    ChangeLog                        the location of a log: a value that can be stored, pickled and sent
      ├─ create, remove, exists
      ├─ writer() ─▶ ChangeLogWriter    exactly one
      │     define(schema)             add a version of a table's schema
      │     stage(xid, chunks)         write parts of an open transaction; readers do not see them
      │     settle(xid, outcome)       a staged transaction was rolled back (its parts are dropped) or prepared (its
      │                                parts survive a change of writer)
      │     publish(...)               in one atomic step, make visible: closed chunks, the staged parts of committed
      │                                transactions, table errors, and the new `durable` frontier
      │     retain(since)              remove history that is no longer needed and advance `valid`
      └─ reader() ─▶ ChangeLogReader    any number, on any machine
            frontiers, wait            the readable range (`valid`, `durable`]
            position_at(time)          the position that a timestamp corresponds to
            tables                     schema versions, start of history and error of each table
            extent(table, a, b)        describe the changes in (a, b]: a value that can be split and sent to executors
            read(extent)               read them
            set_lease, leases          keep history for a reader

A position is the end LSN of a commit record (`penstock.positions`). A chunk holds row images of one table. Every
implementation guarantees:

* **Order.** Within a table, `read` returns images ordered by (commit end LSN, ordinal, old image before new image).
* **Atomicity.** A reader sees either all changes of a transaction, in all tables, or none. `durable` never points into
  the middle of a transaction.
* **Durability.** When `publish` returns, the published data survives a crash, to the extent that the storage medium
  guarantees it. Only then may capture confirm the position to the replication slot.
* **Replay.** Reading the same range again returns the same rows in the same order, as long as the range does not start
  before `valid`. If it does, the reader raises `HistoryExpiredError`; it never returns fewer rows.
* **Single writer.** If two writers open a log, one of them fails: the second when it opens the log, or the first at its
  next write. A rejected write never becomes visible. When a writer opens the log, it drops the staged parts
  that an earlier writer left, because Postgres sends those transactions again; parts of prepared transactions stay.
* **Subtransactions.** When a transaction is published, changes of its rolled-back subtransactions are not visible.
* **Schema versions.** A chunk has the columns that its table had at that time. Columns are only added at the end, each
  with the value that earlier rows have in it. A reader that requests specific columns gets earlier images with these
  values filled in.
* **Retention.** Only `retain` advances `valid`, never past `durable` and never past a lease that existed when `retain`
  began. A lease either expires or belongs to a registered reader and stays until it is removed.
* **Time.** A transaction counts as committed at its commit time or at the latest time published before it, whichever
  is later. A published time is the commit time of another transaction or a clock reading of the server (`passed`). The
  set of transactions up to a time before `passed` therefore never changes.
* **Integrity.** `read` returns the bytes that were written. Checksums detect damage, which raises `LogCorruptError`.
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import TableError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn

__all__ = [
    "OLD_ROWS",
    "ChangeLog",
    "ChangeLogReader",
    "ChangeLogWriter",
    "Chunk",
    "ChunkRef",
    "Commit",
    "Discarded",
    "Extent",
    "Frontiers",
    "Lease",
    "LoggedTable",
    "Prepared",
    "StagedCommit",
    "is_change",
    "transaction_schema",
]


def transaction_schema() -> pa.Schema:
    """Return the schema of a chunk's transactions: one row per transaction, in commit order."""
    return pa.schema([("lsn", pa.int64()), ("xid", pa.int64()), ("committed_at", pa.timestamp("us", "UTC"))])


@dataclass(frozen=True)
class Chunk:
    """Images of one table under one version of its schema, in order.

    `images` has the columns ``_tx`` (int32, row number in `transactions`), ``_ordinal``, ``_image``, ``_unchanged`` and
    ``row`` of `penstock.model.image_schema`. In a staged chunk, `transactions` lists the subtransactions by xid; their
    LSN and commit time are not known yet (-1).
    """

    table: TableName
    version: int
    transactions: pa.RecordBatch
    images: pa.RecordBatch
    kinds: int
    """Bit `1 << image` for every kind of image in the chunk."""
    unchanged: bool
    """Whether any image omits an unchanged TOAST value."""
    stands_for: int | None = None
    """The number of changes that it stands for, if that is not the number of changes in it."""

    @property
    def changes(self) -> int:
        """The number of changes: an UPDATE is one, with or without its old row."""
        if self.stands_for is not None:
            return self.stands_for
        if not self.kinds & OLD_ROWS:
            return int(self.images.num_rows)
        column = self.images.column(_IMAGE)  # as bytes: most chunks have a row or two, too few for numpy
        kinds = memoryview(column.buffers()[1])[column.offset : column.offset + len(column)].tobytes()
        return len(kinds) - kinds.count(Image.BEFORE) - kinds.count(Image.BEFORE_KEY)


_IMAGE = 2
"""The place of the column ``_image``."""
OLD_ROWS = 1 << Image.BEFORE | 1 << Image.BEFORE_KEY
"""The kinds of images that belong to the change of the next image."""


def is_change(images: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    """Return for each kind of image whether it counts as a change."""
    found: npt.NDArray[np.bool_] = (images != Image.BEFORE) & (images != Image.BEFORE_KEY)
    return found


@dataclass(frozen=True)
class Commit:
    """The identity of a transaction: the end of its commit record, its xid, and its commit time.

    If all three match a transaction upstream, the history up to that transaction is the same.
    """

    lsn: Lsn
    xid: int
    committed_at: int
    """In microseconds since 1970."""


@dataclass(frozen=True)
class StagedCommit:
    """The commit of a staged transaction: position, commit time, and the subtransactions that were rolled back."""

    lsn: Lsn
    committed_at: int
    """In microseconds since 1970."""
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Prepared:
    """A staged transaction was prepared: its parts stay until it is published or discarded, under any writer."""

    aborted: frozenset[int] = frozenset()
    """The subtransactions that were rolled back."""


@dataclass(frozen=True)
class Discarded:
    """A staged transaction, prepared or not, was rolled back."""


@dataclass(frozen=True)
class Frontiers:
    """The readable range of a log: every range within (`valid`, `durable`] can be read."""

    valid: Lsn
    durable: Lsn
    committed_at: datetime | None
    """Commit time of the last transaction at or before `durable`."""
    published_at: datetime | None
    """When that transaction became readable in this log."""
    valid_at: datetime
    """The earliest time that can be queried: `valid` includes every transaction that had committed by then."""
    passed: datetime
    """Times before this one are final: every transaction after `durable` counts as committed at this time or later."""
    last: Commit | None = None
    """The last transaction at or before `durable` that changed a row, as its writer reported it; retention does not
    remove it."""

    def has_reached(self, target: Lsn | datetime) -> bool:
        """Return whether the log is complete up to a position or for a time."""
        return target <= self.durable if isinstance(target, Lsn) else target < self.passed


@dataclass(frozen=True)
class Lease:
    """Keeps the history after `at` for a reader."""

    reader: str
    at: Lsn
    expires: datetime | None
    """None for a registered reader: its lease stays until it is removed."""


@dataclass(frozen=True)
class LoggedTable:
    """A table in the log: the versions of its schema, the start of its history, and its error, if any."""

    schemas: tuple[TableSchema, ...]
    since: tuple[Lsn | None, ...]
    """The first position of each version; None while only open transactions use it."""
    valid: Lsn
    """Ranges that begin earlier cannot be read: that history was removed, or the table was captured again from here."""
    error: TableError | None = None
    generation: int = 0
    """How often the table was captured again."""
    generation_start: Lsn = Lsn.ZERO
    """Where the current generation begins: earlier changes belong to an earlier generation or were never written."""

    @property
    def schema(self) -> TableSchema:
        """The current schema."""
        return [schema for schema, since in zip(self.schemas, self.since, strict=True) if since is not None][-1]

    def schema_at(self, position: Lsn) -> TableSchema:
        """Return the schema at a position; for a position before the first version, the first version."""
        return self.schema_within(Lsn.ZERO, position) or self.schemas[0]

    def schema_within(self, after: Lsn, upto: Lsn) -> TableSchema | None:
        """Return the last schema that begins in (after, upto]; None if the schema did not change there."""
        found = [s for s, since in zip(self.schemas, self.since, strict=True) if since and after < since <= upto]
        return found[-1] if found else None


@dataclass(frozen=True)
class ChunkRef:
    """Describes a chunk of a log completely: reading it requires no other metadata of the log."""

    location: tuple[int, ...]
    """Location in the log; its meaning depends on the implementation."""
    version: int
    """Version of the table's schema."""
    first: Lsn
    last: Lsn
    """Positions of the first and of the last transaction."""
    rows: int
    size: int
    """In bytes."""
    kinds: int
    unchanged: bool
    checksum: int
    staged: tuple[int, int, bytes | None] | None = None
    """For a chunk that was staged: xid, commit time, and the rolled-back subtransactions in the encoding of the log."""


@dataclass(frozen=True)
class Extent:
    """The chunks of a table in (after, upto], described without reading them."""

    table: TableName
    after: Lsn
    upto: Lsn
    chunks: tuple[ChunkRef, ...] = ()
    """In order. The first and the last chunk may extend beyond the range."""
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)
    """The schema versions of these chunks."""

    @property
    def rows(self) -> int:
        """The number of images in the chunks: an upper bound for the range."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def size(self) -> int:
        """The size of the chunks in bytes."""
        return sum(chunk.size for chunk in self.chunks)

    @property
    def kinds(self) -> int:
        """Bit `1 << image` for every kind of image that may occur."""
        return functools.reduce(operator.or_, (chunk.kinds for chunk in self.chunks), 0)

    @property
    def unchanged(self) -> bool:
        """Whether any image may omit an unchanged TOAST value."""
        return any(chunk.unchanged for chunk in self.chunks)

    def has(self, image: Image) -> bool:
        """Return whether images of this kind may occur."""
        return bool(self.kinds >> image & 1)

    def divided(self, size: int) -> list[Extent]:
        """Split into extents of about `size` bytes, in order; a chunk is never split."""
        parts: list[Extent] = []
        start, total = 0, 0
        for at, chunk in enumerate(self.chunks):
            total += chunk.size
            if total >= size or at == len(self.chunks) - 1:
                parts.append(replace(self, chunks=self.chunks[start : at + 1]))
                start, total = at + 1, 0
        return parts


class ChangeLogWriter(ABC):
    """The single writer of a log; see the guarantees in the module docstring."""

    @abstractmethod
    def define(self, schema: TableSchema, since: Lsn | None = None, generation: int = 0) -> int:
        """Return the version number of a table's schema; add a version if the schema differs from the latest one.

        The version begins at `since`, or, without it, at the first transaction that is published with it. A
        `generation` higher than the one in the log restarts the table's history after `durable`: its error is cleared,
        and earlier changes are no longer readable.
        """

    @abstractmethod
    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction that has not committed yet."""

    @abstractmethod
    def settle(self, xid: int, outcome: Prepared | Discarded) -> None:
        """Record that a staged transaction was prepared or rolled back."""

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
        """Make everything up to `durable` visible and durable; `staged` lists the commits of staged transactions.

        `committed_at` is the commit time of the last transaction, in microseconds since 1970, if there is one; `last`
        is the last transaction that changed a row, if there is one. `passed`, in a publication without transactions, is
        a clock reading of the server: all transactions that committed before it are at or before `durable`.
        """

    @abstractmethod
    def retain(self, since: datetime) -> Frontiers:
        """Remove history that ended before `since` and that no lease keeps; return the new frontiers."""

    @abstractmethod
    def frontiers(self) -> Frontiers:
        """Return the frontiers of the log."""

    @abstractmethod
    def close(self) -> None:
        """Close the log; another writer may open it."""


class ChangeLogReader(ABC):
    """A reader, in any process; one per thread. See the guarantees in the module docstring."""

    @abstractmethod
    def frontiers(self) -> Frontiers:
        """Return the range that can be read now."""

    @abstractmethod
    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Wait until `durable` is beyond a position, for at most `timeout` seconds; return the frontiers."""

    @abstractmethod
    def position_at(self, moment: datetime) -> Lsn:
        """Return the last position up to which every transaction had committed at or before `moment`.

        The next transaction, if there is one, counts as committed after `moment` (see **Time** in the module
        docstring). If there is none yet, the result is `durable`, which may advance while nothing changes. Raise
        `HistoryExpiredError` if the log no longer has the history of that time.
        """

    @abstractmethod
    def time_at(self, position: Lsn) -> datetime:
        """Return the newest time published at or before a position; for one before `valid`, that of `valid`."""

    @abstractmethod
    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables in the log."""

    @abstractmethod
    def changes(self) -> dict[TableName, int]:
        """Return the number of changes of each table that were ever published; retention does not reduce it."""

    @abstractmethod
    def size(self) -> int:
        """Return the size of the log in bytes, as far as it is known without reading it."""

    @abstractmethod
    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the published changes of a table in (after, upto], or raise `HistoryExpiredError`."""

    def images_within(self, table: TableName, after: Lsn, upto: Lsn) -> int:
        """Return the number of images in the chunks of (after, upto], as `extent` does, without describing them."""
        return self.extent(table, after, upto).rows

    @abstractmethod
    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the images of an extent, in the schema `penstock.model.image_schema`.

        With `columns`, every image has these columns, which must extend its own; an image with other columns raises
        `DefiniteError`. Without, each batch has the columns of its own version.
        """

    @abstractmethod
    def set_lease(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Keep the history after `at` for this reader, for `seconds` or, without them, until further notice.

        A reader has one lease: a new one replaces it, and None removes it. Raise `HistoryExpiredError` if `at` is
        before `valid`. A `retain` that is running at the same time may miss the new lease; reading then raises
        `HistoryExpiredError`.
        """

    @abstractmethod
    def leases(self) -> list[Lease]:
        """Return the leases that have not expired, ordered by reader."""

    @abstractmethod
    def close(self) -> None:
        """Release the reader's resources."""


class ChangeLog(ABC):
    """The location of a log: a value that can be stored, compared, and sent to the process that writes or reads it."""

    TABLES: ClassVar[str | None] = None
    """The entry point, ``module:class``, of the tables of a log that holds messages instead of changes; see
    `penstock.tables.message_tables`. None: the log holds changes."""

    def check_readable(self, tables: Collection[TableName]) -> None:  # noqa: B027
        """Raise `UsageError` if the log cannot return the changes of one of these tables."""

    @abstractmethod
    def create(self, start: Lsn) -> None:
        """Create an empty log whose history begins after `start`; leave an existing log unchanged."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the log, even if it is incomplete."""

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the log was created."""

    @abstractmethod
    def writer(self) -> ChangeLogWriter:
        """Open the log for writing."""

    @abstractmethod
    def reader(self) -> ChangeLogReader:
        """Open the log for reading."""
