"""One transactional producer: it writes payloads to the data topic and a record to the index, in one transaction.

A failed session cannot be used again: `abandon` it and create another, which ends the pending transaction of the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.kafka.clients import Delivery, LogLocation, cause_of, transactional_producer

__all__ = ["Session", "Written", "commit_transaction", "unwrap_fatal_errors"]

Written = tuple[int, int]
"""The location of a payload in the data topic: the offset of its first part, and the number of parts."""

_HEADROOM = 2048
"""More than the size of a message beyond its value."""


class Session:
    """The producer of a writer, from `init_transactions` to its first error."""

    def __init__(self, location: LogLocation, limit: int) -> None:
        self.max_part_bytes = limit - _HEADROOM
        """The largest value of a message in bytes."""
        self._location = location
        self._producer: Producer = transactional_producer(location, limit)

    def begin(self, seconds: float) -> None:
        """Become the writer: fence older producers and end their pending transactions."""
        try:
            self._producer.init_transactions(seconds)
        except BaseException:
            self.abandon()
            raise

    def commit(
        self, payloads: Sequence[StoredChunk], record: Callable[[list[Written]], list[bytes]], deadline: float
    ) -> None:
        """Write payloads, and the messages that `record` returns for their locations, in one transaction."""
        with unwrap_fatal_errors():
            self._producer.begin_transaction()
            written = self._send_payloads(payloads, deadline)
            for message in record(written):
                self._send(self._location.index, message)
            commit_transaction(self._producer, deadline)

    def abandon(self) -> None:
        """Discard the producer and its pending messages; `close` would first try to deliver them."""
        with suppress(KafkaException, AttributeError):
            self._producer.purge(blocking=False)
            del self._producer

    def _send_payloads(self, payloads: Sequence[StoredChunk], deadline: float) -> list[Written]:
        """Send all parts, then wait until the broker has confirmed each of them."""
        sent = [[self._send(self._location.data, part) for part in self._split(stored)] for stored in payloads]
        if sent:
            self._producer.flush(max(0.0, deadline - time.monotonic()))
        return [_contiguous([delivery.offset() for delivery in deliveries]) for deliveries in sent]

    def _split(self, stored: StoredChunk) -> list[bytes]:
        whole = b"".join((memoryview(stored.transactions), memoryview(stored.images)))
        return [whole[at : at + self.max_part_bytes] for at in range(0, len(whole), self.max_part_bytes)]

    def _send(self, topic: str, value: bytes) -> Delivery:
        delivery = Delivery()
        while True:
            try:
                self._producer.produce(topic, value, partition=0, on_delivery=delivery)
                return delivery
            except BufferError:
                self._producer.poll(0.1)


def commit_transaction(producer: Producer, deadline: float) -> None:
    """Commit; a commit that times out is retried in the same transaction."""
    while True:
        try:
            return producer.commit_transaction(max(1.0, deadline - time.monotonic()))
        except KafkaException as error:
            if not cause_of(error).retriable() or time.monotonic() > deadline:
                raise


@contextmanager
def unwrap_fatal_errors() -> Iterator[None]:
    """Raise a fatal error itself: a client that gets it while it reports deliveries wraps it in `SystemError`."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def _contiguous(offsets: list[int]) -> Written:
    """Return the location of a payload; its parts are contiguous, because no other program writes to the topic."""
    first = offsets[0]
    if offsets != list(range(first, first + len(offsets))):
        raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "another program writes to the data topic"))
    return first, len(offsets)
