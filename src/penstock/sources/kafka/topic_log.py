"""A log whose changes are messages of topics: ticks are in a log of ours, the messages stay where they are.

::

    extent(table, a, b) ─▶ the ticks of its topic in (a, b] ─▶ from which offset to which, in each partition
                                    └─▶ Extent: so many messages, these kinds of images   (penstock.spark.topics reads)

Everything but the changes of such a table is asked of the log that holds the ticks: frontiers, moments, pins, errors,
where history begins. What a range of it holds is told by one chunk, which stands for the messages of all partitions; a
range without messages has none. How many messages there are is told by offsets: markers of transactions count, too.

Images of such a table are made by Spark alone. `read` is for those who want them elsewhere, and refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from penstock.changelog.interface import (
    ChangeLog,
    ChangeLogReader,
    ChangeLogWriter,
    ChunkRef,
    Extent,
    Frontiers,
    LoggedTable,
    Pin,
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
"""What a message is taken to have: its size is not known before it is read."""


@dataclass(frozen=True)
class TopicLog(ChangeLog):
    """The log of a source that reads topics; `ticks` is where it notes how far."""

    ticks: ChangeLog
    source: str
    what: KafkaSqlOptions
    how: KafkaWithOptions
    tables: tuple[TopicTable, ...]
    state: Path
    """A folder of the source's own."""

    @property
    def schemas(self) -> Path:
        """Where schemas of a registry are kept, once they were asked for."""
        return self.state / "schemas"

    def table(self, name: TableName) -> TopicTable | None:
        """Return a table that messages make, by its name; None for one of ticks."""
        return next((table for table in self.tables if table.name == name), None)

    def create(self, start: Lsn) -> None:
        """Make the log of ticks."""
        self.ticks.create(start)

    def remove(self) -> None:
        """Remove the log of ticks."""
        self.ticks.remove()

    def exists(self) -> bool:
        """Say whether the log of ticks was created."""
        return self.ticks.exists()

    def writer(self) -> ChangeLogWriter:
        """Open the log of ticks for writing."""
        return self.ticks.writer()

    def reader(self) -> TopicLogReader:
        """Open it for reading."""
        return TopicLogReader(self, self.ticks.reader())

    def ranges(self, table: TopicTable, after: Lsn, upto: Lsn) -> list[OffsetRange]:
        """Return which messages of a table's topic are in (after, upto]."""
        with closing(self.ticks.reader()) as reader:
            return ranges_within(reader, table.topic.name, after, upto)

    def bounds(self, table: TopicTable, after: Lsn, upto: Lsn) -> pa.Table:
        """Return which of these messages are of which tick; see `tick_bounds`."""
        with closing(self.ticks.reader()) as reader:
            return tick_bounds(reader.read(reader.extent(tick_table(table.topic.name).name, after, upto)))


class TopicLogReader(ChangeLogReader):
    """Reads a `TopicLog`."""

    def __init__(self, log: TopicLog, ticks: ChangeLogReader) -> None:
        self._log = log
        self._ticks = ticks

    def frontiers(self) -> Frontiers:
        """Return what can be read now."""
        return self._ticks.frontiers()

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Wait for the next tick."""
        return self._ticks.wait(beyond, timeout)

    def position_at(self, moment: datetime) -> Lsn:
        """Return the last tick of a moment."""
        return self._ticks.position_at(moment)

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables that the log knows, those of ticks among them."""
        return self._ticks.tables()

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe which messages there are in (after, upto], as one chunk."""
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
        """Yield ticks; refuse messages."""
        if self._log.table(extent.table) is not None:
            message = f"changes of {extent.table} are messages in Kafka, which are not in the change log"
            hint = "Query its live table; or read the topic itself, by Spark's format kafka."
            raise UsageError(message, hint)
        return self._ticks.read(extent, columns)

    def pin(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Keep ticks for a reader."""
        self._ticks.pin(reader, at, seconds)

    def pins(self) -> list[Pin]:
        """Return who needs ticks."""
        return self._ticks.pins()

    def close(self) -> None:
        """Let go of the log of ticks."""
        self._ticks.close()
