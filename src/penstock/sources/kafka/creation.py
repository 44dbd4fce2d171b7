"""Making a Kafka source: a look at its topics, which settles all that is fixed from then on. Nothing is made outside.

::

    options ─▶ for each topic: its settings ─▶ where reading begins ─▶ how keys and values are read ─▶ its table
                             (`topic_settings`)     (`beginning`)             (`resolved`)               └─▶ KafkaConfig
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from penstock.errors import DefiniteError
from penstock.model import IncludedColumn, TableName
from penstock.sources.findings import errors_among
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.first_offsets import beginning
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.resolved_formats import Message, TopicFormats
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_client import TopicClient
from penstock.sources.kafka.topic_names import local_names
from penstock.sources.kafka.topic_offsets import TopicsClient
from penstock.sources.kafka.topic_settings import needs_settings, setting_findings
from penstock.sources.kafka.topic_start import Start, start_of
from penstock.sources.kafka.topic_table import FollowedTopic, TopicTable
from penstock.sources.kafka.transaction_topic import transaction_metadata
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["Creation"]

_SCHEMA = "topic"


class Creation:
    """A source that is being made: its tables begin at one moment."""

    def __init__(self, source: str, what: KafkaSqlOptions, how: KafkaWithOptions) -> None:
        self._source, self._what, self._how = source, what, how
        self._start: Start = start_of(how, datetime.now(UTC))
        self._local = local_names(source, what.names())

    def config(self, retain_history: str) -> KafkaConfig:
        """Look at the topics, and return what their capture needs."""
        if needs_settings(self._what, self._how):
            self._check_settings()
        metadata = self.metadata()
        tables = [self.table(topic) for topic in self._what.names()]
        return KafkaConfig.made(
            self._source, self._what, self._how, tables, metadata=metadata, retain_history=retain_history
        )

    def metadata(self) -> TransactionMetadata | None:
        """Look at the topic of transaction metadata; None where there is none."""
        topic = self._what.envelope.transaction_metadata_topic
        return None if topic is None else transaction_metadata(self._source, self._what, self._how, topic, self._start)

    def table(self, topic: str) -> TopicTable:
        """Look at one topic, and return its table."""
        followed = beginning(self._what, self._how, self._source, topic, self._start)
        formats = TopicFormats(
            self._what, registry_address(self._what, self._how), topic, lambda: self._messages(followed)
        )
        return TopicTable.made(
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

    def _messages(self, topic: FollowedTopic) -> Iterator[Message]:
        """Yield messages from where reading begins on; where there are none yet, those before tell what will come."""
        with TopicClient(self._what, self._how, self._source, topic.name, tells_ends=True) as client:
            found = client.messages(topic.offsets)
            first = next(found, None)
            if first is None:
                yield from client.messages()
            else:
                yield first
                yield from found

    def _check_settings(self) -> None:
        with TopicsClient(self._what, self._how, self._source) as client:
            for topic in self._what.names():
                found = setting_findings(self._what, self._how, topic, client.settings(topic))
                for problem in errors_among(found):
                    raise DefiniteError(problem.why, problem.hint)
