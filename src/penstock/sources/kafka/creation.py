"""Create a Kafka source: inspect its topics and fix everything that stays constant. No objects are created in Kafka.

::

    options ─▶ for each topic: its settings ─▶ start offsets ─▶ formats of keys and values ─▶ its table
                             (`topic_admin`)  (`resolve_start`)   (`resolved_formats`)         └─▶ KafkaConfig

**Start offsets** are resolved once, and stored with the topic id.

**Names.** The table of a source with one topic has the name of the source. With several topics, each table is named
after the last part of the topic name (Debezium writes ``prefix.schema.table``) if that is unique; otherwise after the
whole topic name, with underscores for dots, and with a number if that is taken, too.

**Transaction metadata.** The messages of Debezium's metadata topic have the format of the values of the other topics,
with their own schema. JSON needs no schema, because the fields that Debezium writes are known
(`penstock.sources.kafka.transactions.metadata`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.formats import AvroFormat, JsonFormat, RegistryAddress, ResolvedFormat, resolve
from penstock.kafka_client.settings import registry_address
from penstock.model import IncludedColumn, TableName
from penstock.sources.findings import errors_among
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.message_formats import AvroOptions, FormatOptions, JsonOptions, RegisteredOptions
from penstock.sources.kafka.resolved_formats import Message, TopicFormats
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_admin import TopicAdmin, TopicState, needs_settings, setting_findings
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_start import Start, start_of
from penstock.sources.kafka.topic_table import SourceTopic, TopicTable
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["Creation", "local_names", "resolve_start"]

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
        return None if topic is None else _transaction_metadata(self._source, self._what, self._how, topic, self._start)

    def table(self, topic: str) -> TopicTable:
        """Inspect one topic, and return its table."""
        followed = resolve_start(self._what, self._how, self._source, topic, self._start)
        formats = TopicFormats(
            self._what, registry_address(self._what.schema_registry, self._how), topic, lambda: self._messages(followed)
        )
        version = formats.value_version()  # before the schema is read, so that no version is skipped
        return TopicTable.create(
            self.name(topic),
            self._local[topic],
            followed,
            formats.key(),
            formats.value(),
            self._what.envelope.kind,
            tuple(IncludedColumn(column.what, column.name or column.what) for column in self._what.include),
            version,
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


# -- start offsets -----------------------------------------------------------------------------------------------------


def resolve_start(what: KafkaSqlOptions, how: KafkaWithOptions, source: str, topic: str, start: Start) -> SourceTopic:
    """Resolve a start to offsets; raise if their messages were removed or do not exist yet."""
    with TopicConsumer(what, how, source, topic) as settling, TopicAdmin(what, how, source) as looking:
        before = looking.describe([topic])[topic]
        offsets = settling.resolve_offsets(start)
        found = looking.describe([topic])[topic]
    if before is None or found is None or before.id != found.id:
        message = f"topic {topic} at {what.broker} is being deleted or recreated"
        raise TransientError(message, "Retry when this is done.")
    _check_within(topic, offsets, found)
    return SourceTopic(name=topic, id=found.id, offsets=tuple(offsets))


def _check_within(topic: str, offsets: list[int], found: TopicState) -> None:
    for partition, offset in enumerate(offsets):
        start, end = found.starts[partition], found.ends[partition]
        if not start <= offset <= end:
            message = f"start offset {offset} is out of range for partition {partition} of topic {topic}"
            raise DefiniteError(message, f"Choose a start_offset from {start} to {end}.")


# -- transaction metadata ----------------------------------------------------------------------------------------------

_KNOWN = "status STRING, id STRING"


def _transaction_metadata(
    source: str, what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, start: Start
) -> TransactionMetadata:
    """Inspect the topic before the data topics, so that it covers all transactions from their start on.

    Explicit start offsets belong to the data topics: the metadata topic then starts with its first message.
    """
    begun = resolve_start(what, how, source, topic, Start() if start.offsets else start)
    if len(begun.offsets) > 1:
        message = f"topic {topic} with transaction metadata has {len(begun.offsets)} partitions, expected one"
        raise DefiniteError(message, "Recreate it with one partition: its messages define the order of transactions.")
    address = registry_address(what.schema_registry, how)
    return TransactionMetadata(topic=begun, format=_resolved(what.values(), address, topic))


def _resolved(given: FormatOptions, address: RegistryAddress | None, topic: str) -> ResolvedFormat:
    registered = isinstance(given, RegisteredOptions) and not given.without_registry
    address = address if registered else None
    if isinstance(given, JsonOptions):
        return resolve(JsonFormat(registry=address, columns=_KNOWN))
    if isinstance(given, AvroOptions) and address is not None:
        return resolve(AvroFormat(registry=address), subject=f"{topic}-value")
    message = f"transaction metadata requires JSON, or AVRO with a schema registry, but values are {given.NAME}"
    raise UsageError(message, "Configure a supported format in Debezium, or remove TRANSACTION METADATA.")


# -- names of tables ---------------------------------------------------------------------------------------------------


def local_names(source: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the name of each topic's table; names are unique regardless of case."""
    if len(topics) == 1:
        return {topics[0]: source}
    short = {topic: topic.rpartition(".")[2] for topic in topics}
    lowered = [name.lower() for name in short.values()]
    names: dict[str, str] = {}
    for topic, name in short.items():
        alone = bool(name) and lowered.count(name.lower()) == 1
        names[topic] = _free(name if alone else topic.replace(".", "_"), names.values())
    return names


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name, with the first number after it that makes it unique if it is taken."""
    used = {each.lower() for each in taken}
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in numbered if each.lower() not in used)
