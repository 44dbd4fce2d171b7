"""A log in Kafka: its location, its reader, and the leases that readers write.

The location consists of brokers, a name, and client settings. It is written as a URL::

    kafka://b1:9092,b2:9092/prefix?security.protocol=SASL_SSL&sasl.username=u&sasl.password=env:KAFKA_PASSWORD

The name of a log is ``<prefix>.<source>``; the default prefix is ``penstock``.

A reader may run on any machine. Its clients are created when first needed: an executor that reads an extent never reads
the index. A lease is a single record between those of the writer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa
from confluent_kafka import KafkaException, Producer

from penstock.changelog.as_of import from_microseconds, history_expired, microseconds
from penstock.changelog.chunk_codec import StoredChunk, widened
from penstock.changelog.interface import ChangeLog, ChangeLogReader, ChunkRef, Extent, Frontiers, Lease, LoggedTable
from penstock.changelog.kafka.clients import (
    Delivery,
    LogLocation,
    Settings,
    cause_of,
    checked_settings,
    plain_producer,
    translated_error,
)
from penstock.changelog.kafka.commit_times import position_at
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.index_tail import IndexTail
from penstock.changelog.kafka.records import DataExpiredError, Leased, Payloads, data_lost, messages
from penstock.changelog.kafka.topics import (
    delete_topics,
    has_first_record,
    require_topics,
    topics_exist,
    write_first_record,
)
from penstock.changelog.kafka.writer import KafkaLogWriter
from penstock.errors import UsageError
from penstock.model import TableName
from penstock.positions import Lsn

__all__ = ["KafkaLog", "KafkaLogReader"]

_EXAMPLE = "Use a URL like kafka://broker1:9092,broker2:9092/prefix?security.protocol=SSL."
_PREFIX = "penstock"
_BROKERS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_LONGEST = 249 - len(".index")


@dataclass(frozen=True)
class KafkaLog(ChangeLog):
    """The log in the topics ``<name>.index`` and ``<name>.data``."""

    brokers: str
    name: str
    settings: Settings = ()

    def __post_init__(self) -> None:
        """Reject invalid brokers, names and settings, and plain-text secrets."""
        if not all(_BROKERS.fullmatch(broker) for broker in self.brokers.split(",")):
            message = "the brokers of a change log must be a comma-separated list of host and port"
            raise UsageError(message, _EXAMPLE)
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST or self.name in (".", ".."):
            message = f"{self.name!r} is not a valid name of a Kafka topic"
            raise UsageError(message, f"Use at most {_LONGEST} letters, digits, dots, dashes and underscores.")
        object.__setattr__(self, "settings", checked_settings(self.settings))

    @classmethod
    def parse(cls, url: str, source: str) -> Self:
        """Parse a URL, see the module docstring; errors repeat only names from it."""
        try:
            parts = urlsplit(url)
        except ValueError:
            parts = urlsplit("")
        if parts.scheme != "kafka" or not parts.netloc or parts.fragment:
            message = "the URL of a change log in Kafka must begin with kafka:// and name the brokers"
            raise UsageError(message, _EXAMPLE)
        if "@" in parts.netloc:
            message = "the URL of a change log must not have a user or password before its brokers"
            raise UsageError(message, "Use settings instead: ?sasl.username=…&sasl.password=env:NAME.")
        prefix = unquote(parts.path).strip("/") or _PREFIX
        return cls(parts.netloc, f"{prefix}.{source}", _query(parts.query))

    def url(self) -> str:
        """Return the URL that `parse` reads; it contains references, no secrets."""
        query = "&".join(f"{name}={quote(value, safe='/:,')}" for name, value in self.settings)
        prefix = self.name.rpartition(".")[0]
        return f"kafka://{self.brokers}/{prefix}{'?' if query else ''}{query}"

    def create(self, start: Lsn) -> None:
        """Create the topics, and the first record unless it exists."""
        location = self._location()
        require_topics(location)
        if not has_first_record(location):
            write_first_record(location, start, time.time_ns() // 1000)

    def remove(self) -> None:
        """Delete the topics."""
        delete_topics(self._location())

    def exists(self) -> bool:
        """Return whether the topics exist and have a first record."""
        location = self._location()
        return topics_exist(location) and has_first_record(location)

    def writer(self) -> KafkaLogWriter:
        """Open the log for writing; this fences an earlier writer."""
        return KafkaLogWriter(self._location())

    def reader(self) -> KafkaLogReader:
        """Open the log for reading; clients connect when they are first needed."""
        return KafkaLogReader(self._location())

    def __str__(self) -> str:
        """Return brokers and name."""
        return f"kafka://{self.brokers} {self.name}"

    def _location(self) -> LogLocation:
        return LogLocation(self.brokers, self.name, self.settings)


def _query(text: str) -> Settings:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True) if text else []
    except ValueError:
        message = "the settings in the URL of a change log cannot be parsed"
        raise UsageError(message, "Write each as name=value, separated by &.") from None
    if len({name for name, _ in pairs}) != len(pairs):
        message = "the URL of a change log contains the same setting twice"
        raise UsageError(message, "Specify each setting once.")
    return tuple(pairs)


# -- reader ------------------------------------------------------------------------------------------------------------

_SOURCE = "the source"
_ATTEMPTS = 3


class KafkaLogReader(ChangeLogReader):
    """A reader of the log at `location`; create one per thread."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._tail = IndexTail(location)
        self._payloads = Payloads(location)
        self._lease_writer = _LeaseWriter(location)

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

    def time_at(self, position: Lsn) -> datetime:
        """Search the publications in memory."""
        return from_microseconds(self._tail.refresh().time_at(position))

    def changes(self) -> dict[TableName, int]:
        """Return the totals, from memory."""
        return self._tail.refresh().changes()

    def size(self) -> int:
        """Return the size of the chunks, from memory; the messages of Kafka add some bytes to each."""
        return self._tail.refresh().size()

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


# -- leases ------------------------------------------------------------------------------------------------------------

_TIMEOUT = 60.0
_LIMIT = 1_000_000


class _LeaseWriter:
    """Writes leases; creates its client for the first one."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._client: Producer | None = None

    def write(self, reader: str, at: Lsn | None, seconds: float | None, index: Index) -> None:
        """Write a lease and wait until the brokers have it.

        `index` includes the lease immediately, even if an open transaction precedes it in the topic.
        """
        expires = None if seconds is None else time.time_ns() // 1000 + round(seconds * 1e6)
        lease = Leased(reader, None if at is None else int(at), expires)
        index.apply_lease(lease, self._delivered(lease))

    def _delivered(self, lease: Leased) -> int:
        delivery = Delivery()
        [value] = messages(lease, _LIMIT)
        try:
            self._client = self._client or plain_producer(self._location)
            self._client.produce(self._location.index, value, partition=0, on_delivery=delivery)
            self._client.flush(_TIMEOUT)
            return delivery.offset()
        except KafkaException as failed:
            self._client = None
            raise translated_error(self._location, "written", cause_of(failed)) from failed
