"""A log whose changes are messages of topics: ticks are in a change log of Penstock, messages stay in Kafka.

::

    extent(table, a, b) ─▶ the ticks of its topic in (a, b] ─▶ Extent: number of messages, kinds of images
    read(extent)        ─▶ offset ranges of each partition ─▶ messages ─▶ images (`penstock.sources.kafka.topic_images`)

Everything except the changes of such a table comes from the log of ticks: frontiers, times, leases, errors, the start
of history. A chunk represents the messages of some ticks, of all partitions; a range without messages has none. The
number of messages is derived from offsets, so transaction markers count, too.

If a table gains columns, the log of ticks has the version of its schema that begins with a tick, and in it the reader
schema of values. Messages are decoded with the version of their tick, by every reader: `TopicLog.parts` divides a range
where the columns change.

Live views and apply do not use `read`: Spark reads the messages for them (`penstock.sources.kafka.apply`). A table of
ENVELOPE DEBEZIUM has changes for them only, because its state is in the base table.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pyarrow as pa

from penstock.changelog.chunk_codec import widened
from penstock.changelog.interface import (
    ChangeLog,
    ChangeLogReader,
    ChangeLogWriter,
    ChunkRef,
    Extent,
    Frontiers,
    Lease,
    LoggedTable,
)
from penstock.errors import UsageError
from penstock.model import Image, TableName
from penstock.positions import Lsn
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.ticks import (
    OffsetRange,
    ranges_within,
    single_partition_ticks,
    tick_bounds,
    tick_groups,
    tick_table,
)
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions

if TYPE_CHECKING:
    from penstock.sources.kafka.topic_images import TopicImages

__all__ = ["RangePart", "TopicLog", "TopicLogReader", "range_parts"]

_KINDS = {
    EnvelopeKind.NONE: (Image.INSERTED,),
    EnvelopeKind.UPSERT: (Image.UPDATED, Image.DELETED_KEY),
    EnvelopeKind.DEBEZIUM_UPSERT: (Image.UPDATED, Image.DELETED_KEY),
    EnvelopeKind.DEBEZIUM: (Image.BEFORE, Image.UPDATED, Image.DELETED, Image.INSERTED),
}
_MESSAGE_BYTES = 200
"""The assumed size of a message: the real one is unknown before it is read."""


class RangePart(NamedTuple):
    """A part of a range in which the columns of a table do not change."""

    table: TopicTable
    after: Lsn
    upto: Lsn


def range_parts(table: TopicTable, logged: LoggedTable | None, after: Lsn, upto: Lsn) -> list[RangePart]:
    """Divide (after, upto] where the columns of a table change; an empty range has one part."""
    versions = [] if logged is None else list(zip(logged.schemas, logged.since, strict=True))
    begins = sorted({Lsn(since - 1) for _, since in versions if since is not None and after < since - 1 < upto})
    parts: list[RangePart] = []
    for first, last in itertools.pairwise([after, *begins, max(after, upto)]):
        held = [schema for schema, since in versions if since is not None and since <= last]
        own = table.with_logged_columns(held[-1]) if held else table
        if parts and parts[-1].table == own:
            parts[-1] = parts[-1]._replace(upto=last)
        else:
            parts.append(RangePart(own, first, last))
    return parts


@dataclass(frozen=True)
class TopicLog(ChangeLog):
    """The log of a source that reads topics; `ticks` stores its progress."""

    TABLES: ClassVar[str | None] = "penstock.sources.kafka.apply.tables:TopicTables"

    ticks: ChangeLog
    source: str
    what: KafkaSqlOptions
    how: KafkaWithOptions
    tables: tuple[TopicTable, ...]
    state: Path
    """The state folder of the source."""

    @property
    def schemas(self) -> Path:
        """The folder of cached registry schemas."""
        return self.state / "schemas"

    def table(self, name: TableName) -> TopicTable | None:
        """Return a table built from messages, by its name; None for a tick table."""
        return next((table for table in self.tables if table.name == name), None)

    def check_readable(self, tables: Collection[TableName]) -> None:
        """Raise `UsageError` for a table with state: which of its records are changes is known with its rows only."""
        for name in tables:
            made = self.table(name)
            if made is not None and made.remembers():
                message = f"changes of {name} cannot be read: ENVELOPE DEBEZIUM compares each record with its table"
                hint = "Query its live table, or create the source with ENVELOPE DEBEZIUM UPSERT."
                raise UsageError(message, hint)

    def create(self, start: Lsn) -> None:
        """Create the log of ticks."""
        self.ticks.create(start)

    def remove(self) -> None:
        """Remove the log of ticks."""
        self.ticks.remove()

    def exists(self) -> bool:
        """Return whether the log of ticks was created."""
        return self.ticks.exists()

    def writer(self) -> ChangeLogWriter:
        """Open the log of ticks for writing."""
        return self.ticks.writer()

    def reader(self) -> TopicLogReader:
        """Open the log for reading."""
        return TopicLogReader(self, self.ticks.reader())

    def parts(self, table: TopicTable, after: Lsn, upto: Lsn) -> list[RangePart]:
        """Divide (after, upto] where the columns of a table change; see `range_parts`."""
        with closing(self.ticks.reader()) as reader:
            return range_parts(table, reader.tables().get(table.name), after, upto)

    def ranges(self, table: TopicTable, after: Lsn, upto: Lsn) -> list[OffsetRange]:
        """Return the offset ranges of a table's topic in (after, upto]."""
        with closing(self.ticks.reader()) as reader:
            return ranges_within(reader, table.topic.name, after, upto)

    def bounds(self, table: TopicTable, after: Lsn, upto: Lsn) -> pa.Table:
        """Return the tick of these messages; see `tick_bounds`."""
        with closing(self.ticks.reader()) as reader:
            return tick_bounds(reader.read(reader.extent(tick_table(table.topic.name).name, after, upto)))


