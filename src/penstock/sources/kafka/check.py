"""``penstock check`` of a Kafka source: whether brokers, topics and formats are as it needs them.

Of a source that is not there yet, each topic is looked at as if it were made. Of one that is, its topics must be the
same ones, and its registry is asked whether schemas have grown since. How far it was taken, its capture alone knows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.errors import PenstockError
from penstock.formats import AvroFormat, JsonFormat, ProtobufFormat, Registry, ResolvedFormat, evolved
from penstock.sources.findings import Finding, error, errors_among, info, warning
from penstock.sources.interface import Checked
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.creation import Creation
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_offsets import Observed, TopicsClient
from penstock.sources.kafka.topic_settings import needs_settings, setting_findings
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["checked"]


def checked(source: str, what: KafkaSqlOptions, how: KafkaWithOptions, instance: KafkaConfig | None) -> Checked:
    """Look at everything outside that a source needs."""
    creation = Creation(source, what, how)
    try:
        with TopicsClient(what, how, source) as client:
            found = client.look(what.names())
            own = {topic: _topic(what, how, client, creation, topic, found[topic], instance) for topic in found}
        transactions = _transactions(creation, what.envelope.transaction_metadata_topic)
    except PenstockError as refused:
        return Checked((), (error(what.broker, refused.message, refused.hint),), ready=False)
    tables = tuple((creation.name(topic), not errors_among(findings)) for topic, findings in own.items())
    every = (*(finding for findings in own.values() for finding in findings), *transactions)
    return Checked(tables, every, ready=not errors_among(every))


def _topic(
    what: KafkaSqlOptions,
    how: KafkaWithOptions,
    client: TopicsClient,
    creation: Creation,
    topic: str,
    found: Observed | None,
    instance: KafkaConfig | None,
) -> Sequence[Finding]:
    """Say what there is to say of one topic."""
    if found is None:
        why = f"the topic {topic} is not there"
        return [error(topic, why, "Check its name, and that the user may describe it.")]
    findings = list(_settings(what, how, client, topic))
    if instance is None:
        return findings + list(_could_be_made(creation, topic))
    table = next((table for table in instance.produced() if table.topic.name == topic), None)
    if table is None:
        return findings
    return [*findings, *_same(instance, table, found), *_growth(what, how, table)]


def _settings(what: KafkaSqlOptions, how: KafkaWithOptions, client: TopicsClient, topic: str) -> Iterator[Finding]:
    try:
        settings = client.settings(topic)
    except PenstockError as refused:
        told = error if needs_settings(what, how) else warning
        yield told(topic, refused.message, refused.hint)
        return
    yield from setting_findings(what, how, topic, settings)


def _could_be_made(creation: Creation, topic: str) -> Iterator[Finding]:
    try:
        creation.table(topic)
    except PenstockError as refused:
        yield error(topic, refused.message, refused.hint)


def _transactions(creation: Creation, topic: str | None) -> list[Finding]:
    try:
        creation.metadata()
    except PenstockError as refused:
        return [error(str(topic), refused.message, refused.hint)]
    return []


def _same(instance: KafkaConfig, table: TopicTable, found: Observed) -> Iterator[Finding]:
    if None not in (table.topic.id, found.id) and table.topic.id != found.id:
        why = f"the topic {table.topic.name} was deleted and made again: its offsets are others than those taken"
        yield error(table.topic.name, why, instance.how_to_begin_anew())


def _growth(what: KafkaSqlOptions, how: KafkaWithOptions, table: TopicTable) -> Iterator[Finding]:
    """Say of schemas in a registry whether they have grown, or cannot be read as they are now."""
    address = registry_address(what, how)
    for part, resolved in (("key", table.key_format), ("value", table.value_format)):
        subject = None if resolved is None else _followed_subject(resolved, f"{table.topic.name}-{part}")
        if address is None or resolved is None or subject is None:
            continue
        try:
            growth = evolved(resolved, Registry(address).latest(subject))
        except PenstockError as refused:
            yield error(subject, refused.message, refused.hint)
            continue
        for obstacle in growth.obstacles:
            yield warning(subject, f"the latest schema is not read as it is: {obstacle}", "Make a source of it anew.")
        if growth.added:
            why = f"the latest schema has more fields than the table has columns: {', '.join(growth.added)}"
            yield info(subject, why, "They become columns when the source is made anew.")


def _followed_subject(resolved: ResolvedFormat, usual: str) -> str | None:
    """Return the subject whose latest schema a format was read by; None where its schema was given."""
    match resolved.format:
        case AvroFormat(registry=address, reader_schema=None, subject=named) if address is not None:
            return named or usual
        case JsonFormat(registry=address, columns=None, subject=named) if address is not None:
            return named or usual
        case ProtobufFormat(registry=address, descriptor_set=None, subject=named) if address is not None:
            return named or usual
    return None
