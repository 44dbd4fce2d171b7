"""The client that looks at a topic: whether it can be reached, how many partitions it has, where its offsets lie.

What a client tells of its connections it tells to a callback, and goes on trying: a wrong password looks like brokers
that do not answer. So the callback's last word is kept, and ends the waiting where trying again mends nothing. No error
holds a setting's value.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.errors import PenstockError
from penstock.kafka_offsets import told_offset, told_watermarks
from penstock.sources.kafka.broker_errors import refusal, way_out
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_start import EARLIEST, LATEST, Start
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["TopicClient"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_Answer = TypeVar("_Answer")
_STEP_SECONDS = 1.0
_LISTEN_SECONDS = 0.1
"""Asked for many messages, the consumer waits so long for them, also where the last one is there."""
_AT_ONCE = 500


class TopicClient:
    """A consumer of one topic that is told by hand what to read; as a context manager it is closed at the end."""

    def __init__(
        self,
        what: KafkaSqlOptions,
        how: KafkaWithOptions,
        source: str,
        topic: str,
        *,
        patience: float = 15.0,
        tells_ends: bool = False,
    ) -> None:
        """Make it; one that `tells_ends` can give its `messages`."""
        self._broker, self._topic = what.broker, topic
        self._patience = patience
        self._trouble: KafkaError | None = None
        settings: dict[str, Any] = {**librdkafka_settings(what, how, source)}
        try:
            self.consumer = Consumer(
                {**settings, "enable.partition.eof": tells_ends, "error_cb": self._note, "logger": _LOG}
            )
        except KafkaException as error:
            raise self._explained(error.args[0]) from None

    def partitions(self) -> int:
        """Return how many partitions the topic has."""
        found = self._asked(lambda: self.consumer.list_topics(self._topic, timeout=_STEP_SECONDS))
        topic = found.topics[self._topic]
        if topic.error is not None:
            raise self._explained(topic.error)
        return len(topic.partitions)

    def settled(self, start: Start) -> list[int]:
        """Return the offset of each partition that a start means now."""
        topic, partitions = self._topic, self.partitions()
        if start.moment_ms is not None:
            asked = [TopicPartition(topic, number, start.moment_ms) for number in range(partitions)]
            return self._exact(self._asked(lambda: self._at_moment(asked)))
        return self._exact(start.offsets_of(topic, partitions))

    def messages(self, first: Sequence[int] = ()) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield keys and values up to where each partition ends: from these offsets on, or from the first messages."""
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
                    raise self._explained(error)
            if time.monotonic() > heard + self._patience:
                raise self._explained(KafkaError(KafkaError._TIMED_OUT))

    def close(self) -> None:
        """End its connections."""
        self.consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _exact(self, offsets: Sequence[int]) -> list[int]:
        """Put numbers in the place of the first and the last."""
        return [
            offset if offset not in (EARLIEST, LATEST) else self._watermarks(number)[0 if offset == EARLIEST else 1]
            for number, offset in enumerate(offsets)
        ]

    def _watermarks(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        return self._asked(lambda: told_watermarks(self.consumer.get_watermark_offsets(place, timeout=_STEP_SECONDS)))

    def _at_moment(self, asked: list[TopicPartition]) -> list[int]:
        """Return the first offset of each partition from a moment on; `LATEST` where nothing is so late."""
        found = sorted(self.consumer.offsets_for_times(asked, timeout=_STEP_SECONDS), key=lambda place: place.partition)
        for place in found:
            if place.error is not None:
                raise KafkaException(place.error)
        return [LATEST if place.offset == LATEST else told_offset(place.offset) for place in found]

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask until there is an answer, what is wrong is known for certain, or patience is at its end."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return ask()
            except KafkaException as error:
                self.consumer.poll(0)  # the callback is called in here, and nowhere else
                told: KafkaError = error.args[0]
                if self._is_certain(told) or time.monotonic() > deadline:
                    raise self._explained(told) from None

    def _is_certain(self, told: KafkaError) -> bool:
        return any(error is not None and way_out(error) is not None for error in (told, self._trouble))

    def _explained(self, told: KafkaError) -> PenstockError:
        return refusal(self._broker, self._topic, told, self._trouble)

    def _note(self, error: KafkaError) -> None:
        """Keep what tells most: that a login or handshake failed, and not that all brokers are out of reach since."""
        telling = error.code() != KafkaError._ALL_BROKERS_DOWN
        if self._trouble is None or (telling and way_out(self._trouble) is None):
            self._trouble = error
