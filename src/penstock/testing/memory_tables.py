"""In-memory base tables: the control plane without Spark, for tests that take milliseconds.

::

    home.run(MemoryTables()) ──▶ snapshot, apply, live views, verify ──▶ Arrow tables, each a list of versions

`MemoryTables` implements `penstock.tables.interface`, and passes the same contract tests as Delta tables. The code
behind ``format("penstock")`` folds and overlays rows. Features that need Spark (queries, topics, incremental snapshots,
repair) request a session, which raises an error here.

A table exists as long as its folder, like a Delta table: removing the folder removes the table.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.changelog.json_rows import json_rows
from penstock.errors import DefiniteError, UsageError
from penstock.model import SHARD, TableSchema, image_schema, missing_value
from penstock.positions import Lsn
from penstock.sources.database import TableCopy, Tally
from penstock.tables.arrow.fold import KeyedNet, KeylessNet, fold_net
from penstock.tables.arrow.overlay import live_rows
from penstock.tables.base_state import ChunkProgress, State
from penstock.tables.compare import Difference, Differences, How
from penstock.tables.contents import Contents
from penstock.tables.interface import BaseTable, CreateOptions, NetChange
from penstock.tables.log_tail import contents_of
from penstock.tables.snapshot_files import note_range

__all__ = ["MemoryBaseTable", "MemoryTables"]

_MARKER = "in-memory"
_NOTHING = Contents()


@dataclass(frozen=True)
class _Commit:
    """One version of a table."""

    rows: pa.Table
    schema: TableSchema
    incarnation: str
    position: Lsn | None
    """The position of the table after the commit; None for commits without one, such as chunks."""
    chunk: ChunkProgress | None = None
    memory: str | None = None


@dataclass
class _Stored:
    """The versions and the metadata of one table."""

    commits: list[_Commit | None] = field(default_factory=list)
    """By version; None for those that compaction has removed."""
    incarnation: str = ""
    created: Lsn = Lsn.ZERO
    generation: int = 0
    window: str | None = None
    marks: dict[str, int] = field(default_factory=dict)
    """The highest position, or chunk number, that each application has committed."""
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def newest(self) -> _Commit:
        """The last commit."""
        found = self.commits[-1]
        assert found is not None
        return found


class MemoryTables:
    """An in-memory table store."""

    def __init__(self) -> None:
        self._stored: dict[str, _Stored] = {}

    @property
    def spark(self) -> SparkSession:
        """Raise `UsageError`: there is no session."""
        message = "in-memory tables have no Spark session"
        raise UsageError(message, "Run this on Spark: queries, topics, incremental snapshots and repair require it.")

    @property
    def parallelism(self) -> int:
        """The number of ranges that are read concurrently: one."""
        return 1

    def base(self, path: Path, schema: TableSchema) -> MemoryBaseTable:
        """Open a table."""
        return MemoryBaseTable(self._stored, str(path), schema)

    def rows(self, table: pa.Table) -> pa.Table:
        """Return the table itself."""
        return table

    def net_change(self, log: ChangeLog, schema: TableSchema, after: Lsn, upto: Lsn) -> NetChange | None:
        """Fold a range of the log in Arrow."""
        with closing(log.reader()) as reader:
            extent = reader.extent(schema.table, after, upto)
            if not extent.chunks:
                return None
            contents = contents_of(reader, extent)
            images = pa.Table.from_batches(reader.read(extent, schema.columns), image_schema(schema.columns))
        return NetChange(fold_net(images, schema), contents)

    def live(self, log: ChangeLog, path: Path, at: State, schema: TableSchema, upto: Lsn) -> pa.Table:
        """Overlay the log on a version of the base."""
        rows = self.base(path, at.schema).at(at.version)
        rows = _widened(rows, schema.added_to(at.schema))
        change = self.net_change(log, schema, at.position, upto)
        return rows if change is None else _overlaid(rows, change.net, schema)

    def union_of_shards(self, name: str, shards: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of all shards, null in columns that a shard does not have."""
        parts = [rows.add_column(0, SHARD, pa.repeat(shard, len(rows))) for shard, rows in shards.items()]
        try:
            return pa.concat_tables(parts, promote_options="default")
        except pa.ArrowInvalid as error:
            message = f"columns of {name} are not the same on all shards: {error}"
            raise DefiniteError(message, "Make the shards alike upstream and retry the table.") from error

    def snapshot(
        self,
        base: BaseTable,
        copy: TableCopy,
        created: CreateOptions,
        notes: Path,
        is_whole: Callable[[], bool],
    ) -> bool:
        """Read all ranges in order, and commit them atomically."""
        rows = _copied(copy, notes)
        if not is_whole():
            return False
        base.create(rows, **created.arguments())
        return True

    def copied_rows(self, copy: TableCopy) -> pa.Table:
        """Read all ranges."""
        return _copied(copy)

    def without_columns(self, rows: pa.Table, names: Collection[str]) -> pa.Table:
        """Select the other columns."""
        return rows.select([name for name in rows.column_names if name not in names])

    def differences(
        self, upstream: pa.Table, live: pa.Table, key: Sequence[str], limit: int, *, exact: bool
    ) -> Differences:
        """Compare the rows as multisets."""
        if upstream.column_names != live.column_names:
            message = "the two tables have different columns"
            raise UsageError(message, "Compare them with the same columns, types and order.")
        return _differences(upstream, live, list(key) or upstream.column_names, limit)

    def tamper(self, path: Path, change: Callable[[pa.Table], pa.Table]) -> int:
        """Corrupt rows for a test, in a separate version without a position; return the version."""
        stored = self._stored[str(path)]
        newest = stored.newest
        stored.commits.append(_Commit(change(newest.rows), newest.schema, newest.incarnation, None))
        return len(stored.commits) - 1

    def jobs(self, name: str) -> _NoJobs:
        """Return jobs that complete immediately."""
        del name
        return _NoJobs()

    def compaction(self, base: BaseTable) -> _MemoryCompaction:
        """Return the compaction of a table, which removes old versions."""
        return _MemoryCompaction(self._stored[base.path])


