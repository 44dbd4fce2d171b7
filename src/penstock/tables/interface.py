"""The interface of base tables: a store opens them, computes with their rows, and compares them.

::

    snapshot, apply, live views, verify ──▶ TableStore ──┬──▶ SparkTables    Delta tables, computed by Spark
                                                         └──▶ MemoryTables   Arrow tables in this process, for tests

Each store defines its own type for *rows*: a Spark DataFrame, or an Arrow table. The control plane passes rows on
without inspecting them. ``tests/tables/test_base_contract.py`` tests the contract of a base table on every store:

- The position of a table is stored in the same atomic commit as its rows. There is no other record of progress.
- `merge` and `append` with a position that the table has reached change nothing: a replay after a crash is harmless.
- `create` replaces the table at the path in one commit, even with one at a lower position.
- Every version remains readable until compaction removes it.
- A net change that needs a base row which the table does not contain raises a `TableError` and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.database import TableCopy
from penstock.tables.base_state import ChunkProgress, State
from penstock.tables.compare import Differences
from penstock.tables.contents import Contents

__all__ = [
    "UNFINISHED",
    "BaseTable",
    "Compaction",
    "CreateOptions",
    "Jobs",
    "NetChange",
    "Rows",
    "TableStore",
]

Rows = Any
"""Rows of a store: a DataFrame, or an Arrow table."""
UNFINISHED = "parallel"
"""The `window` of a base table that exposes no position until its next commit: its snapshot may be incomplete."""


@dataclass(frozen=True)
class NetChange:
    """The net change of a range of the log, in the form the store computes with, and a description of its contents."""

    net: Any
    contents: Contents


@dataclass(frozen=True)
class CreateOptions:
    """The arguments of `BaseTable.create` other than its rows."""

    position: Lsn
    properties: Mapping[str, str]
    comment: str = ""
    comments: Mapping[str, str] | None = None
    generation: int = 0

    def arguments(self) -> dict[str, Any]:
        """Return the options as keyword arguments of `BaseTable.create`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class BaseTable(Protocol):
    """A table that follows one upstream table and stores its own position. It has one writer and many readers."""

    path: str
    schema: TableSchema

    def create(
        self,
        rows: Rows,
        position: Lsn,
        properties: Mapping[str, str] | None = None,
        comment: str = "",
        comments: Mapping[str, str] | None = None,
        generation: int = 0,
        window: str | None = None,
    ) -> None:
        """Create the table from `rows` at `position`; with a `window`, it exposes no position until its next commit."""

    def append(self, rows: Rows, position: Lsn) -> None:
        """Add rows whose keys are not in the table, and advance to `position`."""

    def merge(
        self,
        net: Any,
        position: Lsn,
        contents: Contents = ...,
        copied: ChunkProgress | None = None,
        memory: str | None = None,
    ) -> None:
        """Merge the net change of a range, and advance to `position`."""

    def evolve(self, schema: TableSchema) -> None:
        """Add the columns that were added upstream, with the values that older rows have; keep the position."""

    def add_chunk(self, rows: Rows, chunk: ChunkProgress) -> None:
        """Add a chunk of an incremental snapshot; repeated calls with the same chunk number add it once."""

    def chunk_progress(self) -> ChunkProgress | None:
        """Return the last chunk of an incremental snapshot, or None before the first."""

    def state(self) -> State | None:
        """Return version and position, read together, or None if the table does not exist."""

    def position(self) -> Lsn | None:
        """Return the position of the table, or None if it does not exist."""

    def version(self) -> int | None:
        """Return the newest version, or None if the table does not exist."""

    def versions(self, limit: int | None = None) -> list[tuple[int, Lsn]]:
        """Return the versions that correspond to a position, newest first, among the newest `limit` commits."""

    def memory(self, position: Lsn) -> str | None:
        """Return the envelope state that was committed with a position."""

    def at(self, version: int) -> Rows:
        """Return the rows of a version."""

    def current(self) -> Rows:
        """Return the rows of the newest version."""

    def count(self) -> int | None:
        """Return the number of rows of the newest version without reading them, or None if that is not possible."""

    def widened(self, rows: Rows) -> Rows:
        """Return rows that were read before the table gained columns, extended by these columns."""

    def incarnation(self) -> str:
        """Return the random id of the table that is at the path now."""


class Compaction(Protocol):
    """Compaction and vacuum of one base table, called by its only writer."""

    def rewrite(self, at: State) -> int:
        """Compact small, fragmented and overlapping files; return how many were rewritten."""

    def vacuum(self, oldest: int) -> bool:
        """Remove files that no version from `oldest` on needs; return whether that was possible."""


class Jobs(Protocol):
    """The work of one source in a store, which another thread can cancel."""

    def tagged(self) -> AbstractContextManager[None]:
        """Attribute the work of this thread inside the context to the source; must not be nested."""

    def cancel(self) -> None:
        """Cancel running work: threads that wait for it get an error, and no commit is partial."""


class TableStore(Protocol):
    """Opens base tables of one kind and computes with their rows."""

    @property
    def spark(self) -> SparkSession:
        """The session, for work that requires Spark: queries, topics, incremental snapshots, repair."""

    @property
    def parallelism(self) -> int:
        """The number of snapshot ranges that are read in parallel."""

    def base(self, path: Path, schema: TableSchema) -> BaseTable:
        """Return the base table at a path, which need not exist yet."""

    def rows(self, table: pa.Table) -> Rows:
        """Convert an Arrow table to rows of this store."""

    def net_change(self, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> NetChange | None:
        """Return the net change of (after, upto], or None if the range is empty."""

    def live(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> Rows:
        """Return the table at `upto`: a version of its base table, overlaid with the log since."""

    def union_of_shards(self, name: str, shards: Mapping[str, Rows]) -> Rows:
        """Return the rows of all shards, with `penstock_shard` as the first column."""

    def snapshot(
        self,
        base: BaseTable,
        copy: TableCopy,
        created: CreateOptions,
        notes: Path,
        is_whole: Callable[[], bool],
    ) -> bool:
        """Create a base table from a copy; return False, and expose no position, unless `is_whole` holds.

        `is_whole` is called after all rows are read. Each finished range leaves a note in the folder `notes`.
        """

    def copied_rows(self, copy: TableCopy) -> Rows:
        """Return the rows of an upstream table."""

    def without_columns(self, rows: Rows, names: Collection[str]) -> Rows:
        """Return rows without these columns."""

    def differences(self, upstream: Rows, live: Rows, key: Sequence[str], limit: int, *, exact: bool) -> Differences:
        """Compare the rows of both sides."""

    def jobs(self, name: str) -> Jobs:
        """Return the jobs with a name."""

    def compaction(self, base: BaseTable) -> Compaction:
        """Return the compaction of a base table."""
