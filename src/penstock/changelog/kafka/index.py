"""The index of a log in memory: tables, chunks, frontiers and leases. No I/O: records in, answers out.

A reader that starts with the first record (``create``) is complete at any time. One that starts later, where `retain`
has truncated the index, is `whole` only after the ``state`` record that follows the truncation; until then it collects
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

from penstock.changelog.as_of import exactly, history_gone, moment
from penstock.changelog.interface import ChunkRef, Commit, Extent, Frontiers, LoggedTable, Pin
from penstock.changelog.kafka.records import (
    Created,
    Defined,
    Described,
    Failed,
    Opened,
    Pinned,
    Published,
    Record,
    Settled,
    Staged,
    State,
    TableState,
    from_text,
    to_text,
)
from penstock.changelog.kafka.staging import Staging
from penstock.errors import LogCorruptError, TableError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn

__all__ = ["ChunkColumns", "Index", "KnownTable", "Publications"]


@dataclass
class KnownTable:
    """A table, as far as records have told."""

    number: int
    schemas: list[TableSchema] = field(default_factory=list)
    since: list[int | None] = field(default_factory=list)
    valid: int = 0
    generation: int = 0

    @property
    def name(self) -> TableName:
        """Its name."""
        return self.schemas[0].table


class Index:
    """The state of a log after some of its records."""

    def __init__(self) -> None:
        self.whole = False
        self.serial: int | None = None
        self.owner = ""
        self.valid = self.valid_at = self.durable = self.peak = 0
        self.committed_at: int | None = None
        self.published_at: int | None = None
        self.last: Commit | None = None
        self.covered = 0
        """Up to which offset of the index the last ``state`` record holds all pins."""
        self.data_end = 0
        """Behind the last offset of the data topic that was published."""
        self.publications = Publications()
        self.staging = Staging()
        self.errors: dict[TableName, TableError] = {}
        self._chunks: defaultdict[int, ChunkColumns] = defaultdict(ChunkColumns)
        self._tables: dict[int, KnownTable] = {}
        self._numbers: dict[TableName, int] = {}
        self._pins: dict[str, tuple[Pinned, int]] = {}

    # -- records in -------------------------------------------------------------------------------------------------

    def apply(self, record: Record, offset: int) -> None:
        """Take in the next record; one that was seen before changes nothing."""
        if self.serial is not None and record.serial <= self.serial:
            return
        if self.serial is not None and record.serial != self.serial + 1:
            message = f"the index of the change log is damaged: record {self.serial + 1} is missing"
            raise LogCorruptError(message, "Drop the source and capture it afresh.")
        self._take(record, offset)
        self.serial = record.serial

    def apply_pin(self, pin: Pinned, offset: int) -> None:
        """Take in a pin; of two of one reader, that which the log has later counts."""
        if offset >= self._pins.get(pin.reader, (pin, -1))[1]:
            self._pins[pin.reader] = (pin, offset)

    def _take(self, record: Record, offset: int) -> None:
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
                self.whole = True
                self.valid = self.durable = start
                self.valid_at = self.peak = at
            case State():
                self._load(record)

    def _publish(self, record: Published, offset: int) -> None:
        for chunk in record.chunks:
            self._came_up(chunk.table, chunk.version, chunk.first)
        for chunk in sorted(record.chunks, key=lambda chunk: chunk.last):
            self._chunks[chunk.table].add(chunk)
            self.data_end = max(self.data_end, chunk.offset + chunk.parts)
        for xid in record.ended:
            self.staging.end(xid)
        for error in record.errors:
            self.errors.setdefault(TableName.parse(error.table), TableError(*error))
        self.publications.add(record.durable, record.peak, offset)
        self.durable, self.peak = record.durable, record.peak
        if record.committed_at is not None:
            self.committed_at, self.published_at = record.committed_at, record.published_at
        self.last = _commit(record.last) or self.last

    def _came_up(self, table: int, version: int, first: int) -> None:
        """Note from when on a version holds; of a table that is not known yet, the state to come tells."""
        known = self._tables.get(table)
        if known is not None and len(known.since) >= version and known.since[version - 1] is None:
            known.since[version - 1] = first

    def _define(self, record: Defined) -> None:
        known = self._tables.setdefault(record.table, KnownTable(record.table))
        if record.version > len(known.schemas):
            known.schemas.append(TableSchema.from_bytes(from_text(record.schema)))
            known.since.append(record.since)
        self._numbers[known.name] = record.table
        if record.generation > known.generation:
            known.generation, known.valid = record.generation, record.valid
            self.errors.pop(known.name, None)

    # -- the state record -------------------------------------------------------------------------------------------

    def state(self, serial: int, valid: int, valid_at: int, covered: int, now: int) -> State:
        """Return the record that lets history begin at `valid` from here on."""
        tables = tuple(_dumped(table) for table in self._tables.values())
        errors = tuple(Failed(*error.args) for error in self.errors.values())
        pins = tuple(pin for pin, _ in self._pins.values() if _holds(pin, now))
        return State(
            *(serial, self.owner, valid, valid_at, self.durable, self.peak, self.committed_at, self.published_at),
            *(tables, errors, self.staging.dump(), pins, covered, self.data_end),
            None if self.last is None else (self.last.lsn, self.last.xid, self.last.committed_at),
        )

    def _load(self, state: State) -> None:
        self.whole = True
        self.owner, self.durable, self.peak = state.owner, state.durable, state.peak
        self.committed_at, self.published_at = state.committed_at, state.published_at
        self.last = _commit(state.last)
        self.valid, self.valid_at, self.covered = state.valid, state.valid_at, state.covered
        self.data_end = max(self.data_end, state.data_end)
        self._tables = {table.table: _loaded(table) for table in state.tables}
        self._numbers = {table.name: number for number, table in self._tables.items()}
        self.errors = {TableName.parse(error.table): TableError(*error) for error in state.errors}
        self.staging.load(state.staged)
        later = {reader: found for reader, found in self._pins.items() if found[1] >= state.covered}
        self._pins = {pin.reader: (pin, state.covered - 1) for pin in state.pins} | later
        self.publications.drop(self.valid)
        for chunks in self._chunks.values():
            chunks.drop(self.valid)

    # -- answers out ------------------------------------------------------------------------------------------------

    def frontiers(self) -> Frontiers:
        """Return how far the log can be read."""
        last, begun, passed = moment(self.committed_at), exactly(self.valid_at), exactly(self.peak)
        published = moment(self.published_at)
        return Frontiers(Lsn(self.valid), Lsn(self.durable), last, published, begun, passed, self.last)

    def table(self, name: TableName) -> KnownTable | None:
        """Return what is known of a table."""
        number = self._numbers.get(name)
        return None if number is None else self._tables[number]

    def next_number(self) -> int:
        """Return a number for a table that is new."""
        return max(self._tables, default=0) + 1

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables of which a version holds."""
        known = (table for table in self._tables.values() if any(since is not None for since in table.since))
        return {table.name: self._logged(table) for table in known}

    def valid_of(self, name: TableName) -> Lsn:
        """Return where the history of a table begins."""
        known = self.table(name)
        return Lsn(max(self.valid, known.valid if known else 0))

    def extent(self, name: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe what is published of a table in (after, upto]."""
        begun = self.valid_of(name)
        if after < begun:
            raise history_gone(name, after, begun)
        known = self.table(name)
        if known is None or known.number not in self._chunks:
            return Extent(name, after, upto)
        chunks = tuple(self._chunks[known.number].between(after, upto, self.durable))
        return Extent(name, after, upto, chunks, {c.version: known.schemas[c.version - 1] for c in chunks})

    def all_chunks(self, after: int, upto: int) -> list[ChunkRef]:
        """Return the chunks of all tables in (after, upto]."""
        return [ref for chunks in self._chunks.values() for ref in chunks.between(after, upto, upto)]

    def needed(self) -> tuple[int, int]:
        """Return the first offsets of index and data that are still needed, as far as this reader knows."""
        first = self.publications.offset[0] if self.publications.offset else self.covered
        chunks = (chunks.first_offset() for chunks in self._chunks.values())
        data = [at for at in (self.staging.first_offset(), *chunks) if at is not None]
        return min(first, self.covered), min(data, default=self.data_end)

    def pins(self, now: int) -> list[Pin]:
        """Return the pins that hold at a moment, by reader."""
        held = sorted(pin for pin, _ in self._pins.values() if _holds(pin, now))
        return [Pin(pin.reader, Lsn(pin.at or 0), moment(pin.expires)) for pin in held]

    def _logged(self, table: KnownTable) -> LoggedTable:
        since = tuple(None if lsn is None else Lsn(lsn) for lsn in table.since)
        valid = self.valid_of(table.name)
        error, begun = self.errors.get(table.name), Lsn(table.valid)
        return LoggedTable(tuple(table.schemas), since, valid, error, table.generation, begun)


def _commit(told: Sequence[int] | None) -> Commit | None:
    return None if told is None else Commit(Lsn(told[0]), told[1], told[2])


def _holds(pin: Pinned, now: int) -> bool:
    return pin.at is not None and (pin.expires is None or pin.expires > now)


def _dumped(table: KnownTable) -> TableState:
    schemas = (to_text(schema.to_bytes()) for schema in table.schemas)
    return TableState(table.number, tuple(zip(schemas, table.since, strict=True)), table.valid, table.generation)


def _loaded(state: TableState) -> KnownTable:
    schemas = [TableSchema.from_bytes(from_text(text)) for text, _ in state.versions]
    return KnownTable(state.table, schemas, [since for _, since in state.versions], state.valid, state.generation)


_Staged = tuple[int, int, bytes | None]


class ChunkColumns:
    """The chunks of a table, in order of their last transaction."""

    def __init__(self) -> None:
        self._numbers = tuple(array("q") for _ in Described._fields[1:-1])
        self._staged: dict[int, _Staged] = {}
        """By the offset of the data, which is a chunk's own."""

    @property
    def _last(self) -> array[int]:
        return self._numbers[2]

    @property
    def _offset(self) -> array[int]:
        return self._numbers[7]

    def add(self, chunk: Described) -> None:
        """Add a chunk; chunks of one publication come in order of their last transaction."""
        at = bisect_right(self._last, chunk.last)
        for column, number in zip(self._numbers, chunk[1:-1], strict=True):
            column.insert(at, number)
        if chunk.staged is not None:
            xid, committed_at, aborted = chunk.staged
            self._staged[chunk.offset] = (xid, committed_at, None if aborted is None else from_text(aborted))

    def drop(self, upto: int) -> None:
        """Forget the chunks that end at or before a position."""
        end = bisect_right(self._last, upto)
        for offset in self._offset[:end]:
            self._staged.pop(offset, None)
        for column in self._numbers:
            del column[:end]

    def between(self, after: int, upto: int, durable: int) -> Iterator[ChunkRef]:
        """Yield the chunks that touch (after, upto] and end at or before `durable`."""
        for at in range(bisect_right(self._last, after), bisect_right(self._last, durable)):
            if self._numbers[1][at] > upto:
                return
            yield self._ref(at)

    def first_offset(self) -> int | None:
        """Return where in the data topic the first of these chunks begins; staged ones were written long before."""
        return min(self._offset, default=None)

    def _ref(self, at: int) -> ChunkRef:
        version, first, last, rows, size, flags, checksum, offset, parts, head = (c[at] for c in self._numbers)
        kinds, unchanged = flags >> 1, bool(flags & 1)
        place, staged = (offset, parts, head), self._staged.get(offset)
        return ChunkRef(place, version, Lsn(first), Lsn(last), rows, size, kinds, unchanged, checksum, staged)


class Publications:
    """Every publication: how far it went, the newest commit time up to there, and where its record is."""

    def __init__(self) -> None:
        self.durable, self.peak, self.offset = array("q"), array("q"), array("q")

    def add(self, durable: int, peak: int, offset: int) -> None:
        """Add the last one."""
        self.durable.append(durable)
        self.peak.append(peak)
        self.offset.append(offset)

    def upto(self, position: int) -> int:
        """Return how many end at or before a position."""
        return bisect_right(self.durable, position)

    def drop(self, position: int) -> None:
        """Forget those that end at or before a position."""
        end = self.upto(position)
        for column in (self.durable, self.peak, self.offset):
            del column[:end]
