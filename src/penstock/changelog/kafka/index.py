"""The index of a log in memory: tables, chunks, frontiers and leases. It does no I/O: records in, answers out.

A reader that starts with the first record (``create``) is complete at any time. One that starts later, where `retain`
has truncated the index, is complete only after the ``state`` record that follows the truncation; until then it collects
publications by the numbers of their tables.

Published chunks and publications are stored in arrays and found by bisection: about 80 bytes per chunk and 24 per
publication, so that a reader of a log with millions of them stays small.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.changelog.as_of import from_microseconds, history_expired, optional_from_microseconds
from penstock.changelog.interface import ChunkRef, Commit, Extent, Frontiers, Lease, LoggedTable
from penstock.changelog.kafka.records import (
    Created,
    Defined,
    IndexedChunk,
    Leased,
    Opened,
    Published,
    Record,
    Settled,
    Staged,
    State,
    TableFailure,
    TableState,
    from_text,
    to_text,
)
from penstock.changelog.kafka.staged_transactions import StagedTransactions
from penstock.errors import LogCorruptError, TableError, table_error
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["ChunkColumns", "Index", "IndexedTable", "Publications"]


@dataclass
class IndexedTable:
    """A table, as the records describe it."""

    number: int
    schemas: list[TableSchema] = field(default_factory=list)
    since: list[int | None] = field(default_factory=list)
    valid: int = 0
    generation: int = 0
    changes: int = 0
    """The number of changes that were ever published."""

    @property
    def name(self) -> TableName:
        """The name of the table."""
        return self.schemas[0].table


class Index:
    """The state of a log after some of its records."""

    def __init__(self) -> None:
        self.is_complete = False
        self.serial: int | None = None
        self.owner = ""
        self.valid = self.valid_at = self.durable = self.peak = 0
        self.committed_at: int | None = None
        self.published_at: int | None = None
        self.last: Commit | None = None
        self.covered = 0
        """The last ``state`` record includes all leases before this offset of the index."""
        self.data_end = 0
        """The offset after the last published one in the data topic."""
        self.publications = Publications()
        self.staging = StagedTransactions()
        self.errors: dict[TableName, TableError] = {}
        self._chunks: defaultdict[int, ChunkColumns] = defaultdict(ChunkColumns)
        self._tables: dict[int, IndexedTable] = {}
        self._numbers: dict[TableName, int] = {}
        self._leases: dict[str, tuple[Leased, int]] = {}

    # -- records in -------------------------------------------------------------------------------------------------

    def apply(self, record: Record, offset: int) -> None:
        """Apply the next record; ignore a record that was applied before."""
        if self.serial is not None and record.serial <= self.serial:
            return
        if self.serial is not None and record.serial != self.serial + 1:
            message = f"the index of the change log is damaged: record {self.serial + 1} is missing"
            raise LogCorruptError(message, "Drop the source and create it again.")
        self._dispatch(record, offset)
        self.serial = record.serial

    def apply_lease(self, lease: Leased, offset: int) -> None:
        """Apply a lease; of two leases of a reader, the later one in the log counts."""
        if offset >= self._leases.get(lease.reader, (lease, -1))[1]:
            self._leases[lease.reader] = (lease, offset)

    def _dispatch(self, record: Record, offset: int) -> None:
        match record:
            case Published():
                self._publish(record, offset)
            case Staged(_, xid, parts):
                self.staging.add(xid, parts)
            case Settled(_, xid, True, aborted):
                self.staging.prepare(xid, aborted)
            case Settled(_, xid, False, _):
                self.staging.end(xid)
            case Defined():
                self._define(record)
            case Opened(_, owner):
                self.owner = owner
                self.staging.drop_unprepared()
            case Created(_, start, at):
                self.is_complete = True
                self.valid = self.durable = start
                self.valid_at = self.peak = at
            case State():
                self._load(record)

    def _publish(self, record: Published, offset: int) -> None:
        for chunk in record.chunks:
            self._record_first_use(chunk.table, chunk.version, chunk.first)
            if chunk.table in self._tables:  # otherwise the next ``state`` record contains them
                self._tables[chunk.table].changes += chunk.changes
        for chunk in sorted(record.chunks, key=lambda chunk: chunk.last):
            self._chunks[chunk.table].add(chunk)
            self.data_end = max(self.data_end, chunk.offset + chunk.parts)
        for xid in record.ended:
            self.staging.end(xid)
        for error in record.errors:
            self.errors.setdefault(TableName.parse(error.table), table_error(*error))
        self.publications.add(record.durable, record.peak, offset)
        self.durable, self.peak = record.durable, record.peak
        if record.committed_at is not None:
            self.committed_at, self.published_at = record.committed_at, record.published_at
        self.last = _commit(record.last) or self.last

    def _record_first_use(self, table: int, version: int, first: int) -> None:
        """Record the first position of a version; an unknown table gets it from the next ``state`` record."""
        known = self._tables.get(table)
        if known is not None and len(known.since) >= version and known.since[version - 1] is None:
            known.since[version - 1] = first

    def _define(self, record: Defined) -> None:
        known = self._tables.setdefault(record.table, IndexedTable(record.table))
        if record.version > len(known.schemas):
            known.schemas.append(TableSchema.from_bytes(from_text(record.schema)))
            known.since.append(record.since)
        self._numbers[known.name] = record.table
        if record.generation > known.generation:
            known.generation, known.valid = record.generation, record.valid
            self.errors.pop(known.name, None)

    # -- the state record -------------------------------------------------------------------------------------------

    def state(self, serial: int, valid: int, valid_at: int, covered: int, now: int) -> State:
        """Return the record that makes history begin at `valid`."""
        tables = tuple(_dump_table(table) for table in self._tables.values())
        errors = tuple(TableFailure.of(error) for error in self.errors.values())
        leases = tuple(lease for lease, _ in self._leases.values() if _is_active(lease, now))
        return State(
            *(serial, self.owner, valid, valid_at, self.durable, self.peak, self.committed_at, self.published_at),
            *(tables, errors, self.staging.dump(), leases, covered, self.data_end),
            None if self.last is None else (self.last.lsn, self.last.xid, self.last.committed_at),
        )

    def _load(self, state: State) -> None:
        self.is_complete = True
        self.owner, self.durable, self.peak = state.owner, state.durable, state.peak
        self.committed_at, self.published_at = state.committed_at, state.published_at
        self.last = _commit(state.last)
        self.valid, self.valid_at, self.covered = state.valid, state.valid_at, state.covered
        self.data_end = max(self.data_end, state.data_end)
        self._tables = {table.table: _load_table(table) for table in state.tables}
        self._numbers = {table.name: number for number, table in self._tables.items()}
        self.errors = {TableName.parse(error.table): table_error(*error) for error in state.errors}
        self.staging.load(state.staged)
        later = {reader: found for reader, found in self._leases.items() if found[1] >= state.covered}
        self._leases = {lease.reader: (lease, state.covered - 1) for lease in state.leases} | later
        self.publications.drop(self.valid)
        for chunks in self._chunks.values():
            chunks.drop(self.valid)

    # -- answers out ------------------------------------------------------------------------------------------------

    def frontiers(self) -> Frontiers:
        """Return the readable range of the log."""
        last, start, passed = (
            optional_from_microseconds(self.committed_at),
            from_microseconds(self.valid_at),
            from_microseconds(self.peak),
        )
        published = optional_from_microseconds(self.published_at)
        return Frontiers(Lsn(self.valid), Lsn(self.durable), last, published, start, passed, self.last)

    def table(self, name: TableName) -> IndexedTable | None:
        """Return the metadata of a table."""
        number = self._numbers.get(name)
        return None if number is None else self._tables[number]

    def next_number(self) -> int:
        """Return a number for a new table."""
        return max(self._tables, default=0) + 1

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables that have a version with a first position."""
        known = (table for table in self._tables.values() if any(since is not None for since in table.since))
        return {table.name: self._logged(table) for table in known}

    def changes(self) -> dict[TableName, int]:
        """Return the number of changes of each table that were ever published."""
        return {table.name: table.changes for table in self._tables.values()}

    def size(self) -> int:
        """Return the size of the published chunks in bytes."""
        return sum(chunks.size() for chunks in self._chunks.values())

    def time_at(self, position: int) -> int:
        """Return the newest time of the publications that end at or before a position."""
        upto = self.publications.upto(position)
        return self.publications.peak[upto - 1] if upto else self.valid_at

    def history_start(self, name: TableName) -> Lsn:
        """Return the position at which the history of a table begins."""
        known = self.table(name)
        return Lsn(max(self.valid, known.valid if known else 0))

    def extent(self, name: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the published changes of a table in (after, upto]."""
        start = self.history_start(name)
        if after < start:
            raise history_expired(name, after, start)
        known = self.table(name)
        if known is None or known.number not in self._chunks:
            return Extent(name, after, upto)
        chunks = tuple(self._chunks[known.number].overlapping(after, upto, self.durable))
        return Extent(name, after, upto, chunks, {c.version: known.schemas[c.version - 1] for c in chunks})

    def all_chunks(self, after: int, upto: int) -> list[ChunkRef]:
        """Return the chunks of all tables in (after, upto]."""
        return [ref for chunks in self._chunks.values() for ref in chunks.overlapping(after, upto, upto)]

    def first_needed_offsets(self) -> tuple[int, int]:
        """Return the first offsets of index and data that are still needed, as far as this reader knows."""
        first = self.publications.offset[0] if self.publications.offset else self.covered
        chunks = (chunks.first_offset() for chunks in self._chunks.values())
        data = [at for at in (self.staging.first_offset(), *chunks) if at is not None]
        return min(first, self.covered), min(data, default=self.data_end)

    def leases(self, now: int) -> list[Lease]:
        """Return the leases that are active at a time, ordered by reader."""
        active = sorted(lease for lease, _ in self._leases.values() if _is_active(lease, now))
        return [Lease(lease.reader, Lsn(lease.at or 0), optional_from_microseconds(lease.expires)) for lease in active]

    def _logged(self, table: IndexedTable) -> LoggedTable:
        since = tuple(None if lsn is None else Lsn(lsn) for lsn in table.since)
        valid = self.history_start(table.name)
        error, start = self.errors.get(table.name), Lsn(table.valid)
        return LoggedTable(tuple(table.schemas), since, valid, error, table.generation, start)


def _commit(fields: Sequence[int] | None) -> Commit | None:
    return None if fields is None else Commit(Lsn(fields[0]), fields[1], fields[2])


def _is_active(lease: Leased, now: int) -> bool:
    return lease.at is not None and (lease.expires is None or lease.expires > now)


def _dump_table(table: IndexedTable) -> TableState:
    schemas = (to_text(schema.to_bytes()) for schema in table.schemas)
    versions = tuple(zip(schemas, table.since, strict=True))
    return TableState(table.number, versions, table.valid, table.generation, table.changes)


def _load_table(state: TableState) -> IndexedTable:
    schemas = [TableSchema.from_bytes(from_text(text)) for text, _ in state.versions]
    since = [since for _, since in state.versions]
    return IndexedTable(state.table, schemas, since, state.valid, state.generation, state.changes)


_Staged = tuple[int, int, bytes | None]


class ChunkColumns:
    """The chunks of a table, ordered by their last transaction."""

    def __init__(self) -> None:
        self._numbers = tuple(array("q") for _ in IndexedChunk._fields[1:-2])
        self._staged: dict[int, _Staged] = {}
        """Keyed by the offset of the data, which is unique to a chunk."""

    @property
    def _last(self) -> array[int]:
        return self._numbers[2]

    @property
    def _offset(self) -> array[int]:
        return self._numbers[7]

    def add(self, chunk: IndexedChunk) -> None:
        """Add a chunk; chunks of a publication must arrive ordered by their last transaction."""
        at = bisect_right(self._last, chunk.last)
        for column, number in zip(self._numbers, chunk[1:-2], strict=True):
            column.insert(at, number)
        if chunk.staged is not None:
            xid, committed_at, aborted = chunk.staged
            self._staged[chunk.offset] = (xid, committed_at, None if aborted is None else from_text(aborted))

    def drop(self, upto: int) -> None:
        """Drop the chunks that end at or before a position."""
        end = bisect_right(self._last, upto)
        for offset in self._offset[:end]:
            self._staged.pop(offset, None)
        for column in self._numbers:
            del column[:end]

    def overlapping(self, after: int, upto: int, durable: int) -> Iterator[ChunkRef]:
        """Yield the chunks that overlap (after, upto] and end at or before `durable`."""
        for at in range(bisect_right(self._last, after), bisect_right(self._last, durable)):
            if self._numbers[1][at] > upto:
                return
            yield self._ref(at)

    def size(self) -> int:
        """Return the size of these chunks in bytes."""
        return sum(self._numbers[4])

    def first_offset(self) -> int | None:
        """Return the lowest offset of these chunks in the data topic; chunks that were staged are out of order."""
        return min(self._offset, default=None)

    def _ref(self, at: int) -> ChunkRef:
        version, first, last, rows, size, flags, checksum, offset, parts, head = (c[at] for c in self._numbers)
        kinds, unchanged = flags >> 1, bool(flags & 1)
        location, staged = (offset, parts, head), self._staged.get(offset)
        return ChunkRef(location, version, Lsn(first), Lsn(last), rows, size, kinds, unchanged, checksum, staged)


class Publications:
    """Every publication: its `durable`, the newest commit time up to it, and the offset of its record."""

    def __init__(self) -> None:
        self.durable, self.peak, self.offset = array("q"), array("q"), array("q")

    def add(self, durable: int, peak: int, offset: int) -> None:
        """Append a publication."""
        self.durable.append(durable)
        self.peak.append(peak)
        self.offset.append(offset)

    def upto(self, position: int) -> int:
        """Return the number of publications that end at or before a position."""
        return bisect_right(self.durable, position)

    def drop(self, position: int) -> None:
        """Drop the publications that end at or before a position."""
        end = self.upto(position)
        for column in (self.durable, self.peak, self.offset):
            del column[:end]
