"""The change log: what capture writes, and what everything downstream reads by range.

::

    stage(xid, chunks)   parts of a transaction in progress: written, seen by nobody
    discard(xid)         it was rolled back: its parts are gone
    prepare(xid)         it was prepared (two-phase commit): its parts outlive their writer
    publish(...)         closed chunks, the staged parts of transactions that committed, table errors and
                         the new `durable` frontier become visible in one atomic step

Contract, for every implementation:

* **Order.** Within a table, `read` returns images by (commit end LSN, ordinal, old before new).
* **Atomic.** A reader sees all of a transaction, over all tables, or nothing of it. `durable` never lies
  inside a transaction.
* **Durable.** When `publish` returns, what it published survives a crash of the machine. Only then may
  the slot be confirmed up to it.
* **Replay.** Reading the same range again gives the same rows in the same order, for as long as
  `valid` is at or below the range's start.
* **One writer.** A second writer is refused while the first lives. Staged parts of a writer that died are dropped
  when the next one opens the log, unless they were prepared: Postgres sends those transactions again.
* **Subtransactions.** The changes of a subtransaction that was rolled back leave no trace once the rest is published.
* **Versions.** A chunk has the columns that its table had then. Columns are added at the end, each with the value that
  earlier rows have in it; a reader that names the columns it wants gets earlier images with those values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from penstock.errors import TableError
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn

__all__ = [
    "ChangeLogReader",
    "ChangeLogWriter",
    "Chunk",
    "Extent",
    "Frontiers",
    "LoggedTable",
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
class StagedCommit:
    """How a staged transaction ended: where and when it committed, and which of its subtransactions did not."""

    lsn: Lsn
    committed_at: int
    """In microseconds since 1970."""
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Frontiers:
    """How far a log can be read: every range within (`valid`, `durable`]."""

    valid: Lsn
    durable: Lsn
    committed_at: datetime | None
    """Commit time of the last transaction at or before `durable`."""
    published_at: datetime | None
    """When that transaction became readable here."""


@dataclass(frozen=True)
class LoggedTable:
    """A table in the log: the versions of its schema, where its history begins, and its error if it has one."""

    schemas: tuple[TableSchema, ...]
    since: tuple[Lsn | None, ...]
    """From which position on each version holds; None while only transactions in progress have it."""
    valid: Lsn
    """Ranges that begin before this cannot be read: the table was captured anew from here on."""
    error: TableError | None = None
    generation: int = 0
    """How often it was captured anew."""

    @property
    def schema(self) -> TableSchema:
        """The current schema."""
        return [schema for schema, since in zip(self.schemas, self.since, strict=True) if since is not None][-1]

    def schema_within(self, after: Lsn, upto: Lsn) -> TableSchema | None:
        """Return the last schema that came up in (after, upto]; None where the one before still holds."""
        found = [s for s, since in zip(self.schemas, self.since, strict=True) if since and after < since <= upto]
        return found[-1] if found else None


@dataclass(frozen=True)
class Extent:
    """What the log holds for a table in a range, known without reading it."""

    chunks: tuple[int, ...] = ()
    rows: int = 0
    size: int = 0
    kinds: int = 0
    unchanged: bool = False
    bounds: tuple[Lsn, Lsn] = field(default=(Lsn.ZERO, Lsn.ZERO))
    """LSN of the first and of the last transaction of these chunks; they may reach beyond the range."""

    def has(self, image: Image) -> bool:
        """Whether images of this kind may occur."""
        return bool(self.kinds >> image & 1)


class ChangeLogWriter(ABC):
    """The one writer of a log; see the module's contract."""

    @abstractmethod
    def define(self, schema: TableSchema, since: Lsn | None = None) -> int:
        """Return the version of this schema of a table, adding it when it is not the table's last.

        It holds from `since` on; without, from the first transaction that is published with it.
        """

    @abstractmethod
    def stage(self, xid: int, chunks: Sequence[Chunk]) -> None:
        """Append parts of a transaction that has not committed yet."""

    @abstractmethod
    def discard(self, xid: int) -> None:
        """Remove the staged parts of a transaction, prepared or not."""

    @abstractmethod
    def prepare(self, xid: int, aborted: Collection[int] = ()) -> None:
        """Keep the staged parts of a transaction until it is published or discarded, whoever writes then."""

    @abstractmethod
    def restart(self, schema: TableSchema, generation: int) -> int:
        """Begin the history of a table anew, after `durable`, and return the version of its schema.

        Its error is forgotten, and what lies before is not read any more.
        """

    @abstractmethod
    def publish(
        self,
        chunks: Sequence[Chunk],
        durable: Lsn,
        *,
        committed_at: int | None = None,
        staged: Mapping[int, StagedCommit] | None = None,
        errors: Sequence[TableError] = (),
    ) -> None:
        """Make everything up to `durable` visible and durable; `staged` says how staged transactions ended.

        `committed_at` is the commit time of the last transaction, in microseconds since 1970, if there was one.
        """

    @abstractmethod
    def frontiers(self) -> Frontiers:
        """Return where the log stands."""

    @abstractmethod
    def close(self) -> None:
        """Give up being the writer."""


class ChangeLogReader(ABC):
    """A reader, in any process; see the module's contract."""

    @abstractmethod
    def frontiers(self) -> Frontiers:
        """Return what can be read now."""

    @abstractmethod
    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Return as soon as `durable` lies beyond a position, or after `timeout` seconds."""

    @abstractmethod
    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables that the log knows."""

    @abstractmethod
    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe what lies in (after, upto]."""

    @abstractmethod
    def read(
        self,
        table: TableName,
        after: Lsn,
        upto: Lsn,
        chunks: Sequence[int] | None = None,
        columns: pa.Schema | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the images in (after, upto], as `penstock.model.image_schema`; only these chunks where given.

        All have these `columns`, which extend those of every image; without, each batch has its own. An image with
        columns beyond these is a `DefiniteError`.
        """
