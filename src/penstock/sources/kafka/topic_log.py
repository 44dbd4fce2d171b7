"""A log whose changes are messages of topics: ticks are in a change log of Penstock, messages stay in Kafka.

::

    extent(table, a, b) ─▶ the ticks of its topic in (a, b] ─▶ offset ranges of each partition
                                    └─▶ Extent: number of messages, kinds of images   (`apply` reads them)

Everything except the changes of such a table comes from the log of ticks: frontiers, times, leases, errors, the start
of history. A range is described by one chunk, which represents the messages of all partitions; a range without messages
has none. The number of messages is derived from offsets, so transaction markers count, too.

Only Spark creates images of such a table. `read` serves other readers, and raises an error for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

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
from penstock.sources.kafka.ticks import OffsetRange, ranges_within, tick_bounds, tick_table
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["TopicLog", "TopicLogReader"]

_KINDS = {
    EnvelopeKind.NONE: (Image.INSERTED,),
    EnvelopeKind.UPSERT: (Image.UPDATED, Image.DELETED_KEY),
    EnvelopeKind.DEBEZIUM_UPSERT: (Image.UPDATED, Image.DELETED_KEY),
    EnvelopeKind.DEBEZIUM: (Image.BEFORE, Image.UPDATED, Image.DELETED, Image.INSERTED),
}
_MESSAGE_BYTES = 200
"""The assumed size of a message: the real one is unknown before it is read."""


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
        """Return the tables of the log, including tick tables."""
        return self._ticks.tables()

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
        """Describe the messages in (after, upto] as one chunk."""
        made = self._log.table(table)
        own = self._ticks.extent(table, after, upto)
        if made is None:
            return own
        read = ranges_within(self._ticks, made.topic.name, after, upto)
        if not read:
            return own
        rows = sum(part.last - part.first for part in read)
        kinds = sum(1 << image for image in _KINDS[made.envelope])
        chunk = ChunkRef((), 0, after, upto, rows, rows * _MESSAGE_BYTES, kinds, False, 0)
        return Extent(table, after, upto, (chunk,))

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield ticks; raise `UsageError` for a table built from messages."""
        if self._log.table(extent.table) is not None:
            message = f"changes of {extent.table} are Kafka messages and are not in the change log"
            hint = "Query its live table, or read the topic with Spark's kafka format."
            raise UsageError(message, hint)
        return self._ticks.read(extent, columns)

    def set_lease(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Keep ticks for a reader."""
        self._ticks.set_lease(reader, at, seconds)

    def leases(self) -> list[Lease]:
        """Return who needs ticks."""
        return self._ticks.leases()

    def close(self) -> None:
        """Release the log of ticks."""
        self._ticks.close()
