"""The bytes of chunks, read from the data topic by offset, without any other part of the log.

The chunks of an extent are usually in offset order, with chunks of other tables in between. The consumer reads through
a short gap and seeks over a long one. Between extents no partition is assigned, so that nothing is fetched needlessly.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from penstock.changelog.chunk_codec import StoredChunk
from penstock.changelog.kafka.clients import DEFINITE, LogLocation, consumer, translated_error
from penstock.errors import LogCorruptError, TransientError

__all__ = ["DataExpiredError", "Payloads", "data_lost"]

_TIMEOUT = 60.0
_READ_THROUGH = 8
_EXPIRED = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_FETCHING = {
    "isolation.level": "read_uncommitted",
    # A fetch at the end of the topic waits for new data, and a seek waits for that fetch.
    "fetch.wait.max.ms": 2,
    "fetch.queue.backoff.ms": 2,
    "fetch.message.max.bytes": 4 << 20,
    "queued.max.messages.kbytes": 16 << 10,
}


class DataExpiredError(Exception):
    """The data topic has no message at an offset: it was removed, or it never existed."""


def data_lost(location: LogLocation, what: str) -> LogCorruptError:
    """Return the error for data that should exist but does not."""
    message = f"the change log {location.name} is damaged: the data of {what} is missing"
    return LogCorruptError(message, "Drop the source and create it again.")


class Payloads:
    """A reader of the data topic; its client is created when first needed."""

    def __init__(self, location: LogLocation) -> None:
        self._location = location
        self._client: Consumer | None = None
        self._at: int | None = None
        """The next offset that the client returns; None if no partition is assigned."""

    def chunk(self, location: tuple[int, ...]) -> StoredChunk:
        """Read a chunk."""
        offset, parts, head = location
        messages = list(self._messages(offset, parts))
        whole = memoryview(messages[0] if parts == 1 else b"".join(messages))
        return StoredChunk(whole[:head], whole[head:])

    def pause(self) -> None:
        """Stop fetching."""
        if self._client is not None and self._at is not None:
            self._client.unassign()
        self._at = None

    def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            self._client.close()
        self._client = self._at = None

    def _messages(self, offset: int, count: int) -> Iterator[bytes]:
        client = self._seek(offset)
        for wanted in range(offset, offset + count):
            message = self._message(client, wanted)
            self._at = wanted + 1
            yield message.value() or b""

    def _seek(self, offset: int) -> Consumer:
        if self._client is None:
            self._client = consumer(self._location, **_FETCHING)
        if self._at is None or not self._at <= offset <= self._at + _READ_THROUGH:
            self._client.assign([TopicPartition(self._location.data, 0, offset)])
            self._at = offset
        return self._client

    def _message(self, client: Consumer, wanted: int) -> Message:
        """Wait for the message at an offset, skipping those of other chunks."""
        deadline = time.monotonic() + _TIMEOUT
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
        message_ = f"timeout while reading the data of the change log {self._location.name}"
        raise TransientError(message_, f"Check that the brokers at {self._location.brokers} are running and reachable.")

    def _check(self, error: KafkaError) -> None:
        if error.code() in _EXPIRED:
            self._at = None
            raise DataExpiredError
        if error.code() in DEFINITE or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._at = None
            raise translated_error(self._location, "read", error)
