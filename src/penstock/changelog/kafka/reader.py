"""A reader of a log in Kafka, on any machine.

Its clients are created when first needed: an executor that reads an extent never reads the index.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

import pyarrow as pa

from penstock.changelog.as_of import history_expired, microseconds
from penstock.changelog.chunk_codec import StoredChunk, widened
from penstock.changelog.interface import ChangeLogReader, ChunkRef, Extent, Frontiers, Lease, LoggedTable
from penstock.changelog.kafka.clients import LogLocation
from penstock.changelog.kafka.commit_times import position_at
from penstock.changelog.kafka.index_tail import IndexTail
from penstock.changelog.kafka.leases import LeaseWriter
from penstock.changelog.kafka.payloads import DataExpiredError, Payloads, data_lost
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["KafkaLogReader"]

_SOURCE = "the source"
_ATTEMPTS = 3


class KafkaLogReader(ChangeLogReader):
    """A reader of the log at `location`; create one per thread."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._tail = IndexTail(location)
        self._payloads = Payloads(location)
        self._lease_writer = LeaseWriter(location)

    def frontiers(self) -> Frontiers:
        """Return the range that can be read now."""
        return self._tail.refresh().frontiers()

    def wait(self, beyond: Lsn, timeout: float) -> Frontiers:
        """Wait for new records; the broker holds the fetch request until there are some."""
        return self._tail.wait(beyond, timeout).frontiers()

    def position_at(self, moment: datetime) -> Lsn:
        """Find the first publication with a later commit time, and the transaction in it."""
        for _ in range(_ATTEMPTS):
            index = self._tail.refresh()
            with suppress(DataExpiredError):  # `retain` truncated the log meanwhile; the next refresh shows it
                found = position_at(index, self._payloads, microseconds(moment))
                if found is None:
                    raise history_expired(_SOURCE, moment, Lsn(index.valid))
                return found
        raise data_lost(self._location, f"the publication at {moment}")

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the tables with their schemas and errors."""
        return self._tail.refresh().tables()

    def extent(self, table: TableName, after: Lsn, upto: Lsn) -> Extent:
        """Describe the chunks that overlap (after, upto], from memory."""
        return self._tail.refresh().extent(table, after, upto)

    def read(self, extent: Extent, columns: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Yield images chunk by chunk; verify the checksum of each chunk."""
        try:
            for chunk in extent.chunks:
                stored = self._stored(chunk, extent)
                stored.verify(chunk.checksum, f"the chunk of {extent.table} at offset {chunk.location[0]}")
                batch = stored.within(chunk, extent)
                if batch.num_rows:
                    yield batch if columns is None else widened(batch, columns, extent.table)
        finally:
            self._payloads.pause()

    def set_lease(self, reader: str, at: Lsn | None, seconds: float | None = None) -> None:
        """Write a lease to the index, unless the history that it needs was removed."""
        index = self._tail.refresh()
        if at is not None and at < index.valid:
            raise history_expired(_SOURCE, at, Lsn(index.valid))
        self._lease_writer.write(reader, at, seconds, index)

    def leases(self) -> list[Lease]:
        """Return the leases that have not expired."""
        return self._tail.refresh(strict=True).leases(time.time_ns() // 1000)

    def close(self) -> None:
        """Close all clients."""
        self._tail.close()
        self._payloads.close()

    def _stored(self, chunk: ChunkRef, extent: Extent) -> StoredChunk:
        try:
            return self._payloads.chunk(chunk.location)
        except DataExpiredError:
            raise self._missing_data_error(chunk, extent) from None

    def _missing_data_error(self, chunk: ChunkRef, extent: Extent) -> Exception:
        """Return the error for missing data: history was removed, or the log is damaged."""
        valid = self._tail.refresh().history_start(extent.table)
        if extent.after < valid:
            return history_expired(extent.table, extent.after, valid)
        return data_lost(self._location, f"{extent.table} at offset {chunk.location[0]}")
