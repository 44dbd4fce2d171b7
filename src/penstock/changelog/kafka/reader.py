"""A reader of a log in Kafka, on any machine.

What it needs is made when it is needed: an executor that reads an extent never looks at the index.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import pyarrow as pa

from penstock.changelog.as_of import history_gone, microseconds
from penstock.changelog.frames import StoredChunk, widened
from penstock.changelog.interface import ChangeLogReader, ChunkRef, Extent, Frontiers, LoggedTable, Pin
from penstock.changelog.kafka.clients import Place
from penstock.changelog.kafka.leases import PinWriter
from penstock.changelog.kafka.moments import position_at
from penstock.changelog.kafka.payloads import DataExpiredError, Payloads, data_lost
from penstock.changelog.kafka.tail import Tail
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["KafkaLogReader"]

_SOURCE = "the source"
_LOOKS = 3


class KafkaLogReader(ChangeLogReader):
    """A reader of the log at `place`; make one per thread."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._tail = Tail(place)
        self._payloads = Payloads(place)
        self._pins = PinWriter(place)

    def frontiers(self) -> Frontiers:
        """Return what can be read now."""
        return self._tail.refresh().frontiers()

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Wait for news; the broker holds the request until there are some."""
        return self._tail.wait(beyond, timeout).frontiers()

    def position_at(self, moment: datetime) -> Lsn:
        """Find the publication in which a later commit time first came up, and in it the transaction."""
        for _ in range(_LOOKS):
            index = self._tail.refresh()
            with suppress(DataExpiredError):  # `retain` has cut since; the next look shows it
                found = position_at(index, self._payloads, microseconds(moment))
                if found is None:
                    raise history_gone(_SOURCE, moment, Lsn(index.valid))
                return found
        raise data_lost(self._place, f"the publication at {moment}")

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables with their schemas and errors."""
        return self._tail.refresh().tables()

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the chunks that touch (after, upto], from memory."""
        return self._tail.refresh().extent(table, after, upto)

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield images chunk by chunk, each checked against its checksum."""
        try:
            for chunk in extent.chunks:
                stored = self._stored(chunk, extent)
                stored.verify(chunk.checksum, f"the chunk of {extent.table} at offset {chunk.place[0]}")
                batch = stored.within(chunk, extent)
                if batch.num_rows:
                    yield batch if columns is None else widened(batch, columns, extent.table)
        finally:
            self._payloads.rest()

    def pin(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Write a pin into the index, unless what it asks for is gone."""
        index = self._tail.refresh()
        if at is not None and at < index.valid:
            raise history_gone(_SOURCE, at, Lsn(index.valid))
        self._pins.write(reader, at, seconds, index)

    def pins(self) -> list[Pin]:
        """Return the pins that have not expired."""
        return self._tail.refresh(strict=True).pins(time.time_ns() // 1000)

    def close(self) -> None:
        """Let go of all clients."""
        self._tail.close()
        self._payloads.close()

    def _stored(self, chunk: ChunkRef, extent: Extent) -> StoredChunk:
        try:
            return self._payloads.chunk(chunk.place)
        except DataExpiredError:
            raise self._gone(chunk, extent) from None

    def _gone(self, chunk: ChunkRef, extent: Extent) -> Exception:
        """Say what it means that data is not there: history was removed, or the log is damaged."""
        valid = self._tail.refresh().valid_of(extent.table)
        if extent.after < valid:
            return history_gone(extent.table, extent.after, valid)
        return data_lost(self._place, f"{extent.table} at offset {chunk.place[0]}")
