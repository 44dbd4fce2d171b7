"""Create a Kafka source: inspect its topics and fix everything that stays constant. No objects are created in Kafka.

::

    options ─▶ for each topic: its settings ─▶ start offsets ─▶ formats of keys and values ─▶ its table
                             (`topic_settings`) (`resolved_start`)  (`resolved_formats`)       └─▶ KafkaConfig
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from penstock.errors import DefiniteError
from penstock.model import IncludedColumn, TableName
from penstock.sources.findings import errors_among
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.resolved_formats import Message, TopicFormats
from penstock.sources.kafka.resolved_start import resolve_start
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_admin import TopicAdmin
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_names import local_names
from penstock.sources.kafka.topic_settings import needs_settings, setting_findings
from penstock.sources.kafka.topic_start import Start, start_of
from penstock.sources.kafka.topic_table import SourceTopic, TopicTable
from penstock.sources.kafka.transaction_topic import transaction_metadata
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["Creation"]

_SCHEMA = "topic"


class Creation:
    """A source that is being created; all its tables start at the same moment."""

    def __init__(self, source: str, what: KafkaSqlOptions, how: KafkaWithOptions) -> None:
        self._source, self._what, self._how = source, what, how
        self._start: Start = start_of(how, datetime.now(UTC))
        self._local = local_names(source, what.names())

    def config(self, retain_history: str) -> KafkaConfig:
        """Inspect the topics, and return the config of their capture."""
        if needs_settings(self._what, self._how):
            self._check_settings()
        metadata = self.metadata()
        tables = [self.table(topic) for topic in self._what.names()]
        return KafkaConfig.create(
            self._source, self._what, self._how, tables, metadata=metadata, retain_history=retain_history
        )

    def metadata(self) -> TransactionMetadata | None:
        """Inspect the topic of transaction metadata; return None if there is none."""
        topic = self._what.envelope.transaction_metadata_topic
        return None if topic is None else transaction_metadata(self._source, self._what, self._how, topic, self._start)

    def table(self, topic: str) -> TopicTable:
        """Inspect one topic, and return its table."""
        followed = resolve_start(self._what, self._how, self._source, topic, self._start)
        formats = TopicFormats(
            self._what, registry_address(self._what, self._how), topic, lambda: self._messages(followed)
        )
        return TopicTable.create(
            self.name(topic),
            self._local[topic],
            followed,
            formats.key(),
            formats.value(),
            self._what.envelope.kind,
            tuple(IncludedColumn(column.what, column.name or column.what) for column in self._what.include),
        )

    def name(self, topic: str) -> TableName:
        """Return the name of a topic's table."""
        return TableName(_SCHEMA, topic)

    def _messages(self, topic: SourceTopic) -> Iterator[Message]:
        """Yield messages from the start offsets; if there are none yet, earlier messages serve as a sample."""
        with TopicConsumer(self._what, self._how, self._source, topic.name, partition_eof=True) as client:
            found = client.messages(topic.offsets)
            first = next(found, None)
            if first is None:
                yield from client.messages()
            else:
                yield first
                yield from found

    def _check_settings(self) -> None:
        with TopicAdmin(self._what, self._how, self._source) as client:
            for topic in self._what.names():
                found = setting_findings(self._what, self._how, topic, client.settings(topic))
                for problem in errors_among(found):
                    raise DefiniteError(problem.why, problem.hint)
