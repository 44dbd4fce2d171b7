"""Write messages and the position of a sink in one Kafka transaction.

::

    TransactionWriter.open()      fence earlier writers of the sink, end their pending transaction ─▶ last position
    write(messages, position)     one transaction: messages to topics, the position to the topic of positions

A consumer with ``isolation.level=read_committed`` sees each message once: after a crash, the next writer continues at
the position of the last committed transaction. The topic of positions is compacted. Usually it belongs to one sink; if
several share it, each has one message in it, with its name as key.

**Fencing.** The transactional id belongs to the sink. `open` makes the brokers reject every earlier producer with this
id, and waits until its pending transaction has ended. The position is read after that, so no transaction of another
writer can follow it.

**Transactions that do not end.** Committed messages behind an open transaction cannot be read yet. It is another sink's
with the same topic, and ends soon; or brokers have lost its end. Kafka 4.3.1 does so if it restarts after the decision
to commit, and the partition has no leader for a moment: the coordinator then takes the partition for deleted. Only an
administrator can end such a transaction. Its position is as invisible as its messages, so afterwards the sink writes
them again.

**Order.** Messages of a partition keep the order in which they are given: the producer is idempotent, and partitions
follow from keys, as in Java clients. The client's queue never rejects a message, which would change the order, because
messages are passed in portions that fit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.changelog.kafka.clients import cause_of, is_fenced, lost_end_hint
from penstock.changelog.kafka.session import commit_transaction, unwrap_fatal_errors
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.kafka_offsets import require_watermarks
from penstock.sinks.kafka.message_batch import produce_columns

__all__ = ["TopicMessages", "TransactionWriter"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_QUEUE_MESSAGES, _PORTION_MESSAGES = 200_000, 10_000
_QUEUE_KILOBYTES = 512 << 10
_PORTION_BYTES = 16 << 20
_LARGEST_MESSAGE = 512 << 20
"""Brokers and topics have a limit of their own, and report a message that exceeds it."""
_LINGER_MS = 50
"""How long the client waits for a full batch; a commit sends all messages immediately."""
_TRANSACTION_MS = 60_000
_POLL_SECONDS = 0.1
_FETCH_WAIT_MS = 50
"""A consumer reports the end of the topic of positions after that time; by default, after half a second."""
_REQUEST_SECONDS = 5.0
_TOO_LARGE = "Increase max.message.bytes of the topic, or exclude large columns from the sink."
_NO_TOPIC = (
    "The topic does not exist, or was deleted. Create it; if messages are lost, drop the sink and create it again."
)
_HINTS = {
    KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    KafkaError.INVALID_MSG_SIZE: _TOO_LARGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART: _NO_TOPIC,
    KafkaError._UNKNOWN_TOPIC: _NO_TOPIC,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Grant the user WRITE and DESCRIBE on the topic.",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Grant the user WRITE and DESCRIBE on the transactional id.",
    KafkaError.SASL_AUTHENTICATION_FAILED: "Check the login of the sink.",
    KafkaError._AUTHENTICATION: "Check the login of the sink.",
}
"""Errors that a retry does not fix, and their hints."""


@dataclass(frozen=True)
class TopicMessages:
    """Messages of one topic, in order. A null value is a tombstone; without keys, any partition may get a message."""

    topic: str
    values: pa.LargeBinaryArray
    keys: pa.LargeBinaryArray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def portions(self) -> Iterator[TopicMessages]:
        """Yield the messages in portions that the client's queue accepts."""
        size = self.values.nbytes + (0 if self.keys is None else self.keys.nbytes)
        count = max(1, min(_PORTION_MESSAGES, len(self) * _PORTION_BYTES // max(size, 1)))
        for first in range(0, len(self), count):
            keys = None if self.keys is None else self.keys.slice(first, count)
            yield TopicMessages(self.topic, self.values.slice(first, count), keys)


class TransactionWriter:
    """The only writer of a sink, from `open` to its first error."""

    def __init__(self, settings: Mapping[str, Any], sink: str, positions: str, *, name: str | None = None) -> None:
        """Create a writer. `settings` connect a client; `positions` is a topic; `name` is that of `sink` for users."""
        self._name = name or sink
        self._settings = {**settings, "logger": _LOG}
        self._sink, self._positions = sink, positions
        self._topics: set[str] = set()
        """The topics that exist, as far as known."""
        self._producer = Producer(
            {
                "compression.type": "lz4",
                "linger.ms": _LINGER_MS,
                **self._settings,
                "transactional.id": f"penstock-sink-{sink}",
                "transaction.timeout.ms": _TRANSACTION_MS,
                "acks": "all",
                "partitioner": "murmur2_random",
                "message.max.bytes": _LARGEST_MESSAGE,
                "queue.buffering.max.messages": _QUEUE_MESSAGES,
                "queue.buffering.max.kbytes": _QUEUE_KILOBYTES,
                "delivery.report.only.error": True,
            }
        )

    def open(self, seconds: float) -> bytes | None:
        """Become the writer of the sink; return the position of its last transaction, or None."""
        with self._translated_errors():
            self._producer.init_transactions(seconds)
            return self._last_position(time.monotonic() + seconds)

    def write(self, messages: Iterable[TopicMessages], position: bytes, seconds: float) -> int:
        """Write messages and the position after them, all or nothing; return the number of messages.

        After an error the writer is unusable.
        """
        deadline, written = time.monotonic() + seconds, 0
        with self._translated_errors():
            self._producer.begin_transaction()
            for each in messages:
                self._require_topic(each.topic, seconds)
                for portion in each.portions():
                    self._send(portion, deadline)
                written += len(each)
            self._producer.produce(self._positions, position, self._sink.encode(), partition=0)
            commit_transaction(self._producer, deadline)
        return written

    def close(self) -> None:
        """Discard the producer; a pending transaction is aborted."""
        with suppress(KafkaException):
            self._producer.purge(blocking=False)
        with suppress(KafkaException):
            self._producer.abort_transaction(1.0)

    def _require_topic(self, name: str, seconds: float) -> None:
        """Raise an error for a topic that does not exist; the client would wait for it until the time is over.

        All topics are listed: a request for one topic may create it, with the broker's default settings.
        """
        if name not in self._topics:
            self._topics = set(self._producer.list_topics(timeout=seconds).topics)
        if name not in self._topics:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, f"topic {name} does not exist"))

    def _send(self, portion: TopicMessages, deadline: float) -> None:
        """Pass messages to the client's queue, once it has room for all of them."""
        while len(self._producer) + len(portion) > _QUEUE_MESSAGES // 2:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            self._producer.poll(_POLL_SECONDS)
        produce_columns(self._producer, portion.topic, portion.keys, portion.values)
        self._producer.poll(0)

    def _last_position(self, deadline: float) -> bytes | None:
        """Read the last committed position of this sink.

        A consumer of committed messages stops before the oldest open transaction of any sink. A position of this sink
        may be behind that, so it reads up to the present end of the topic, and waits for open transactions to end.
        """
        found: bytes | None = None
        end, read = self._end_of_positions(deadline), 0
        with closing(Consumer(self._consumer_settings("read_committed"))) as reader:
            reader.assign([TopicPartition(self._positions, 0, 0)])
            while time.monotonic() < deadline:
                if (message := reader.poll(_POLL_SECONDS)) is None:
                    continue
                error, offset = message.error(), message.offset()
                if error is None:
                    found = message.value() if message.key() == self._sink.encode() else found
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                read = read if offset is None else offset
                if read >= end:  # other sinks may always be ahead of the reported end
                    return found
        raise self._never_ends(read, end)

    def _never_ends(self, read: int, end: int) -> TransientError:
        at = f"committed up to offset {read} of {end}"
        message = f"sink {self._name} waits for a transaction in topic {self._positions} that does not end: {at}"
        return TransientError(message, lost_end_hint(self._settings["bootstrap.servers"], self._positions, read))

    def _end_of_positions(self, deadline: float) -> int:
        """Return the end of the positions topic, including open transactions; retry while brokers elect a leader."""
        place = TopicPartition(self._positions, 0)
        with closing(Consumer(self._consumer_settings("read_uncommitted"))) as reader:
            while True:
                try:
                    return require_watermarks(reader.get_watermark_offsets(place, timeout=_REQUEST_SECONDS))[1]
                except KafkaException as error:
                    if cause_of(error).code() in _HINTS or time.monotonic() > deadline:
                        raise
                time.sleep(_POLL_SECONDS)

    def _consumer_settings(self, isolation: str) -> dict[str, Any]:
        return {
            **self._settings,
            "group.id": f"penstock-sink-{self._sink}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "auto.offset.reset": "earliest",
        }

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            with unwrap_fatal_errors():
                yield
        except KafkaException as error:
            raise self._translated(self._reason(cause_of(error))) from None

    def _reason(self, cause: KafkaError) -> KafkaError:
        """Return why the producer has failed: messages that it rejects afterwards do not say so."""
        if cause.code() in (KafkaError._FATAL, KafkaError._STATE):
            try:
                with unwrap_fatal_errors():
                    self._producer.abort_transaction(_REQUEST_SECONDS)
            except KafkaException as error:
                return cause_of(error)
        return cause

    def _translated(self, cause: KafkaError) -> PenstockError:
        if is_fenced(cause):
            message = f"another process writes sink {self._name}"
            return TransientError(message, "Run one process for each home. The sink continues when the other one ends.")
        message = f"sink {self._name} could not write to Kafka: {cause.str()}"
        if cause.code() in _HINTS:
            return DefiniteError(message, _HINTS[cause.code()])
        return TransientError(message, "Check that the brokers are running and reachable from this host.")
