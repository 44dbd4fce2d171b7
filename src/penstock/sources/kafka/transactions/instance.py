"""The instance of a source with transaction metadata: reads topics and creates ticks of complete transactions.

::

    end offsets (`tick_instance`) ─▶ read data and metadata up to them ─▶ columns ─▶ `cuts` ─▶ offsets of the tick
                                      ▲       │ at most a second per turn              │ none: waits
                                      └───────┘                                        └─▶ `wait_status`

* **Messages are read twice**: here for their transactions, and by Spark for their rows, when a tick contains them.
* **Memory** is bounded by the pending transactions: a partition far ahead of the ENDs is paused until they have caught
  up, and so are ENDs that are far ahead of events.
* **Progress** is the `CutState`, stored with each tick. A run starts at the offsets of the last tick.
* **Time.** While messages wait for their transaction, no clock is published: the log does not claim to have them.
* **ENDs of other tables.** If only tables outside the source change, no topic moves. The offset of the metadata topic
  is still stored periodically, so that the topic need not retain those messages.
* **The consumer** is assigned partitions explicitly. At the end of a partition it reports the offset, which may lie
  beyond the last message, because markers of Kafka's own transactions use offsets, too. Each partition can be paused.
* **Formats** are narrowed to the fields that transactions need. JSON is read with fixed columns, because columns that
  were inferred from snapshot rows may not include the transaction. Connect may wrap records with their schema; the
  columns cover both forms, and if a message has neither, all are null. For Avro, the reader schema is reduced, and the
  decoder skips the rest.
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

from penstock.changelog.interface import ChangeLog, ChangeLogWriter, LoggedTable
from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.fields import with_fields
from penstock.formats import AvroFormat, Extra, JsonFormat, Registry, ResolvedFormat, decode_batch, resolve
from penstock.formats.avro.schema import avro_text, parse_avro
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.sources.kafka.client_settings import librdkafka_settings
from penstock.sources.kafka.schema_followers import SchemaFollower
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tick_instance import TickConfig, TickInstance, TopicProgress, continued
from penstock.sources.kafka.topic_admin import TopicState, broker_error
from penstock.sources.kafka.transactions.cuts import Cut, CutState, Cutter
from penstock.sources.kafka.transactions.message_columns import Ints, read_ends, read_messages
from penstock.sources.kafka.transactions.metadata import Routes, TransactionMetadata
from penstock.sources.kafka.transactions.pending_transactions import LOOK_BACK, ConsistentStart
from penstock.sources.kafka.transactions.wait_status import wait_reason, write_wait_status
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["TransactionsInstance", "narrowed_metadata", "narrowed_values"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_NOTE = "transaction metadata"
"""The key under which the state is stored; it is not a valid topic name."""
_TURN_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0
"""A source that makes no progress for this long, although there are messages, reports the reason."""
_FAR_MESSAGES = 100_000
"""The number of messages that a partition, or the metadata, may be ahead."""
_NOTE_MESSAGES = 10_000


class TransactionsInstance(TickInstance):
    """Creates ticks at which upstream transactions are complete, across all topics."""

    _reading: _TopicsReader
    _cutter: Cutter

    def __init__(
        self,
        config: TickConfig,
        metadata: TransactionMetadata,
        values: Mapping[str, ResolvedFormat],
        log: ChangeLog,
        state: Path,
        follow: Callable[[Mapping[TableName, LoggedTable]], dict[str, SchemaFollower]] | None = None,
        *,
        patience: float = _PATIENCE_SECONDS,
    ) -> None:
        """Create the instance; `values` are the formats of the topics' values."""
        super().__init__(config, log, state, follow)
        self._metadata = metadata
        self._formats = {name: narrowed_values(each) for name, each in values.items()}
        self._formats[metadata.topic.name] = narrowed_metadata(metadata.format)
        self._registries = {name: _registry(each) for name, each in self._formats.items()}
        self._patience = patience
        self._is_behind = True
        self._moved_at, self._since = time.monotonic(), datetime.now(UTC)
        self._reported: str | None = None

    def run(self, stop: threading.Event, connected: Callable[[], None]) -> None:
        """Create ticks until `stop` is set."""
        with _TopicsReader(self._config.what, self._config.how, self._config.source) as self._reading:
            super().run(stop, connected)

    def resume(self, at: Lsn, noted: Mapping[str, Any]) -> None:
        """Resume reading at the end of the last tick."""
        super().resume(at, noted)
        taken, known = self._taken(noted), self._known(noted)
        upto = {name: reached.upto for name, reached in taken.items()}
        routes = Routes(self._names(), self._metadata.routes)
        self._cutter = Cutter(
            upto, known, metadata=self._metadata.topic.name, routes=routes, consistent_start=ConsistentStart()
        )
        found = self._describe(self._names())
        begin = {
            (name, number): offset if known.founded else _look_back_offset(offset, found[name], number)
            for name, offsets in upto.items()
            for number, offset in enumerate(offsets)
        }
        self._reading.begin({**begin, self._metadata_place: known.metadata})
        self._is_behind, self._moved_at, self._since = True, time.monotonic(), datetime.now(UTC)
        self._write_status(None, known)

    # -- the tick ---------------------------------------------------------------------------------------------------

    def _next_offsets(
        self, taken: dict[str, TopicProgress], ends: dict[str, TopicProgress], noted: Mapping[str, Any]
    ) -> tuple[dict[str, TopicProgress], dict[str, Any]]:
        """Read the available messages; return the offsets up to which transactions are complete."""
        metadata = self._continued_metadata(noted)
        self._add_partitions(ends)
        there = {(name, number): end for name, each in ends.items() for number, end in enumerate(each.upto)}
        now = time.monotonic()
        self._cutter.record_poll(self._read_upto({**there, self._metadata_place: metadata.upto[0]}), now)
        known = self._known(noted)
        cut = self._cutter.advance(now)
        upto = {name: reached.upto for name, reached in taken.items()} if cut is None else cut.upto
        self._report_waiting(
            cut, moved=upto != {name: reached.upto for name, reached in taken.items()}, ends=ends, upto=upto
        )
        if cut is None or (
            all(cut.upto[name] == taken[name].upto for name in taken)
            and cut.state.metadata - known.metadata < _NOTE_MESSAGES
        ):
            return taken, {}
        if cut.state.founded and not known.founded:
            _LOG.info("source %s is valid from position %s", self._config.source, cut.state.valid_from)
        note = {"id": metadata.id, "state": cut.state.model_dump(mode="json")}
        return {name: TopicProgress(ends[name].id, cut.upto[name]) for name in taken}, {_NOTE: note}

    def _read_upto(self, there: Mapping[_Partition, int]) -> list[_Partition]:
        """Read for one turn; return the partitions that were read up to these offsets."""
        give_up = time.monotonic() + _TURN_SECONDS
        while left := [place for place, end in there.items() if not self._reading.is_read(place, end)]:
            if time.monotonic() > give_up or self._stop.is_set():
                break
            self._reading.pause(self._far_ahead(left))
            for batch in self._reading.read():
                self._take(batch)
        return [place for place in there if place not in left]

    def _far_ahead(self, left: list[_Partition]) -> list[_Partition]:
        """Return the partitions to pause until others that have messages left catch up."""
        if self._metadata_place in left:
            ahead = [place for place in left if place != self._metadata_place]
            ahead = [place for place in ahead if self._cutter.is_ahead(*place, by=_FAR_MESSAGES)]
            if ahead:
                return ahead
        if self._cutter.pending_ends > _FAR_MESSAGES and left != [self._metadata_place]:
            return [self._metadata_place]
        return []

    def _take(self, batch: _Batch) -> None:
        topic, partition = batch.place
        decoded = decode_batch(batch.values, self._formats[topic], self._registries[topic])
        if batch.place == self._metadata_place:
            self._cutter.take_ends(read_ends(topic, batch.offsets, decoded), batch.read)
        else:
            self._cutter.take_changes(
                topic, partition, read_messages(topic, partition, batch.offsets, decoded), batch.read
            )

    def _add_partitions(self, ends: Mapping[str, TopicProgress]) -> None:
        for name, reached in ends.items():
            added = self._cutter.add_partitions(name, len(reached.upto))
            if added:
                self._reading.add({(name, number): 0 for number in added})

    # -- the metadata topic -----------------------------------------------------------------------------------------

    @property
    def _metadata_place(self) -> _Partition:
        return (self._metadata.topic.name, 0)

    def _continued_metadata(self, noted: Mapping[str, Any]) -> TopicProgress:
        """Return the end of the metadata topic; raise `DefiniteError` if messages are missing."""
        name = self._metadata.topic.name
        begun = noted[_NOTE]["id"] if _NOTE in noted else self._metadata.topic.id
        found = self._describe([name])[name]
        taken = TopicProgress(begun, (self._known(noted).metadata,))
        reached = continued(self._config.restart_hint(), name, taken, found)
        if len(reached.upto) != 1:
            message = f"topic {name} has {len(reached.upto)} partitions, so the order of transactions is unknown"
            raise DefiniteError(message, "Have Debezium write transaction metadata to a topic with one partition.")
        return reached

    def _known(self, noted: Mapping[str, Any]) -> CutState:
        """Return the state at the last tick."""
        if _NOTE in noted:
            return CutState.model_validate(noted[_NOTE]["state"])
        topics = (*self._config.topics, self._metadata.topic)
        whole = not any(offset for topic in topics for offset in topic.offsets)
        return CutState(metadata=self._metadata.topic.offsets[0], tops={}, founded=whole)

    def _describe(self, names: list[str]) -> dict[str, TopicState | None]:
        try:
            return self._client.describe(names)
        except DefiniteError as failure:
            raise TransientError(failure.message, failure.hint) from failure

    # -- status ----------------------------------------------------------------------------------------------------

    def _report_waiting(
        self, cut: Cut | None, *, moved: bool, ends: Mapping[str, TopicProgress], upto: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Report the reason for waiting if there are messages but no progress."""
        self._is_behind = any(a < b for name, each in ends.items() for a, b in zip(upto[name], each.upto, strict=False))
        if moved or not self._is_behind:
            self._moved_at, self._since = time.monotonic(), datetime.now(UTC)
        reason = None
        if time.monotonic() - self._moved_at >= self._patience:
            reason = wait_reason(self._cutter.blockers(), self._metadata.topic.name, self._since)
        if reason != self._reported or (cut is not None and moved):
            self._write_status(reason, self._cutter.state)

    def _write_status(self, waiting: str | None, known: CutState) -> None:
        self._reported = waiting
        write_wait_status(self._state, waiting, known)

    def _publish_time(self, writer: ChangeLogWriter, polled_at: int) -> None:
        """Publish no clock while there are messages that are not part of a tick."""
        if not self._is_behind:
            super()._publish_time(writer, polled_at)


def _look_back_offset(offset: int, found: TopicState | None, partition: int) -> int:
    first = 0 if found is None else found.starts[partition]
    return max(first, offset - LOOK_BACK) if offset > first else offset


def _registry(format_: ResolvedFormat) -> Registry | None:
    address = getattr(format_.format, "registry", None)
    return None if address is None else Registry(address)


# -- consumer ----------------------------------------------------------------------------------------------------------

_Partition = tuple[str, int]
"""A topic and a partition number."""
_AT_ONCE = 10_000
_WAIT_SECONDS = 0.05
_AHEAD = {"queued.max.messages.kbytes": 16_384, "fetch.wait.max.ms": 50}


class _Batch(NamedTuple):
    """Messages of one partition, and the offset up to which it was read."""

    place: _Partition
    offsets: Ints
    values: pa.BinaryArray
    read: int


class _TopicsReader:
    """A consumer of several topics; as a context manager it closes itself."""

    def __init__(self, what: KafkaSqlOptions, how: KafkaWithOptions, source: str) -> None:
        self._broker, topics = what.broker, ", ".join(what.names())
        self._connection_error: KafkaError | None = None
        self._read: dict[_Partition, int] = {}
        self._paused: set[_Partition] = set()
        settings: dict[str, Any] = {**librdkafka_settings(what, how, source), **_AHEAD, "enable.partition.eof": True}
        try:
            self._consumer = Consumer({**settings, "error_cb": self._store_error, "logger": _LOG})
        except KafkaException as error:
            raise self._to_transient_error(topics, error.args[0]) from None

    def begin(self, places: Mapping[_Partition, int]) -> None:
        """Read only these partitions, from these offsets."""
        self._read, self._paused = {}, set()
        self._consumer.unassign()
        self.add(places)

    def add(self, places: Mapping[_Partition, int]) -> None:
        """Read these partitions as well."""
        self._read |= places
        self._consumer.incremental_assign([TopicPartition(*place, offset) for place, offset in places.items()])

    def is_read(self, place: _Partition, end: int) -> bool:
        """Return whether a partition was read up to an offset."""
        return self._read.get(place, -1) >= end

    def pause(self, places: Collection[_Partition]) -> None:
        """Pause these partitions and resume all others."""
        requested = set(places)
        for change, which in (
            (self._consumer.pause, requested - self._paused),
            (self._consumer.resume, self._paused - requested),
        ):
            if which:
                change([TopicPartition(*place) for place in which])
        self._paused = requested

    def read(self) -> list[_Batch]:
        """Read some messages; wait a moment if there are none."""
        found: dict[_Partition, list[Message]] = {}
        ends: dict[_Partition, int] = {}
        for message in self._consumer.consume(_AT_ONCE, _WAIT_SECONDS):
            error = message.error()
            place = (str(message.topic()), int(message.partition() or 0))
            if error is None:
                found.setdefault(place, []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[place] = int(message.offset() or 0)
            else:
                raise self._to_transient_error(place[0], error)
        return [self._batch(place, found.get(place, []), ends.get(place, 0)) for place in found.keys() | ends.keys()]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def _batch(self, place: _Partition, messages: list[Message], end: int) -> _Batch:
        offsets = np.array([message.offset() for message in messages], np.int64)
        values = pa.array([message.value() for message in messages], pa.large_binary())
        read = max(self._read[place], end, int(offsets[-1]) + 1 if messages else 0)
        self._read[place] = read
        return _Batch(place, offsets, values, read)

    def _to_transient_error(self, topic: str, reported: KafkaError) -> PenstockError:
        """Return a transient error: permanent errors of a topic are detected before each read, in `tick_instance`."""
        known = broker_error(self._broker, topic, reported, self._connection_error)
        return TransientError(known.message, known.hint)

    def _store_error(self, error: KafkaError) -> None:
        self._connection_error = error


# -- narrowed formats --------------------------------------------------------------------------------------------------

_RECORD = (
    "ts_ms BIGINT, transaction STRUCT<id: STRING, total_order: BIGINT>, "
    "source STRUCT<sequence: STRING, snapshot: STRING, lsn: BIGINT, file: STRING, pos: BIGINT>"
)
_END = (
    "status STRING, id STRING, ts_ms BIGINT, "
    "data_collections ARRAY<STRUCT<data_collection: STRING, event_count: BIGINT>>"
)
_RECORD_FIELDS = ("ts_ms", "transaction", "source")
_END_FIELDS = ("status", "id", "ts_ms", "data_collections")


def narrowed_values(resolved: ResolvedFormat) -> ResolvedFormat:
    """Return the format of a topic's values, reduced to the fields that `message_columns` needs."""
    return _narrowed(resolved, _RECORD, _RECORD_FIELDS)


def narrowed_metadata(resolved: ResolvedFormat) -> ResolvedFormat:
    """Return the format of the metadata topic's values, reduced to the fields that are needed."""
    return _narrowed(resolved, _END, _END_FIELDS)


def _narrowed(resolved: ResolvedFormat, columns: str, fields: Collection[str]) -> ResolvedFormat:
    described = resolved.format
    if isinstance(described, JsonFormat):
        either = f"{columns}, payload STRUCT<{columns}>"
        return resolve(with_fields(described, columns=either, extra=Extra.IGNORE))
    if isinstance(described, AvroFormat):
        return resolve(with_fields(described, reader_schema=_smaller(resolved.reader, fields)))
    return resolved


def _smaller(text: str, fields: Collection[str]) -> str:
    """Remove the other fields from a record."""
    schema = parse_avro(text)
    schema.fields = [field for field in schema.fields if field.name in fields]
    return avro_text(schema)
