"""A consumer of one topic: returns its number of partitions, its offsets, sample messages, and ranges of messages.

librdkafka reports connection errors to a callback and keeps retrying: a wrong password looks like brokers that do not
answer. So this module stores the most specific error of the callback, and stops waiting if the error is permanent. No
error contains the value of a setting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import HistoryExpiredError, PenstockError
from penstock.kafka_offsets import require_offset, require_watermarks
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.ticks import OffsetRange
from penstock.sources.kafka.topic_admin import broker_error, permanent_hint
from penstock.sources.kafka.topic_start import EARLIEST, LATEST, Start
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["MESSAGES", "TopicConsumer"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_Answer = TypeVar("_Answer")
_STEP_SECONDS = 1.0
_LISTEN_SECONDS = 0.1
"""The consumer waits this long for a full batch, even if the last message was already received."""
_FETCH_WAIT_MS = 50
"""The consumer reports the end of a partition after that time; by default, after half a second."""
_AT_ONCE = 500

MESSAGES = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of `TopicConsumer.read`; a message without headers, or of which they are not read, has null."""


class TopicConsumer:
    """A consumer of one topic with explicit assignment; as a context manager it closes itself."""

    def __init__(
        self,
        what: KafkaSqlOptions,
        how: KafkaWithOptions,
        source: str,
        topic: str,
        *,
        patience: float = 15.0,
        partition_eof: bool = False,
    ) -> None:
        """Create the consumer; `messages` and `read` require `partition_eof`."""
        self._broker, self._topic = what.broker, topic
        self._patience = patience
        self._connection_error: KafkaError | None = None
        settings: dict[str, Any] = {**librdkafka_settings(what, how, source)}
        try:
            self.consumer = Consumer(
                {
                    **settings,
                    "enable.partition.eof": partition_eof,
                    "fetch.wait.max.ms": _FETCH_WAIT_MS,
                    "error_cb": self._store_error,
                    "logger": _LOG,
                }
            )
        except KafkaException as error:
            raise self._to_penstock_error(error.args[0]) from None

    def partitions(self) -> int:
        """Return the number of partitions of the topic."""
        found = self._retry(lambda: self.consumer.list_topics(self._topic, timeout=_STEP_SECONDS))
        topic = found.topics[self._topic]
        if topic.error is not None:
            raise self._to_penstock_error(topic.error)
        return len(topic.partitions)

    def resolve_offsets(self, start: Start) -> list[int]:
        """Resolve a start to an offset for each partition."""
        topic, partitions = self._topic, self.partitions()
        if start.moment_ms is not None:
            asked = [TopicPartition(topic, number, start.moment_ms) for number in range(partitions)]
            return self._resolve(self._retry(lambda: self._offsets_at(asked)))
        return self._resolve(start.offsets_of(topic, partitions))

    def messages(self, first: Sequence[int] = ()) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield keys and values up to the end of each partition, from the given or the first offsets."""
        places = [(number, *self._watermarks(number)) for number in range(self.partitions())]
        places = [(number, max([low, *first[number : number + 1]]), high) for number, low, high in places]
        left = {number for number, low, high in places if low < high}
        self.consumer.assign([TopicPartition(self._topic, number, low) for number, low, _ in places if number in left])
        heard = time.monotonic()
        while left:
            for message in self.consumer.consume(_AT_ONCE, _LISTEN_SECONDS):
                heard, error = time.monotonic(), message.error()
                if error is None:
                    yield message.key(), message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(message.partition())
                else:
                    raise self._to_penstock_error(error)
            if time.monotonic() > heard + self._patience:
                raise self._to_penstock_error(KafkaError(KafkaError._TIMED_OUT))

    def read(self, ranges: Sequence[OffsetRange], *, headers: bool) -> pa.Table:
        """Return the messages of some partitions, each up to its last offset, in the columns of `MESSAGES`.

        Raise `HistoryExpiredError` if the first offset of a partition is no longer available. Offsets without a message
        (of a compacted topic, an aborted transaction, a marker) are skipped: a partition is complete when a later
        offset arrives, or the end of the partition.
        """
        left = {part.partition: part for part in ranges}
        found: list[Message] = []
        self.consumer.assign([TopicPartition(self._topic, part.partition, part.first) for part in ranges])
        expected, heard = sum(part.last - part.first for part in ranges), time.monotonic()
        while left:
            for message in self.consumer.consume(min(_AT_ONCE, max(1, expected - len(found))), _LISTEN_SECONDS):
                heard, number = time.monotonic(), message.partition()
                if number not in left:
                    continue
                error, part, offset = message.error(), left[number], message.offset()
                assert offset is not None
                if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise self._expired(part)
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise self._to_penstock_error(error)
                if error is None and offset < part.last:
                    found.append(message)
                if offset >= (part.last if error is not None else part.last - 1):
                    del left[number]
                    self.consumer.incremental_unassign([TopicPartition(self._topic, number)])
            if time.monotonic() > heard + self._patience:
                raise self._to_penstock_error(KafkaError(KafkaError._TIMED_OUT))
        return _columns(found, headers=headers)

    def _expired(self, part: OffsetRange) -> HistoryExpiredError:
        message = (
            f"partition {part.partition} of topic {self._topic} no longer has the messages from offset {part.first} "
            "on: they have expired"
        )
        hint = "Read from a later position. To read further back in the future, increase the retention of the topic."
        return HistoryExpiredError(message, hint)

    def close(self) -> None:
        """Close the consumer."""
        self.consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _resolve(self, offsets: Sequence[int]) -> list[int]:
        """Replace `EARLIEST` and `LATEST` by offsets."""
        return [
            offset if offset not in (EARLIEST, LATEST) else self._watermarks(number)[0 if offset == EARLIEST else 1]
            for number, offset in enumerate(offsets)
        ]

    def _watermarks(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        return self._retry(
            lambda: require_watermarks(self.consumer.get_watermark_offsets(place, timeout=_STEP_SECONDS))
        )

    def _offsets_at(self, asked: list[TopicPartition]) -> list[int]:
        """Return the first offset of each partition from a time on; `LATEST` if no message is that late."""
        found = sorted(self.consumer.offsets_for_times(asked, timeout=_STEP_SECONDS), key=lambda place: place.partition)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return [LATEST if place.offset == LATEST else require_offset(place.offset) for place in found]

    def _retry(self, ask: Callable[[], _Answer]) -> _Answer:
        """Retry a request until it succeeds, the error is permanent, or the timeout expires."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return ask()
            except KafkaException as error:
                self.consumer.poll(0)  # the error callback runs only in poll
                reported: KafkaError = error.args[0]
                if self._is_certain(reported) or time.monotonic() > deadline:
                    raise self._to_penstock_error(reported) from None

    def _is_certain(self, reported: KafkaError) -> bool:
        return any(
            error is not None and permanent_hint(error) is not None for error in (reported, self._connection_error)
        )

    def _to_penstock_error(self, reported: KafkaError) -> PenstockError:
        return broker_error(self._broker, self._topic, reported, self._connection_error)

    def _store_error(self, error: KafkaError) -> None:
        """Store the most specific error: a failed login or handshake, not the unreachable brokers that follow."""
        telling = error.code() != KafkaError._ALL_BROKERS_DOWN
        if self._connection_error is None or (telling and permanent_hint(self._connection_error) is None):
            self._connection_error = error


def _columns(messages: Sequence[Message], *, headers: bool) -> pa.Table:
    """Return messages as columns. The client returns an object for each message; nothing after this does."""
    columns: list[list[Any]] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        [message.timestamp()[1] for message in messages],
        [_headers(message) if headers else None for message in messages],
    ]
    return pa.table(
        [pa.array(each, field.type) for each, field in zip(columns, MESSAGES, strict=True)], schema=MESSAGES
    )


def _headers(message: Message) -> list[dict[str, Any]] | None:
    found: Any = message.headers()
    return None if found is None else [{"key": key, "value": value} for key, value in found]