class TopicLogReader(ChangeLogReader):
    """Reads a `TopicLog`."""

    def __init__(self, log: TopicLog, ticks: ChangeLogReader) -> None:
        self._log = log
        self._ticks = ticks
        self._read: dict[tuple[TableName, str], TopicImages] = {}

    def frontiers(self) -> Frontiers:
        """Return the positions that can be read now."""
        return self._ticks.frontiers()

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Wait for the next tick."""
        return self._ticks.wait(beyond, timeout)

    def position_at(self, moment: datetime) -> Lsn:
        """Return the last tick at or before a time."""
        return self._ticks.position_at(moment)

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables of the log, without tick tables, which are not for users."""
        made = {table.name for table in self._log.tables}
        return {name: logged for name, logged in self._ticks.tables().items() if name in made}

    def time_at(self, position: Lsn) -> datetime:
        """Return the newest time of the ticks up to a position."""
        return self._ticks.time_at(position)

    def changes(self) -> dict[TableName, int]:
        """Return the number of messages of each table, for which the ticks of its topic stand."""
        found = self._ticks.changes()
        made = {table.name: found.get(tick_table(table.topic.name).name, 0) for table in self._log.tables}
        return found | made

    def size(self) -> int:
        """Return the size of the log of ticks; messages stay in Kafka."""
        return self._ticks.size()

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the messages in (after, upto]: a chunk for each group of ticks."""
        made = self._log.table(table)
        own = self._ticks.extent(table, after, upto)
        if made is None:
            return own
        kinds = sum(1 << image for image in _KINDS[made.envelope])
        chunks = []
        for part in self._parts(made, after, upto):
            bounds = self._bounds(made, part.after, part.upto)
            empties = made.records and single_partition_ticks(bounds) is not None
            found = kinds | 1 << Image.TRUNCATE if empties else kinds
            chunks += [
                ChunkRef((), 0, first, last, rows, rows * _MESSAGE_BYTES, found, False, 0)
                for first, last, rows in tick_groups(bounds)
            ]
        return Extent(table, after, upto, tuple(chunks))

    def images_within(self, table: TableName, after: Lsn, upto: Lsn) -> int:
        """Return the number of messages in (after, upto], from the first and the last tick alone."""
        made = self._log.table(table)
        if made is None:
            return self._ticks.images_within(table, after, upto)
        return sum(part.last - part.first for part in ranges_within(self._ticks, made.topic.name, after, upto))

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield ticks, or the images that messages make; raise `UsageError` for an envelope with state."""
        made = self._log.table(extent.table)
        if made is None:
            return self._ticks.read(extent, columns)
        self._log.check_readable([extent.table])
        return self._images(made, extent, columns)

    def _images(self, table: TopicTable, extent: Extent, columns: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        for chunk in extent.chunks:
            after, upto = Lsn(max(extent.after, chunk.first - 1)), Lsn(min(extent.upto, chunk.last))
            for part in self._parts(table, after, upto):
                for images in self._messages(part.table).read(self._bounds(part.table, part.after, part.upto)):
                    yield images if columns is None else widened(images, columns, table.name)

    def _parts(self, table: TopicTable, after: Lsn, upto: Lsn) -> list[RangePart]:
        return range_parts(table, self._ticks.tables().get(table.name), after, upto)

    def _messages(self, table: TopicTable) -> TopicImages:
        from penstock.sources.kafka.topic_images import TopicImages  # envelopes need PySpark's types

        log = self._log
        key = table.name, table.reader
        if key not in self._read:
            self._read[key] = TopicImages(log.what, log.how, log.source, table, log.schemas)
        return self._read[key]

    def _bounds(self, table: TopicTable, after: Lsn, upto: Lsn) -> pa.Table:
        return tick_bounds(self._ticks.read(self._ticks.extent(tick_table(table.topic.name).name, after, upto)))

    def set_lease(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Keep ticks for a reader."""
        self._ticks.set_lease(reader, at, seconds)

    def leases(self) -> list[Lease]:
        """Return who needs ticks."""
        return self._ticks.leases()

    def close(self) -> None:
        """Release the log of ticks, and the consumers of topics."""
        for read in self._read.values():
            read.close()
        self._ticks.close()
