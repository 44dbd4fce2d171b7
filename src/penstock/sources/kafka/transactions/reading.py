"""Reading topics on from where they were read: batches of values by partition, and how far each partition was read.

A consumer is told by hand what to read. Where a partition ends it says so; the offset there may lie behind the last
message, as marks of Kafka's own transactions take offsets, too. A partition can be put to rest while others catch up.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.errors import PenstockError, TransientError
from penstock.sources.kafka.librdkafka import librdkafka_settings
from penstock.sources.kafka.refusals import refusal
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.transactions.marks import Ints
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["Batch", "Partition", "TopicsReader"]

Partition = tuple[str, int]
"""A topic, and the number in it."""
_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_AT_ONCE = 10_000
_WAIT_SECONDS = 0.05
_AHEAD = {"queued.max.messages.kbytes": 16_384, "fetch.wait.max.ms": 50}


class Batch(NamedTuple):
    """Messages of one partition, and the offset up to which it was read."""

    place: Partition
    offsets: Ints
    values: pa.BinaryArray
    read: int


class TopicsReader:
    """A consumer of several topics; as a context manager it is closed at the end."""

    def __init__(self, what: KafkaSqlOptions, how: KafkaWithOptions, source: str) -> None:
        self._broker, topics = what.broker, ", ".join(what.names())
        self._trouble: KafkaError | None = None
        self._read: dict[Partition, int] = {}
        self._resting: set[Partition] = set()
        settings: dict[str, Any] = {**librdkafka_settings(what, how, source), **_AHEAD, "enable.partition.eof": True}
        try:
            self._consumer = Consumer({**settings, "error_cb": self._note, "logger": _LOG})
        except KafkaException as error:
            raise self._explained(topics, error.args[0]) from None

    def begin(self, places: Mapping[Partition, int]) -> None:
        """Read these partitions, from these offsets on, and no others."""
        self._read, self._resting = {}, set()
        self._consumer.unassign()
        self.add(places)

    def add(self, places: Mapping[Partition, int]) -> None:
        """Read these partitions, too."""
        self._read |= places
        self._consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in places.items()])

    def is_read(self, place: Partition, end: int) -> bool:
        """Say whether a partition was read up to an offset."""
        return self._read.get(place, -1) >= end

    def rest(self, places: Collection[Partition]) -> None:
        """Put these partitions to rest, and no others."""
        wished = set(places)
        for change, which in (
            (self._consumer.pause, wished - self._resting),
            (self._consumer.resume, self._resting - wished),
        ):
            if which:
                change([TopicPartition(*place) for place in which])
        self._resting = wished

    def read(self) -> list[Batch]:
        """Read some messages; waits a moment where there are none."""
        found: dict[Partition, list[Message]] = {}
        ends: dict[Partition, int] = {}
        for message in self._consumer.consume(_AT_ONCE, _WAIT_SECONDS):
            error = message.error()
            place = (str(message.topic()), int(message.partition() or 0))
            if error is None:
                found.setdefault(place, []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[place] = int(message.offset() or 0)
            else:
                raise self._explained(place[0], error)
        return [self._batch(place, found.get(place, []), ends.get(place, 0)) for place in found.keys() | ends.keys()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def _batch(self, place: Partition, messages: list[Message], end: int) -> Batch:
        offsets = np.array([message.offset() for message in messages], np.int64)
        values = pa.array([message.value() for message in messages], pa.large_binary())
        read = max(self._read[place], end, int(offsets[-1]) + 1 if messages else 0)
        self._read[place] = read
        return Batch(place, offsets, values, read)

    def _explained(self, topic: str, told: KafkaError) -> PenstockError:
        """What is wrong with a topic is looked at before each reading, and is definite there; here it may pass."""
        known = refusal(self._broker, topic, told, self._trouble)
        return TransientError(known.message, known.remedy)

    def _note(self, error: KafkaError) -> None:
        self._trouble = error
