"""Debezium's transaction metadata: a block in each message, and a topic with BEGIN and END of each transaction.

::

    messages of all tables of a window ─┬─▶ the same with their transaction block ─▶ topics of the tables
      (whole upstream transactions)     └─▶ BEGIN, END with the number of events ──▶ <server>.transaction

Both are written in one Kafka transaction. Counts are those of the tables of the sink, as with Debezium's option
``table.include.list``: a sink of one table counts its changes alone, and does not report other transactions.

The topic has one partition, so that it has the transactions in commit order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.sinks.debezium import TRANSACTION_KEY, TRANSACTION_VALUE, transaction_messages
from penstock.sinks.encoding import MessageFormat, SchemaRegistration, encoder
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.kafka.topics import TopicSettings
from penstock.sinks.kafka.transaction_writer import TopicMessages
from penstock.sinks.messages import SinkMessages
from penstock.sinks.schemas.record_names import RecordName

__all__ = ["TransactionTopic", "transaction_topic_settings"]


def transaction_topic_settings(tables: TopicSettings) -> TopicSettings:
    """Return the settings of the topic; `tables` are those of the topics of tables."""
    return replace(tables, partitions=1)


class TransactionTopic:
    """The messages of the transaction topic of a sink."""

    def __init__(self, sink: KafkaSink, form: MessageFormat, registry: SchemaRegistration | None) -> None:
        assert sink.metadata_topic is not None
        self.topic = sink.metadata_topic
        self._encoder = encoder(
            form,
            topic=self.topic,
            key=RecordName(TRANSACTION_KEY, is_connect=True, version=1),
            value=RecordName(TRANSACTION_VALUE, is_connect=True, version=1),
            registry=registry,
            subjects=sink.subject_strategy.value,
            with_schemas=sink.json_schemas,
        )

    def messages(self, tables: Sequence[SinkMessages]) -> TopicMessages:
        """Return BEGIN and END of each transaction of these messages; rows of a snapshot have none."""
        keys, values = self._encoder.encode(transaction_messages(tables))
        return TopicMessages(self.topic, values, keys)
