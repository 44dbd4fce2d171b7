"""One transactional producer, and what it does: payloads to the data topic, a record to the index, in one transaction.

A session that failed is of no more use: `abandon` it and make another. Making one ends whatever the last had pending.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.changelog.frames import StoredChunk
from penstock.changelog.kafka.clients import Delivery, Place, cause_of, transactional_producer

__all__ = ["Session", "Written"]

Written = tuple[int, int]
"""Where a payload is in the data topic: the offset of its first part, and how many it has."""

_HEADROOM = 2048
"""What a message takes beyond its value, with much to spare."""


class Session:
    """The producer of a writer, from `init_transactions` to its first error."""

    def __init__(self, place: Place, limit: int) -> None:
        self.part = limit - _HEADROOM
        """How many bytes a message may have."""
        self._place = place
        self._producer: Producer = transactional_producer(place, limit)

    def begin(self, seconds: float) -> None:
        """Become the writer: older producers are fenced, and what they had pending is ended."""
        try:
            self._producer.init_transactions(seconds)
        except BaseException:
            self.abandon()
            raise

    def commit(
        self, payloads: Sequence[StoredChunk], record: Callable[[list[Written]], list[bytes]], deadline: float
    ) -> None:
        """Write payloads, and the messages that `record` makes from where they are; all or nothing of it."""
        with _fatal_errors_as_such():
            self._producer.begin_transaction()
            written = self._written(payloads, deadline)
            for message in record(written):
                self._send(self._place.index, message)
            self._end(deadline)

    def abandon(self) -> None:
        """Let go of it, whatever is under way; not by `close`, which would first try to bring it to an end."""
        with suppress(KafkaException, AttributeError):
            self._producer.purge(blocking=False)
            del self._producer

    def _written(self, payloads: Sequence[StoredChunk], deadline: float) -> list[Written]:
        """Send all parts, then wait until the broker has confirmed each of them."""
        told = [[self._send(self._place.data, part) for part in self._divided(stored)] for stored in payloads]
        if told:
            self._producer.flush(max(0.0, deadline - time.monotonic()))
        return [_one_place([delivery.offset() for delivery in deliveries]) for deliveries in told]

    def _divided(self, stored: StoredChunk) -> list[bytes]:
        whole = b"".join((memoryview(stored.transactions), memoryview(stored.images)))
        return [whole[at : at + self.part] for at in range(0, len(whole), self.part)]

    def _send(self, topic: str, value: bytes) -> Delivery:
        told = Delivery()
        while True:
            try:
                self._producer.produce(topic, value, partition=0, on_delivery=told)
                return told
            except BufferError:
                self._producer.poll(0.1)

    def _end(self, deadline: float) -> None:
        """Commit. An answer that does not come is asked for again; the transaction is the same."""
        while True:
            try:
                return self._producer.commit_transaction(max(1.0, deadline - time.monotonic()))
            except KafkaException as error:
                if not cause_of(error).retriable() or time.monotonic() > deadline:
                    raise


@contextmanager
def _fatal_errors_as_such() -> Iterator[None]:
    """Undo what the client makes of a fatal error that comes while it tells of deliveries."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


def _one_place(offsets: list[int]) -> Written:
    """Return the place of a payload; its parts lie side by side, as nobody else writes to the topic."""
    first = offsets[0]
    if offsets != list(range(first, first + len(offsets))):
        raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "another program writes to the data topic"))
    return first, len(offsets)
