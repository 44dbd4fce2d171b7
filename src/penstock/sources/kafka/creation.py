"""Making a Kafka source: a look at its topics, which settles all that is fixed from then on. Nothing is made outside.

::

    options ─▶ for each topic: where reading begins ─▶ how keys and values are read ─▶ its table ─▶ KafkaConfig
                                 (`beginning`)              (`resolved`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from penstock.envelopes import refuse_compacted
from penstock.errors import DefiniteError, UsageError
from penstock.model import IncludedColumn, TableName
from penstock.sources.kafka.beginning import beginning
from penstock.sources.kafka.client import TopicClient
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.observing import TopicsClient
from penstock.sources.kafka.resolved import Message, TopicFormats, registry_address
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.start import Start, start_of
from penstock.sources.kafka.topic_names import local_names
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions, TimestampType

__all__ = ["created"]

_SCHEMA = "topic"
_STAMPED = "LogAppendTime"


def created(source: str, what: KafkaSqlOptions, how: KafkaWithOptions, retain_history: str) -> KafkaConfig:
    """Look at the topics, and return what their capture needs."""
    if what.envelope.transaction_metadata_topic is not None:
        message = "TRANSACTION METADATA is not there yet"
        raise UsageError(message, "Leave it out: each topic is then followed on its own.")
    start, local = start_of(how, datetime.now(UTC)), local_names(source, what.names())
    _check_settings(source, what, how)
    tables = [_table(source, what, how, topic, local[topic], start) for topic in what.names()]
    return KafkaConfig.made(source, what, how, tables, retain_history=retain_history)


def _table(
    source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, alias: str, start: Start
) -> TopicTable:
    followed = beginning(what, how, source, topic, start)

    def messages() -> Iterator[Message]:
        with TopicClient(what, how, source, topic, tells_ends=True) as client:
            yield from client.messages()

    formats = TopicFormats(what, registry_address(what, how), topic, messages)
    return TopicTable.made(
        TableName(_SCHEMA, topic),
        alias,
        followed,
        formats.key(),
        formats.value(),
        what.envelope.kind,
        tuple(IncludedColumn(column.what, column.name or column.what) for column in what.include),
    )


def _check_settings(source: str, what: KafkaSqlOptions, how: KafkaWithOptions) -> None:
    """Hold topics to what the envelope and the options need of them; brokers are asked where they need something."""
    stamped = how.timestamp_type is TimestampType.BROKER
    if not stamped and what.envelope.kind is not EnvelopeKind.DEBEZIUM:
        return
    with TopicsClient(what, how, source) as client:
        _refuse_missing(what, client, what.names())
        for topic in what.names():
            settings = client.settings(topic)
            if what.envelope.kind is EnvelopeKind.DEBEZIUM:
                refuse_compacted(topic, settings["cleanup.policy"])
            if stamped and settings["message.timestamp.type"] != _STAMPED:
                raise _unstamped(what.broker, topic)


def _refuse_missing(what: KafkaSqlOptions, client: TopicsClient, topics: Sequence[str]) -> None:
    missing = [topic for topic, found in client.look(topics).items() if found is None]
    if missing:
        message = f"the topic {missing[0]} at {what.broker} is not there"
        raise DefiniteError(message, "Check the topic's name, and that the user may describe it.")


def _unstamped(broker: str, topic: str) -> DefiniteError:
    message = f"timestamp type is broker, and the topic {topic} keeps the times that producers give"
    command = f"kafka-configs.sh --bootstrap-server {broker} --entity-type topics --entity-name {topic} --alter"
    return DefiniteError(message, f"Run: {command} --add-config message.timestamp.type={_STAMPED}")
