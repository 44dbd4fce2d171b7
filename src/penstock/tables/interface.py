"""Base tables as the control plane sees them: a store that opens them, computes with their rows, and compares them.

::

    snapshot, apply, live views, verify ──▶ TableStore ──┬──▶ SparkTables    Delta tables, computed by Spark
                                                         └──▶ MemoryTables   Arrow tables in this process, for tests

A store decides what *rows* are: a DataFrame of Spark, or a table of Arrow. The control plane passes them on and never
looks inside. The contract of a base table is tested on every store by ``tests/tables/test_base_contract.py``:

- The position of a table is stored in the same atomic commit as its rows. There is no other record of progress.
- `merge` and `append` of a position that the table has reached change nothing: a replay after a crash is harmless.
- `create` replaces what lies at the path, also at a lower position, in one commit.
- A version can be read as it was, until compaction removes it.
- A net change that needs a base row which the table does not hold raises a `TableError` and commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.postgres.captured import CapturedTable
from penstock.sources.postgres.copy import PageRange
from penstock.sources.postgres.slot import ExportedSnapshot
from penstock.tables.base_state import Copied, State
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
    "UpstreamTable",
]

Rows = Any
"""Rows of a store: a DataFrame, or an Arrow table."""
UNFINISHED = "parallel"
"""The `window` of a base table that shows no position before its next commit: its snapshot is not known to be whole."""


@dataclass(frozen=True)
class NetChange:
    """The net change of a range of the log, as the store computes with it, and what is known of its contents."""

    net: Any
    contents: Contents


@dataclass(frozen=True)
class CreateOptions:
    """What a base table is created with, beside its rows."""

    position: Lsn
    properties: Mapping[str, str]
    comment: str = ""
    comments: Mapping[str, str] | None = None
    generation: int = 0

    def arguments(self) -> dict[str, Any]:
        """Return these as arguments of `BaseTable.create`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class UpstreamTable:
    """A table upstream, as an exported snapshot shows it; the snapshot must be held while rows are read."""

    conninfo: str
    snapshot: ExportedSnapshot
    table: CapturedTable
    ranges: Sequence[PageRange]


class BaseTable(Protocol):
    """One table that follows one upstream table, and stores up to which position. One writer, many readers."""

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
        """Create the table of `rows` at `position`; with a `window` it shows no position until its next commit."""

    def append(self, rows: Rows, position: Lsn) -> None:
        """Add rows whose keys are not in the table, and move to `position`."""

    def merge(
        self,
        net: Any,
        position: Lsn,
        contents: Contents = ...,
        copied: Copied | None = None,
        memory: str | None = None,
    ) -> None:
        """Merge the net change of a range, and move to `position`."""

    def evolve(self, schema: TableSchema) -> None:
        """Add the columns that were added upstream, filled with what older rows hold; the position stays."""

    def add_chunk(self, rows: Rows, chunk: Copied) -> None:
        """Add a chunk of an incremental snapshot: once, however often this is called for its number."""

    def copied(self) -> Copied | None:
        """Return the last chunk of an incremental snapshot; None before the first."""

    def state(self) -> State | None:
        """Return version and position, read together; None: no table yet."""

    def position(self) -> Lsn | None:
        """Return the position of the table; None: no table yet."""

    def version(self) -> int | None:
        """Return the newest version; None: no table yet."""

    def versions(self, limit: int | None = None) -> list[tuple[int, Lsn]]:
        """Return the versions that are whole positions, newest first, of the newest `limit` commits."""

    def memory(self, position: Lsn) -> str | None:
        """Return the state of the envelope that was committed with a position."""

    def at(self, version: int) -> Rows:
        """Return the table as it was at a version."""

    def current(self) -> Rows:
        """Return the table as it is now."""

    def widened(self, rows: Rows) -> Rows:
        """Return rows that were read before the table gained columns, with these columns."""

    def incarnation(self) -> str:
        """Return the random id of the table that lies at the path now."""


class Compaction(Protocol):
    """Keeps the files of one base table in order; used by its one writer."""

    def rewrite(self, at: State) -> int:
        """Rewrite worn files; return how many those were."""

    def vacuum(self, oldest: int) -> bool:
        """Remove what no version from `oldest` on needs; return whether that was possible."""


class Jobs(Protocol):
    """The work of one source in a store, which can be cancelled from another thread."""

    def tagged(self) -> AbstractContextManager[None]:
        """Count what this thread does within it as work of the source; not to be nested."""

    def cancel(self) -> None:
        """Cancel the work that is going on: those who wait for it get an error, and no commit is half made."""


class TableStore(Protocol):
    """Opens base tables of one kind and computes with their rows."""

    @property
    def spark(self) -> SparkSession:
        """The session, for work that only Spark does: queries, topics, incremental snapshots, repair."""

    @property
    def parallelism(self) -> int:
        """How many ranges of a snapshot are read side by side."""

    def base(self, path: Path, schema: TableSchema) -> BaseTable:
        """Open the base table at a path; it need not exist yet."""

    def rows(self, table: pa.Table) -> Rows:
        """Return rows of this store."""

    def net_change(self, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> NetChange | None:
        """Return the net change of (after, upto]; None where nothing happened."""

    def live(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> Rows:
        """Return the table at `upto`: a version of its base and the log since."""

    def union_of_shards(self, name: str, shards: Mapping[str, Rows]) -> Rows:
        """Return the rows of all shards, with the column `penstock_shard` in front."""

    def snapshot(
        self,
        base: BaseTable,
        upstream: UpstreamTable,
        created: CreateOptions,
        notes: Path,
        is_whole: Callable[[], bool],
    ) -> bool:
        """Create a base table of an upstream table; return False, and show no position, where `is_whole` denies it.

        `is_whole` is asked when all rows are read. Each range that is finished leaves a note in the folder `notes`.
        """

    def upstream(self, upstream: UpstreamTable) -> Rows:
        """Return the rows of an upstream table."""

    def differences(self, upstream: Rows, live: Rows, key: Sequence[str], limit: int, *, exact: bool) -> Differences:
        """Compare the rows of both sides."""

    def jobs(self, name: str) -> Jobs:
        """Return the jobs that go by a name."""

    def compaction(self, base: BaseTable) -> Compaction:
        """Return what keeps the files of a base table in order."""
