"""The output of a Kafka sink: images become messages of topics, which are written with the position of the sink.

::

    images of a table ─▶ where ─▶ columns of the sink ─▶ transform ─▶ envelope ─▶ encoder ─┬─▶ the topic of the table
                                                                                            └─▶ one topic for all, in
                                                                                                commit order

With a topic for each table, images are encoded and sent batch by batch, so that a transaction of any size takes little
memory. The messages of several tables in one topic are merged in commit order first; those with transaction metadata
are counted first (`penstock.sinks.kafka.transaction_topic`).

A topic is created, or required to exist, when its table joins the sink. A topic that is missing later was deleted with
its messages, and is not created again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.schema_registry import Registry
from penstock.model import SHARD, Image, TableName, TableSchema
from penstock.sinks.changes import changes_messages
from penstock.sinks.columns import SinkColumns, options_of_table
from penstock.sinks.debezium import DebeziumTable, debezium_messages, with_transactions
from penstock.sinks.delivery import Output, TableImages
from penstock.sinks.encoding import MessageEncoder, MessageFormat, SchemaRegistration, encoder
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.kafka.topic_names import topic_name
from penstock.sinks.kafka.topics import TopicSettings, ensure_positions_topic, ensure_topics
from penstock.sinks.kafka.transaction_topic import TransactionTopic, transaction_topic_settings
from penstock.sinks.kafka.transaction_writer import TopicMessages, TransactionWriter
from penstock.sinks.messages import SinkMessages
from penstock.sinks.position import SinkPosition
from penstock.sinks.row_filter import RowFilter
from penstock.sinks.schemas.record_names import RecordName
from penstock.sinks.transactions import transaction_messages
from penstock.sinks.transform import Session, Transform
from penstock.sinks.upsert import upsert_messages
from penstock.sinks.words import CleanupPolicy, Delivery, SinkEnvelope, SinkFormat

__all__ = ["KafkaOutput", "MessageWriter", "SinkSource", "TableEncoder", "topic_settings"]

_PART_BYTES = 512 << 10
"""The size of the messages of a large transaction, with ENVELOPE TRANSACTIONS: below the default limit of brokers."""
_FORMATS: dict[SinkFormat, MessageFormat] = {
    SinkFormat.JSON: "JSON",
    SinkFormat.AVRO: "AVRO",
    SinkFormat.PROTOBUF: "PROTOBUF",
}


@dataclass(frozen=True)
class SinkSource:
    """What a sink knows of the source that it reads, or of one of its shards."""

    name: str
    database: str
    """Its database, for the envelope DEBEZIUM."""
    local_name: Callable[[TableName], str]
    shard: str | None = None
    """For a shard, the value of the column `penstock.model.SHARD`."""


def topic_settings(sink: KafkaSink) -> TopicSettings:
    """Return the settings of the topics of a sink."""
    policy = CleanupPolicy.COMPACT if sink.envelope is SinkEnvelope.UPSERT else CleanupPolicy.DELETE
    return TopicSettings(
        create=sink.create_topics,
        partitions=sink.partitions,
        replication=sink.replication,
        cleanup_policy=(sink.cleanup_policy or policy).value,
    )


class MessageWriter(Protocol):
    """Writes encoded messages, and stores the position of the sink: `TransactionWriter`, or `SparkWriter`."""

    def open(self, seconds: float) -> bytes | None:
        """Become the only writer; return the last position, or None."""

    def write(self, messages: Iterable[TopicMessages], position: bytes, seconds: float) -> int:
        """Write messages and the position after them; return the number of messages."""

    def close(self) -> None:
        """Stop writing."""


class KafkaOutput(Output):
    """The only writer of a sink, from `open` to its first error."""

    def __init__(
        self,
        sink: KafkaSink,
        identity: str,
        source: SinkSource,
        session: Session | None = None,
        writer: MessageWriter | None = None,
    ) -> None:
        """Create an output; `identity` distinguishes the sink from others of the same name in other homes.

        `session` returns a Spark session, for a sink that has a function. The default `writer` is a transactional one.
        """
        self._sink, self._source, self._session = sink, source, session
        self._settings = sink.client_settings()
        name = f"{sink.name}-{identity}" if source.shard is None else f"{sink.name}-{identity}-{source.name}"
        self._writer: MessageWriter = writer or TransactionWriter(
            self._settings, name, sink.topic_of_positions(), name=sink.name
        )
        address = sink.registry()
        self._registry: SchemaRegistration | None = None if address is None else Registry(address)
        self._metadata = None
        if sink.metadata_topic is not None:
            self._metadata = TransactionTopic(sink, _FORMATS[sink.format], self._registry)
        self._tables: dict[TableName, TableEncoder] = {}
        self._topics: set[str] = set()
        self._written: set[str] = set()
        """The topics that the sink has written to before: they are not created again."""
        self._shares_topic = sink.topic is not None and sink.table is None
        self.latency_ms: float | None = None
        """The time from the commit of the last transaction until it was written."""

    def open(self, seconds: float) -> bytes | None:
        """Create the topic of positions if it is missing; fence earlier writers; return the last position."""
        if self._sink.delivery is Delivery.EXACTLY_ONCE:
            ensure_positions_topic(self._settings, self._sink.topic_of_positions(), seconds)
        found = self._writer.open(seconds)
        if found is not None:
            self._written = {self._topic_name(table) for table in SinkPosition.from_bytes(found).begun()}
            if self._metadata is not None and self._written:
                self._written.add(self._metadata.topic)
        return found

    def prepare(self, table: TableName) -> None:
        """Create the topic of a table, or check that it exists."""
        self._ensure_topic(self._topic_name(table))
        if self._metadata is not None:
            self._ensure_topic(self._metadata.topic)

    def check_table(self, schema: TableSchema) -> None:
        """Raise an error if messages of a table are not possible, for instance because of the sink's function."""
        TableEncoder(self._sink, self._source, schema, self._registry, self._session)

    def write(self, tables: Iterable[TableImages], position: bytes, seconds: float) -> int:
        """Write the messages in one Kafka transaction with the position."""
        counted = _Counted(tables)
        if self._sink.envelope is SinkEnvelope.TRANSACTIONS:
            messages: Iterable[TopicMessages] = self._transactions(self._passing(counted))
        elif self._metadata is not None:
            messages = self._with_metadata(self._passing(counted), self._metadata)
        else:
            messages = self._by_topic(self._encoded(each) for each in self._passing(counted))
        written = self._writer.write(messages, position, seconds)
        if counted.committed_at is not None:
            self.latency_ms = round(time.time() * 1000 - counted.committed_at / 1000, 1)
        return written

    def close(self) -> None:
        """Discard the producer."""
        self._writer.close()

    # -- messages ----------------------------------------------------------------------------------------------------

    def _passing(self, tables: Iterable[TableImages]) -> Iterator[TableImages]:
        """Yield the changes of the rows that pass the condition of the sink, if it has one."""
        for each in tables:
            images = each.images if self._sink.where is None else self._table(each.schema).passing(each.images)
            if len(images):
                yield TableImages(each.schema, images)

    def _encoded(self, each: TableImages) -> _Encoded:
        table = self._table(each.schema)
        messages = table.messages(each.images)
        return _Encoded(table.topic, messages, *table.encode(messages))

    def _with_metadata(self, tables: Iterable[TableImages], metadata: TransactionTopic) -> Iterator[TopicMessages]:
        """Return the messages with transaction blocks, and then those of the transaction topic."""
        made = [(table := self._table(each.schema), table.messages(each.images)) for each in tables]
        numbered = with_transactions([messages for _, messages in made])
        found = zip((table for table, _ in made), numbered, strict=True)
        yield from self._by_topic(_Encoded(table.topic, each, *table.encode(each)) for table, each in found)
        if numbered and len(transactions := metadata.messages(numbered)):
            self._ensure_topic(metadata.topic)
            yield transactions

    def _by_topic(self, parts: Iterable[_Encoded]) -> Iterator[TopicMessages]:
        """Return messages part by part; those of several tables in one topic together, in commit order."""
        return self._merged(parts) if self._shares_topic else (part.topic_messages() for part in parts)

    def _merged(self, encoded: Iterable[_Encoded]) -> Iterator[TopicMessages]:
        parts = [part for part in encoded if len(part.messages)]
        if parts:
            positions = np.concatenate([part.messages.positions for part in parts])
            ordinals = np.concatenate([part.messages.ordinals for part in parts])
            order = pa.array(np.lexsort((ordinals, positions)))
            keys = pa.concat_arrays([part.keys_or_null() for part in parts]).take(order)
            values = pa.concat_arrays([part.values for part in parts]).take(order)
            yield TopicMessages(parts[0].topic, values, keys)

    def _transactions(self, tables: Iterable[TableImages]) -> Iterator[TopicMessages]:
        """Return one message for each transaction."""
        found = [self._table(each.schema).messages(each.images) for each in tables]
        if found:
            assert self._sink.topic is not None
            self._ensure_topic(self._sink.topic)
            messages = transaction_messages(found, _PART_BYTES)
            yield TopicMessages(self._sink.topic, messages.values, messages.keys)

    def _table(self, schema: TableSchema) -> TableEncoder:
        """Return the encoder of a table: another one if its columns changed."""
        known = self._tables.get(schema.table)
        if known is None or known.schema != schema:
            known = self._tables[schema.table] = TableEncoder(
                self._sink, self._source, schema, self._registry, self._session
            )
            self._ensure_topic(known.topic)
        return known

    def _ensure_topic(self, topic: str) -> None:
        if topic not in self._topics:
            settings = replace(topic_settings(self._sink), written=topic in self._written)
            if self._metadata is not None and topic == self._metadata.topic:
                settings = transaction_topic_settings(settings)
            ensure_topics(self._settings, {topic: settings})
            self._topics.add(topic)

    def _topic_name(self, table: TableName) -> str:
        return topic_name(table, prefix=self._sink.topic_prefix or "", fixed=self._sink.topic)