class _NoJobs:
    """Jobs that complete immediately and cannot be canceled."""

    def tagged(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def cancel(self) -> None:
        """Do nothing."""


class _MemoryCompaction:
    """Compaction that rewrites nothing, and removes versions that are no longer needed."""

    def __init__(self, stored: _Stored) -> None:
        self._stored = stored

    def rewrite(self, at: State) -> int:
        """Do nothing."""
        return 0

    def vacuum(self, oldest: int) -> bool:
        """Remove the versions before `oldest`."""
        self._stored.commits[:oldest] = [None] * min(oldest, len(self._stored.commits) - 1)
        return True


class MemoryBaseTable:
    """A table that follows one upstream table."""

    def __init__(self, stored: dict[str, _Stored], path: str, schema: TableSchema) -> None:
        self.path = path
        self.schema = schema
        self._tables = stored

    # -- writing ----------------------------------------------------------------------------------------------------

    def create(
        self,
        rows: pa.Table,
        position: Lsn,
        properties: Mapping[str, str] | None = None,
        comment: str = "",
        comments: Mapping[str, str] | None = None,
        generation: int = 0,
        window: str | None = None,
    ) -> None:
        """Replace the table at the path."""
        known = self._found()
        stored = _Stored([] if known is None else known.commits)
        stored.incarnation, stored.created, stored.generation = uuid.uuid4().hex, position, generation
        stored.window, stored.properties = window, {**(properties or {}), "comment": comment}
        stored.commits.append(_Commit(_typed(rows, self.schema), self.schema, stored.incarnation, position))
        Path(self.path).mkdir(parents=True, exist_ok=True)
        Path(self.path, _MARKER).touch()
        self._tables[self.path] = stored

    def append(self, rows: pa.Table, position: Lsn) -> None:
        """Append rows, once per position."""
        stored = self._stored()
        if stored.marks.get(stored.incarnation, 0) < position:
            both = pa.concat_tables([stored.newest.rows, _typed(rows, self.schema)])
            self._commit(stored, both, stored.incarnation, int(position), position)

    def merge(
        self,
        net: KeyedNet | KeylessNet,
        position: Lsn,
        contents: Contents = _NOTHING,
        copied: ChunkProgress | None = None,
        memory: str | None = None,
    ) -> None:
        """Overlay the net change on the newest version, once per position."""
        stored = self._stored()
        application = stored.incarnation if copied is None else f"{stored.incarnation} copying"
        if stored.marks.get(application, 0) >= position:
            return
        rows = _overlaid(stored.newest.rows, net, self.schema)
        leads_to = position if copied is None else None
        self._commit(stored, rows, application, int(position), leads_to, copied, memory)

    def add_chunk(self, rows: pa.Table, chunk: ChunkProgress) -> None:
        """Append a chunk, once per number."""
        stored = self._stored()
        application = f"{stored.incarnation} chunk"
        if stored.marks.get(application, 0) < chunk.number:
            both = pa.concat_tables([stored.newest.rows, _typed(rows, self.schema)])
            self._commit(stored, both, application, chunk.number, None, chunk)

    def evolve(self, schema: TableSchema) -> None:
        """Add columns, without changing the position."""
        stored = self._found()
        if stored is None:
            return
        rows = _widened(stored.newest.rows, schema.added_to(stored.newest.schema))
        self.schema = schema
        self._commit(stored, rows, "", 0, self.position())

    def _commit(
        self,
        stored: _Stored,
        rows: pa.Table,
        application: str,
        mark: int,
        position: Lsn | None,
        chunk: ChunkProgress | None = None,
        memory: str | None = None,
    ) -> None:
        stored.commits.append(_Commit(rows, self.schema, stored.incarnation, position, chunk, memory))
        stored.marks[application] = max(mark, stored.marks.get(application, 0))

    # -- reading ----------------------------------------------------------------------------------------------------

    def state(self) -> State | None:
        """Return version and position."""
        stored = self._found()
        if stored is None:
            return None
        highest = stored.marks.get(stored.incarnation, 0)
        window = None if highest else stored.window
        position = Lsn(max(stored.created, highest))
        return State(len(stored.commits) - 1, position, stored.newest.schema, stored.generation, window=window)

    def position(self) -> Lsn | None:
        """Return the position."""
        state = self.state()
        return state.position if state else None

    def version(self) -> int | None:
        """Return the newest version."""
        state = self.state()
        return state.version if state else None

    def versions(self, limit: int | None = None) -> list[tuple[int, Lsn]]:
        """Return the versions of this incarnation that have a position, newest first."""
        newest_first = list(enumerate(self._stored().commits))[::-1][:limit]
        return [
            (version, commit.position) for version, commit in self._own(newest_first) if commit.position is not None
        ]

    def chunk_progress(self) -> ChunkProgress | None:
        """Return the last chunk."""
        newest_first = list(enumerate(self._stored().commits))[::-1]
        return next((commit.chunk for _, commit in self._own(newest_first) if commit.chunk is not None), None)

    def memory(self, position: Lsn) -> str | None:
        """Return the state of the envelope at a position."""
        for _, commit in self._own(list(enumerate(self._stored().commits))[::-1]):
            if commit.position == position:
                return commit.memory
        message = f"table {self.schema.table} no longer contains the commit of position {position}"
        raise DefiniteError(message, f"Capture the table again: ALTER SOURCES … RETRY TABLE {self.schema.table};")

    def _own(self, commits: Iterable[tuple[int, _Commit | None]]) -> Iterator[tuple[int, _Commit]]:
        incarnation = self.incarnation()
        for version, commit in commits:
            if commit is not None and commit.incarnation == incarnation:
                yield version, commit

    def at(self, version: int) -> pa.Table:
        """Return the rows of a version."""
        commit = self._stored().commits[version]
        if commit is None:
            message = f"version {version} of {self.schema.table} was removed by compaction"
            raise DefiniteError(message, "A version that is listed in the catalog must stay: report this.")
        return commit.rows

    def current(self) -> pa.Table:
        """Return the newest rows."""
        return self._stored().newest.rows

    def count(self) -> int | None:
        """Return the number of newest rows."""
        return len(self._stored().newest.rows)

    def widened(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns that were added after they were read."""
        return _widened(rows, list(self.schema.columns)[len(rows.column_names) :])

    def incarnation(self) -> str:
        """Return the random id of this table."""
        return self._stored().incarnation

    def _found(self) -> _Stored | None:
        return self._tables.get(self.path) if Path(self.path, _MARKER).exists() else None

    def _stored(self) -> _Stored:
        stored = self._found()
        if stored is None:
            message = f"no base table of {self.schema.table} at {self.path}"
            raise DefiniteError(message, "Drop the source and create it again: its tables are then copied again.")
        return stored


def _typed(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Return rows with exactly the columns of a table, all of them nullable."""
    columns = pa.schema([pa.field(column.name, column.type) for column in schema.columns])
    return pa.Table.from_arrays([rows.column(name) for name in columns.names], schema=columns)


def _widened(rows: pa.Table, added: Sequence[pa.Field]) -> pa.Table:
    for column in added:
        values = missing_value(column).take(pa.array([0] * len(rows), pa.int64()))
        rows = rows.append_column(pa.field(column.name, column.type), values)
    return rows


def _overlaid(rows: pa.Table, net: KeyedNet | KeylessNet, schema: TableSchema) -> pa.Table:
    batches = [_typed(pa.Table.from_batches([batch]), schema) for batch in live_rows(rows.to_batches(), net)]
    return pa.concat_tables([_typed(schema.columns.empty_table(), schema), *batches]).combine_chunks()


def _copied(copy: TableCopy, notes: Path | None = None) -> pa.Table:
    schema = copy.schema
    parts = [_typed(schema.columns.empty_table(), schema)]
    for number in range(copy.ranges):
        tally = Tally()
        parts += [_typed(pa.Table.from_batches([batch]), schema) for batch in copy.read(number, tally)]
        if notes is not None:
            note_range(notes, number, tally)
    return pa.concat_tables(parts).combine_chunks()


def _differences(upstream: pa.Table, live: pa.Table, key: list[str], limit: int) -> Differences:
    keys: dict[str, Any] = {}
    here, there = (_counted(side, key, keys) for side in (upstream, live))
    more, fewer = here - there, there - here
    missing, unexpected = ({name for name, _ in side} for side in (more, fewer))
    found = sorted(missing | unexpected)
    first = [Difference(keys[name], _how(name in missing, name in unexpected), name) for name in found[:limit]]
    counts = (len(missing - unexpected), len(unexpected - missing))
    return Differences(len(found), first, upstream.num_rows, *counts)


def _counted(rows: pa.Table, key: list[str], keys: dict[str, Any]) -> Counter[tuple[str, str]]:
    """Count rows by the text of their key and of the row; store the key of each text in `keys`."""
    struct = pa.array(rows.select(key).to_pylist(), pa.struct([rows.schema.field(name) for name in key]))
    texts = json_rows(struct).to_pylist()
    keys |= dict(zip(texts, struct.to_pylist(), strict=True))
    return Counter(zip(texts, map(repr, rows.to_pylist()), strict=True))


def _how(missing: bool, unexpected: bool) -> How:
    if missing and unexpected:
        return How.CHANGED
    return How.MISSING if missing else How.UNEXPECTED
