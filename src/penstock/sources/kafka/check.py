"""``penstock check`` of a Kafka source: verify brokers, topics and formats.

For a source that does not exist yet, each topic is checked as if the source were created. For an existing source, the
topics must be the same ones, and the check compares its schemas with the latest ones in the registry. Only the capture
process knows the offsets that were read, so they are not checked here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.errors import PenstockError
from penstock.formats import Registry, evolve
from penstock.kafka_client.settings import registry_address
from penstock.sources.findings import Finding, error, errors_among, info, warning
from penstock.sources.interface import Checked
from penstock.sources.kafka.config import KafkaConfig
from penstock.sources.kafka.creation import Creation
from penstock.sources.kafka.resolved_formats import followed_subject
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.table_growth import can_grow
from penstock.sources.kafka.topic_admin import TopicAdmin, TopicState, needs_settings, setting_findings
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions, NewColumns

__all__ = ["checked"]


def checked(source: str, what: KafkaSqlOptions, how: KafkaWithOptions, instance: KafkaConfig | None) -> Checked:
    """Check everything outside the home that a source needs."""
    creation = Creation(source, what, how)
    try:
        with TopicAdmin(what, how, source) as client:
            found = client.describe(what.names())
            own = {topic: _topic(what, how, client, creation, topic, found[topic], instance) for topic in found}
        transactions = _transactions(creation, what.envelope.transaction_metadata_topic)
    except PenstockError as failure:
        return Checked((), (error(what.broker, failure.message, failure.hint),), ready=False)
    tables = tuple((creation.name(topic), not errors_among(findings)) for topic, findings in own.items())
    every = (*(finding for findings in own.values() for finding in findings), *transactions)
    return Checked(tables, every, ready=not errors_among(every))


def _topic(
    what: KafkaSqlOptions,
    how: KafkaWithOptions,
    client: TopicAdmin,
    creation: Creation,
    topic: str,
    found: TopicState | None,
    instance: KafkaConfig | None,
) -> Sequence[Finding]:
    """Return the findings for one topic."""
    if found is None:
        why = f"topic {topic} does not exist"
        return [error(topic, why, "Check its name, and that the user has DESCRIBE on it.")]
    findings = list(_settings(what, how, client, topic))
    if instance is None:
        return findings + list(_could_be_made(creation, topic))
    table = next((table for table in instance.produced() if table.topic.name == topic), None)
    if table is None:
        return findings
    return [*findings, *_same(instance, table, found), *_growth(instance.source, what, how, table)]


def _settings(what: KafkaSqlOptions, how: KafkaWithOptions, client: TopicAdmin, topic: str) -> Iterator[Finding]:
    try:
        settings = client.settings(topic)
    except PenstockError as failure:
        report = error if needs_settings(what, how) else warning
        yield report(topic, failure.message, failure.hint)
        return
    yield from setting_findings(what, how, topic, settings)


def _could_be_made(creation: Creation, topic: str) -> Iterator[Finding]:
    try:
        creation.table(topic)
    except PenstockError as failure:
        yield error(topic, failure.message, failure.hint)


def _transactions(creation: Creation, topic: str | None) -> list[Finding]:
    try:
        creation.metadata()
    except PenstockError as failure:
        return [error(str(topic), failure.message, failure.hint)]
    return []


def _same(instance: KafkaConfig, table: TopicTable, found: TopicState) -> Iterator[Finding]:
    if None not in (table.topic.id, found.id) and table.topic.id != found.id:
        why = f"topic {table.topic.name} was deleted and recreated, so stored offsets are invalid"
        yield error(table.topic.name, why, instance.restart_hint())


def _growth(source: str, what: KafkaSqlOptions, how: KafkaWithOptions, table: TopicTable) -> Iterator[Finding]:
    """Yield findings for registry schemas that have new fields or can no longer be read."""
    address = registry_address(what.schema_registry, how)
    for part, resolved in (("key", table.key_format), ("value", table.value_format)):
        subject = None if resolved is None else followed_subject(resolved.format, f"{table.topic.name}-{part}")
        if address is None or resolved is None or subject is None:
            continue
        try:
            growth = evolve(resolved, Registry(address).latest(subject))
        except PenstockError as failure:
            yield error(subject, failure.message, failure.hint)
            continue
        for obstacle in growth.conflicts:
            yield warning(
                subject, f"the latest schema is incompatible: {obstacle}", "Drop the source and create it again."
            )
        addable = can_grow(table) if part == "value" else lambda _: False
        held = [path for path in growth.added if not addable(path)]
        if held:
            why = f"the latest schema has fields that cannot be added to the table: {', '.join(held)}"
            yield info(subject, why, "Drop the source and create it again to read them.")
        added = [path for path in growth.added if path not in held]
        if added and how.new_columns is NewColumns.HOLD:
            why = f"the latest schema has fields that are not columns of the table: {', '.join(added)}"
            yield info(subject, why, f"To add them: ALTER SOURCES {source} SET (new columns = 'add').")
