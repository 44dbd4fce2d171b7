"""Follows the index topic: reads it from its beginning and then as it grows, into an `Index` in memory.

`refresh` queries the last stable offset through a separate connection: a broker answers the requests of a connection in
order, so the query would otherwise wait for the long-polling fetch.

The last stable offset is after the marker of the last Kafka transaction, and clients never return markers. The index is
therefore read completely when all but the last offset are read: the last one is a marker or else a lease. A caller that
needs leases waits until the client reports the end of the partition (`strict`).

If `retain` truncated the index beyond the position of this reader, it starts again at the truncation point.
"""

from __future__ import annotations

import time
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.changelog.kafka.clients import (
    DEFINITE,
    MISSING,
    LogLocation,
    cause_of,
    consumer,
    log_not_found,
    lost_end_hint,
    translated_error,
)
from penstock.changelog.kafka.index import Index
from penstock.changelog.kafka.records import Assembler, Leased
from penstock.changelog.kafka.topics import topics_exist
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.kafka_offsets import require_watermarks
from penstock.positions import Lsn

__all__ = ["IndexTail"]

_TIMEOUT = 60.0
_IDLE_MS = 250
_SLICE = 0.2
_QUERY_SECONDS = 3.0
_BATCH = 1000
_TRUNCATED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}


class IndexTail:
    """The index of a log and the clients that keep it up to date; they are created when first needed."""

    def __init__(self, location: LogLocation) -> None:
        self.index = Index()
        self._location = location
        self._consumer: Consumer | None = None
        self._offsets_client: Consumer | None = None
        self._assembler = Assembler()
        self.next = 0
        """All records before this offset were read."""

    def refresh(self, *, strict: bool = False, timeout: float | None = None) -> Index:
        """Read everything that is committed now; with `strict`, also a lease at the very end."""
        deadline = time.monotonic() + (_TIMEOUT if timeout is None else timeout)
        _, end = self._offsets(deadline)
        while self.next < end and (not self.index.is_complete or strict or self.next < end - 1):
            self._poll(_SLICE)
            if time.monotonic() > deadline:
                raise self._timeout_error()
        if not self.index.is_complete:
            message = f"{self._location.index} at {self._location.brokers} is empty: not the index of a change log"
            raise DefiniteError(message, "Drop the source and create it again.")
        return self.index

    def until(self, serial: int, deadline: float) -> None:
        """Read until a record is in the index."""
        while self.index.serial is None or self.index.serial < serial:
            self._poll(_SLICE)
            if time.monotonic() > deadline:
                raise self._timeout_error()

    def wait(self, beyond: Lsn, timeout: float) -> Index:
        """Read until `durable` is beyond a position, for at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if self._consumer is None or timeout <= 0:
            self.refresh()
        while self.index.durable <= beyond and (left := deadline - time.monotonic()) > 0:
            self._poll(min(left, _SLICE))
        return self.index if self.index.is_complete else self.refresh()

    def close(self) -> None:
        """Close the clients."""
        for client in (self._consumer, self._offsets_client):
            if client is not None:
                client.close()
        self._consumer = self._offsets_client = None

    def _offsets(self, deadline: float) -> tuple[int, int]:
        """Query the first offset of the index and the last stable offset, with retries."""
        while True:
            try:
                return self._query_offsets()
            except KafkaException as error:
                cause = cause_of(error)
                self._check(cause)
                if time.monotonic() > deadline:
                    raise translated_error(self._location, "read", cause) from error
                time.sleep(0.05)

    def _query_offsets(self) -> tuple[int, int]:
        if self._offsets_client is None:
            self._offsets_client = consumer(self._location, **{"isolation.level": "read_committed"})
        try:
            partition = TopicPartition(self._location.index, 0)
            first, end = require_watermarks(
                self._offsets_client.get_watermark_offsets(partition, timeout=_QUERY_SECONDS)
            )
        except KafkaException:
            # A client that connected while a broker was starting may report an unknown topic forever: replace it.
            self._offsets_client.poll(0)  # delivers its connection errors
            self._offsets_client.close()
            self._offsets_client = None
            raise
        self._location.last_error = None
        return first, end

    def _check(self, cause: KafkaError) -> None:
        """Raise permanent errors; while a broker shuts down, it may seem to reject a client that it had accepted."""
        if cause.code() in MISSING and self._is_missing():
            raise log_not_found(self._location)
        rejected = self._location.last_error if self._consumer is None else None
        if cause.code() in DEFINITE or (rejected is not None and rejected.code() in DEFINITE):
            raise translated_error(self._location, "read", cause)

    def _is_missing(self) -> bool:
        """Query the brokers: a client reports a missing topic also if no broker answers it."""
        try:
            return not topics_exist(self._location, _QUERY_SECONDS)
        except TransientError:
            return False

    def _open_consumer(self) -> Consumer:
        if self._consumer is None:
            self._consumer = consumer(
                self._location,
                **{"isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": _IDLE_MS},
            )
            self._restart(self._consumer)
        return self._consumer

    def _restart(self, client: Consumer) -> None:
        """Start at the first existing record; an explicit offset saves the client a query and starts it faster."""
        first, _ = self._offsets(time.monotonic() + _TIMEOUT)
        self.index, self._assembler, self.next = Index(), Assembler(), first
        client.assign([TopicPartition(self._location.index, 0, first)])

    def _poll(self, timeout: float) -> None:
        """Wait for the next message and apply all that have arrived."""
        client = self._open_consumer()
        first = client.poll(timeout)
        if first is None:
            return
        for message in (first, *client.consume(_BATCH, 0)):
            if not self._handle(message):
                return self._restart(client)
        return None

    def _handle(self, message: Message) -> bool:
        """Apply a message; return False if the index was truncated beyond this reader."""
        error, offset = message.error(), message.offset() or 0
        if error is None:
            self._apply(message.value() or b"", offset)
            self.next = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            self.next = max(self.next, offset)
        elif error.code() in _TRUNCATED:
            return False
        else:
            self._check(error)
        return True

    def _apply(self, value: bytes, offset: int) -> None:
        found = self._assembler.feed(value, offset)
        if found is None:
            return
        record, first = found
        if isinstance(record, Leased):
            self.index.apply_lease(record, first)
        else:
            self.index.apply(record, first)

    def _timeout_error(self) -> PenstockError:
        committed, end = self._ends()
        if committed < end:
            topic, brokers = self._location.index, self._location.brokers
            at = f"committed up to offset {committed} of {end}"
            message = f"the change log {self._location.name} waits for a transaction in topic {topic}: {at}"
            return TransientError(message, lost_end_hint(brokers, topic, committed))
        message = f"timeout while reading the index of the change log {self._location.name}"
        return TransientError(message, f"Check that the brokers at {self._location.brokers} are running and reachable.")

    def _ends(self) -> tuple[int, int]:
        """Return the ends of what is committed, and of all that is written; 0 and 0 if brokers do not respond."""
        try:
            _, committed = self._query_offsets()
            with closing(consumer(self._location, **{"isolation.level": "read_uncommitted"})) as client:
                partition = TopicPartition(self._location.index, 0)
                _, end = require_watermarks(client.get_watermark_offsets(partition, timeout=_QUERY_SECONDS))
        except KafkaException:
            return 0, 0
        return committed, end
