"""The options of sinks whose values are words: format, envelope, delivery and others."""

from __future__ import annotations

from penstock.kafka_client.option_values import Word

__all__ = ["CleanupPolicy", "Delivery", "SinkEnvelope", "SinkFormat", "SubjectStrategy"]


class SinkFormat(Word):
    """The format of keys and values."""

    JSON = "json"
    """JSON; with a schema registry, with a registered JSON Schema."""
    AVRO = "avro"
    """Avro, with a schema registry."""
    PROTOBUF = "protobuf"
    """Protocol Buffers, with a schema registry."""


class SinkEnvelope(Word):
    """The messages of a change."""

    UPSERT = "upsert"
    """The row after the change, by key; a message without a value (a tombstone) for a deleted row."""
    DEBEZIUM = "debezium"
    """The record that Debezium's Postgres connector writes: `before`, `after`, `source`, `op`."""
    CHANGES = "changes"
    """One message for each change: the operation, its position, and the row before and after it."""
    TRANSACTIONS = "transactions"
    """One message for each transaction, with all its changes; a large transaction has several messages."""


class Delivery(Word):
    """What a consumer sees after a failure."""

    EXACTLY_ONCE = "exactly once"
    """Each change once, with `isolation.level=read_committed`: the position is in the Kafka transaction of the
    messages."""
    AT_LEAST_ONCE = "at least once"
    """Some changes again: Spark writes the messages, in parallel tasks, and the home has the position."""


class SubjectStrategy(Word):
    """The subject of a schema in the registry."""

    TOPIC = "topic"
    """The name of the topic, with the suffix `-key` or `-value`."""
    RECORD = "record"
    """The name of the record."""
    TOPIC_RECORD = "topic record"
    """The name of the topic, a dash, and the name of the record."""


class CleanupPolicy(Word):
    """The cleanup policy of the topics that the sink creates."""

    DELETE = "delete"
    """Messages are deleted after the retention time of the topic."""
    COMPACT = "compact"
    """The last message of each key is kept."""
    COMPACT_DELETE = "compact,delete"
    """Both."""
