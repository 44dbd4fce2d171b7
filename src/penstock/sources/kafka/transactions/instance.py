"""The instance of a source with transaction metadata: reads topics, and makes ticks of whole transactions.

::

    ends of partitions (`tick_instance`) ─▶ read data and metadata up to them ─▶ marks ─▶ `cuts` ─▶ offsets of the tick
                                             ▲       │ at most a second per turn           │ none: waits
                                             └───────┘                                     └─▶ `waiting`

* **Messages are read twice**: here for their transactions, and by Spark for their rows, when a tick contains them.
* **Memory** is bounded by what is in flight: a partition far ahead of the ENDs pauses until they have caught up, and so
  do ENDs that are far ahead of events.
* **Progress** is the `CutState`, stored with each tick. A run starts at the offsets of the last tick.
* **Time.** While messages wait for their transaction, no clock is published: the log does not claim to have them.
* **Foreign ENDs.** If only tables outside the source change, no topic moves. From time to time the offset of the
  metadata topic is stored nevertheless, so that the topic need not keep those messages.

The consumer is assigned partitions explicitly. At the end of a partition it reports the offset, which may lie beyond
the last message, because markers of Kafka's own transactions use offsets, too. Single partitions can be paused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from penstock.changelog.interface import ChangeLog, ChangeLogWriter
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.formats import Registry, ResolvedFormat, decode_batch
from penstock.positions import Lsn
from penstock.sources.kafka.broker_errors import refusal
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tick_instance import FollowingConfig, FollowingInstance, Reached, continued
from penstock.sources.kafka.topic_offsets import Observed
from penstock.sources.kafka.transactions.cuts import Cut, CutState, Cutting
from penstock.sources.kafka.transactions.in_flight import LOOK_BACK, Founding
from penstock.sources.kafka.transactions.marks import Ints, ends_of, marks_of
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.transactions.narrow_formats import narrowed_metadata, narrowed_values
from penstock.sources.kafka.transactions.routes import Routes
from penstock.sources.kafka.transactions.waiting import explained, tell
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["Batch", "Partition", "TopicsReader", "TransactionsInstance"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_NOTE = "transaction metadata"
"""Under which it is noted; no topic can be called so."""
_TURN_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
"""A source that takes nothing for so long, although something is there, says what it waits for."""
_FAR_MESSAGES = 100_000
"""So far a partition, or the metadata, may be ahead."""
_NOTE_MESSAGES = 10_000


class TransactionsInstance(FollowingInstance):
    """Makes ticks at which upstream transactions are whole, over all topics together."""

    _reading: TopicsReader
    _cutting: Cutting

    def __init__(
        self,
        config: FollowingConfig,
        metadata: TransactionMetadata,
        values: Mapping[str, ResolvedFormat],
        log: ChangeLog,
        state: Path,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Make it; `values` are the formats of the topics' values."""
        super().__init__(config, log, state)
        self._metadata = metadata
        self._formats = {name: narrowed_values(each) for name, each in values.items()}
        self._formats[metadata.topic.name] = narrowed_metadata(metadata.format)
        self._registries = {name: _registry(each) for name, each in self._formats.items()}
        self._patience = patience
        self._behind = True
        self._moved_at, self._since = time.monotonic(), datetime.now(UTC)
        self._told: str | None = None

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Take ticks until told to stop."""
        with TopicsReader(self._config.what, self._config.how, self._config.source) as self._reading:
            super().run(stop, connected)

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Begin to read where the last tick ended."""
        super().resume(at, noted)
        taken, known = self._taken(noted), self._known(noted)
        upto = {name: reached.upto for name, reached in taken.items()}
        routes = Routes(self._names(), self._metadata.routes)
        self._cutting = Cutting(upto, known, metadata=self._metadata.topic.name, routes=routes, founding=Founding())
        found = self._look_at(self._names())
        begin = {
            (name, number): offset if known.founded else _looking_back(offset, found[name], number)
            for name, offsets in upto.items()
            for number, offset in enumerate(offsets)
        }
        self._reading.begin({**begin, self._metadata_place: known.metadata})
        self._behind, self._moved_at, self._since = True, time.monotonic(), datetime.now(UTC)
        self._say(None, known)

    # -- the tick ---------------------------------------------------------------------------------------------------

    def _settled(
        self, taken: dict[str, Reached], ends: dict[str, Reached], noted: Mapping[str, Any]
    ) -> tuple[dict[str, Reached], dict[str, Any]]:
        """Read what is there; take what is whole of it."""
        metadata = self._continued_metadata(noted)
        self._add_partitions(ends)
        there = {(name, number): end for name, each in ends.items() for number, end in enumerate(each.upto)}
        now = time.monotonic()
        self._cutting.looked(self._read_upto({**there, self._metadata_place: metadata.upto[0]}), now)
        known = self._known(noted)
        cut = self._cutting.advance(now)
        upto = {name: reached.upto for name, reached in taken.items()} if cut is None else cut.upto
        self._watch(cut, moved=upto != {name: reached.upto for name, reached in taken.items()}, ends=ends, upto=upto)
        if cut is None or (
            all(cut.upto[name] == taken[name].upto for name in taken)
            and cut.state.metadata - known.metadata < _NOTE_MESSAGES
        ):
            return taken, {}
        if cut.state.founded and not known.founded:
            _LOG.info("the source %s is valid from %s on", self._config.source, cut.state.valid_from)
        note = {"id": metadata.id, "state": cut.state.model_dump(mode="json")}
        return {name: Reached(ends[name].id, cut.upto[name]) for name in taken}, {_NOTE: note}

    def _read_upto(self, there: Mapping[Partition, int]) -> list[Partition]:
        """Read for a turn; return the partitions of which all that is there was read."""
        give_up = time.monotonic() + _TURN_SECONDS
        while left := [place for place, end in there.items() if not self._reading.is_read(place, end)]:
            if time.monotonic() > give_up or self._stop.is_set():
                break
            self._reading.rest(self._far_ahead(left))
            for batch in self._reading.read():
                self._take(batch)
        return [place for place in there if place not in left]

    def _far_ahead(self, left: list[Partition]) -> list[Partition]:
        """Return what others have to catch up with, as long as they have something left to read."""
        if self._metadata_place in left:
            ahead = [place for place in left if place != self._metadata_place]
            ahead = [place for place in ahead if self._cutting.is_ahead(*place, by=_FAR_MESSAGES)]
            if ahead:
                return ahead
        if self._cutting.ends_in_flight > _FAR_MESSAGES and left != [self._metadata_place]:
            return [self._metadata_place]
        return []

    def _take(self, batch: Batch) -> None:
        topic, partition = batch.place
        decoded = decode_batch(batch.values, self._formats[topic], self._registries[topic])
        if batch.place == self._metadata_place:
            self._cutting.take_ends(ends_of(topic, batch.offsets, decoded), batch.read)
        else:
            self._cutting.take_changes(topic, partition, marks_of(topic, partition, batch.offsets, decoded), batch.read)

    def _add_partitions(self, ends: Mapping[str, Reached]) -> None:
        for name, reached in ends.items():
            added = self._cutting.add_partitions(name, len(reached.upto))
            if added:
                self._reading.add({(name, number): 0 for number in added})

    # -- the metadata topic -----------------------------------------------------------------------------------------

    @property
    def _metadata_place(self) -> Partition:
        return (self._metadata.topic.name, 0)

    def _continued_metadata(self, noted: Mapping[str, Any]) -> Reached:
        """Look at the metadata topic; refuse one of which something is missing."""
        name = self._metadata.topic.name
        begun = noted[_NOTE]["id"] if _NOTE in noted else self._metadata.topic.id
        found = self._look_at([name])[name]
        taken = Reached(begun, (self._known(noted).metadata,))
        reached = continued(self._config.how_to_begin_anew(), name, taken, found)
        if len(reached.upto) != 1:
            message = f"the topic {name} has {len(reached.upto)} partitions: the order of transactions is not known"
            raise DefiniteError(message, "Let Debezium write it into a topic with one partition.")
        return reached

    def _known(self, noted: Mapping[str, Any]) -> CutState:
        """Return what is known at the last tick."""
        if _NOTE in noted:
            return CutState.model_validate(noted[_NOTE]["state"])
        topics = (*self._config.topics, self._metadata.topic)
        whole = not any(offset for topic in topics for offset in topic.offsets)
        return CutState(metadata=self._metadata.topic.offsets[0], tops={}, founded=whole)

    def _look_at(self, names: list[str]) -> dict[str, Observed | None]:
        try:
            return self._client.look(names)
        except DefiniteError as refused:
            raise TransientError(refused.message, refused.hint) from refused

    # -- for people -------------------------------------------------------------------------------------------------

    def _watch(
        self, cut: Cut | None, *, moved: bool, ends: Mapping[str, Reached], upto: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Say what is waited for, where nothing moves although something is there."""
        self._behind = any(a < b for name, each in ends.items() for a, b in zip(upto[name], each.upto, strict=False))
        if moved or not self._behind:
            self._moved_at, self._since = time.monotonic(), datetime.now(UTC)
        said = None
        if time.monotonic() - self._moved_at >= self._patience:
            said = explained(self._cutting.held(), self._metadata.topic.name, self._since)
        if said != self._told or (cut is not None and moved):
            self._say(said, self._cutting.state)

    def _say(self, waiting: str | None, known: CutState) -> None:
        self._told = waiting
        tell(self._state, waiting, known)

    def _tell_clock(self, writer: ChangeLogWriter, asked: int) -> None:
        """Tell no moment as passed while something is there that was not taken."""
        if not self._behind:
            super()._tell_clock(writer, asked)


def _looking_back(offset: int, found: Observed | None, partition: int) -> int:
    first = 0 if found is None else found.starts[partition]
    return max(first, offset - LOOK_BACK) if offset > first else offset


def _registry(format_: ResolvedFormat) -> Registry | None:
    address = getattr(format_.format, "registry", None)
    return None if address is None else Registry(address)


Partition = tuple[str, int]
"""A topic, and the number in it."""
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
        return TransientError(known.message, known.hint)

    def _note(self, error: KafkaError) -> None:
        self._trouble = error
