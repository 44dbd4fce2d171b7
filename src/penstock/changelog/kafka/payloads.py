"""The bytes of chunks, read from the data topic by offset: nothing else of the log is needed for it.

Chunks of an extent lie in the order of their offsets, as a rule, with those of other tables in between. A short way
is read through, a long one is jumped over. Between extents nothing is assigned, so that nothing is fetched in vain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from penstock.changelog.frames import StoredChunk
from penstock.changelog.kafka.clients import DEFINITE, Place, consumer, explained
from penstock.errors import LogCorruptError, TransientError

__all__ = ["DataExpiredError", "Payloads", "data_lost"]

_PATIENCE = 60.0
_READ_THROUGH = 8
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_FETCHING = {
    "isolation.level": "read_uncommitted",
    # At the end of the topic a fetch waits, and a jump to another offset waits for it.
    "fetch.wait.max.ms": 2,
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 4 << 20,
    "queued.max.messages.kbytes": 16 << 10,
}


class DataExpiredError(Exception):
    """The data topic has no message at an offset, any more or at all."""


def data_lost(place: Place, what: str) -> LogCorruptError:
    """Say that data is not there that should be."""
    message = f"the change log {place.name} is damaged: {what} has no data"
    return LogCorruptError(message, "Drop the source and capture it afresh.")


class Payloads:
    """A reader of the data topic; its client is made when it is first needed."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._client: Consumer | None = None
        self._at: int | None = None
        """The next offset that the client gives; None while it has none."""

    def chunk(self, place: tuple[int, ...]) -> StoredChunk:
        """Read a chunk."""
        offset, parts, head = place
        messages = list(self._messages(offset, parts))
        whole = memoryview(messages[0] if parts == 1 else b"".join(messages))
        return StoredChunk(whole[:head], whole[head:])

    def rest(self) -> None:
        """Stop fetching."""
        if self._client is not None and self._at is not None:
            self._client.unassign()
        self._at = None

    def close(self) -> None:
        """Let go of the client."""
        if self._client is not None:
            self._client.close()
        self._client = self._at = None

    def _messages(self, offset: int, count: int) -> Iterator[bytes]:
        client = self._moved(offset)
        for wanted in range(offset, offset + count):
            message = self._message(client, wanted)
            self._at = wanted + 1
            yield message.value() or b""

    def _moved(self, offset: int) -> Consumer:
        if self._client is None:
            self._client = consumer(self._place, **_FETCHING)
        if self._at is None or not self._at <= offset <= self._at + _READ_THROUGH:
            self._client.assign([TopicPartition(self._place.data, 0, offset)])
            self._at = offset
        return self._client

    def _message(self, client: Consumer, wanted: int) -> Message:
        """Wait for the message at an offset, past those of other chunks."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            message = client.poll(0.2)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self._check(error)
            elif (found := message.offset() or 0) == wanted:
                return message
            elif found > wanted:
                self._at = None
                raise DataExpiredError
        self._at = None
        message_ = f"the data of the change log {self._place.name} could not be read in time"
        raise TransientError(message_, f"Check that the brokers at {self._place.brokers} are up and reached from here.")

    def _check(self, error: KafkaError) -> None:
        if error.code() in _GONE:
            self._at = None
            raise DataExpiredError
        if error.code() in DEFINITE or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._at = None
            raise explained(self._place, "read", error)