@dataclass(frozen=True)
class _Encoded:
    """Messages of one table, before and after encoding."""

    topic: str
    messages: SinkMessages
    keys: pa.LargeBinaryArray | None
    values: pa.LargeBinaryArray

    def keys_or_null(self) -> pa.LargeBinaryArray:
        return pa.nulls(len(self.messages), pa.large_binary()) if self.keys is None else self.keys

    def topic_messages(self) -> TopicMessages:
        return TopicMessages(self.topic, self.values, self.keys)


class _Counted:
    """Iterates over images, and notes the last commit time in them."""

    def __init__(self, tables: Iterable[TableImages]) -> None:
        self._tables = tables
        self.committed_at: int | None = None
        """In microseconds since 1970."""

    def __iter__(self) -> Iterator[TableImages]:
        for each in self._tables:
            if len(each.images):
                last = each.images.column("_committed_at")[-1]
                self.committed_at = max(self.committed_at or 0, last.value or 0) or None
                yield each


class TableEncoder:
    """Makes messages of images of one version of one table."""

    def __init__(
        self,
        sink: KafkaSink,
        source: SinkSource,
        schema: TableSchema,
        registry: SchemaRegistration | None,
        session: Session | None = None,
    ) -> None:
        self.schema = schema
        self.topic = topic_name(schema.table, prefix=sink.topic_prefix or "", fixed=sink.topic)
        self._sink, self._shard = sink, source.shard
        whole = _with_shard(schema) if source.shard is not None else schema
        self._needs_old_rows = bool(sink.key) and not set(sink.key) <= set(schema.key)
        keyed = TableSchema(whole.table, whole.columns, sink.key or whole.key)
        local = source.local_name(schema.table)
        hash_key = sink.redact_key.resolved().encode() if sink.redact_key is not None else None
        self._columns = SinkColumns(options_of_table(sink.column_options(), local, keyed), keyed, hash_key, local=local)
        self._filter = None if sink.where is None else RowFilter(sink.where, schema)
        self._key = self._columns.key
        self._transform = None
        if sink.transform is not None:
            self._transform = Transform(sink.transform, self._columns.columns, self._key, session)
        self._names = tuple((self._transform or self._columns).columns.names)
        self._debezium = DebeziumTable(
            schema=TableSchema(schema.table, self._columns.columns, self._key),
            key=self._key,
            topic=f"{sink.server_name()}.{schema.table}",
            server=sink.server_name(),
            database=source.database,
            tombstones=sink.tombstones,
        )
        self._encoder = self._make_encoder(registry)

    def passing(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Return the images of whole changes of the rows that pass the condition of the sink."""
        return images if self._filter is None else self._filter.images(images)

    def messages(self, images: pa.RecordBatch) -> SinkMessages:
        """Return the messages of images of whole changes, before they are encoded."""
        if self._needs_old_rows:
            _require_old_rows(images, self.schema.table)
        if self._shard is not None:
            images = _add_shard(images, self._shard)
        images = self._columns.images(images)
        if self._transform is not None:
            images = self._transform.images(images)
        match self._sink.envelope:
            case SinkEnvelope.UPSERT:
                return upsert_messages(images, self._key, self._names)
            case SinkEnvelope.DEBEZIUM:
                return debezium_messages(images, self._debezium)
        return changes_messages(images, self._key, self._names, str(self.schema.table))

    def encode(self, messages: SinkMessages) -> tuple[pa.LargeBinaryArray | None, pa.LargeBinaryArray]:
        """Return keys and values as bytes; new schemas are registered before."""
        return self._encoder.encode(messages)

    def _make_encoder(self, registry: SchemaRegistration | None) -> MessageEncoder:
        is_connect = self._sink.envelope is SinkEnvelope.DEBEZIUM
        names = self._sink.record_names(self.schema.table)
        key = RecordName(names[0], is_connect=is_connect)
        value = RecordName(names[1], is_connect=is_connect, version=2 if is_connect else None)
        return encoder(
            _FORMATS[self._sink.format],
            topic=self.topic,
            value=value,
            key=key if self._key else None,
            registry=registry,
            subjects=self._sink.subject_strategy.value,
            with_schemas=self._sink.json_schemas,
        )


def _with_shard(schema: TableSchema) -> TableSchema:
    columns = schema.columns.append(pa.field(SHARD, pa.string(), nullable=False))
    return TableSchema(schema.table, columns, (SHARD, *schema.key) if schema.key else ())


def _add_shard(images: pa.RecordBatch, shard: str) -> pa.RecordBatch:
    """Return images with the shard as the last column of their rows."""
    row = images.column("row")
    column = pa.array([shard]).take(pa.array(np.zeros(len(images), np.int64)))
    fields = [*row.type, pa.field(SHARD, pa.string(), nullable=False)]
    values = [row.field(place) for place in range(row.type.num_fields)]
    missing = row.is_null() if row.null_count else None
    rows = pa.StructArray.from_arrays([*values, column], fields=fields, mask=missing)
    place = images.schema.get_field_index("row")
    return images.set_column(place, pa.field("row", rows.type), rows)


def _require_old_rows(images: pa.RecordBatch, table: TableName) -> None:
    """Raise `DefiniteError` unless every change has its whole old row, because KEY is not the key of the table."""
    kinds = images.column("_image").to_numpy()
    old = np.concatenate([[False], kinds[:-1] == Image.BEFORE])[: len(kinds)]
    if np.isin(kinds, (Image.BEFORE_KEY, Image.DELETED_KEY)).any() or ((kinds == Image.UPDATED) & ~old).any():
        message = f"changes of {table} do not contain the whole old row, which KEY of this sink requires"
        raise DefiniteError(message, "Run upstream: ALTER TABLE … REPLICA IDENTITY FULL; then create the sink again.")
