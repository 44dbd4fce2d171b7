"""Check the settings of a topic against the needs of a source; each finding contains the command that fixes it.

===========================  ==================================================================================
``cleanup.policy``           DEBEZIUM needs every record. UPSERT needs the latest of each key, which ``delete`` removes
``message.timestamp.type``   if ``timestamp_type`` is broker
``unclean.leader.election``  messages that were already read may be lost
===========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.envelopes.upstream_positions import reject_compacted
from penstock.errors import UsageError
from penstock.sources.findings import Finding, error, warning
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions, TimestampType

__all__ = ["needs_settings", "setting_findings"]

_BY_KEY = (EnvelopeKind.UPSERT, EnvelopeKind.DEBEZIUM_UPSERT)
_STAMPED = "LogAppendTime"
_FOR_EVER = "-1"


def needs_settings(what: KafkaSqlOptions, how: KafkaWithOptions) -> bool:
    """Return whether a source cannot be created without reading the settings of its topics."""
    return what.envelope.kind is EnvelopeKind.DEBEZIUM or how.timestamp_type is TimestampType.BROKER


def setting_findings(
    what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the problems with the settings of a topic."""
    policy = settings.get("cleanup.policy", "")
    if what.envelope.kind is EnvelopeKind.DEBEZIUM:
        try:
            reject_compacted(topic, policy)
        except UsageError as failure:
            yield error(topic, failure.message, f"{failure.hint[:1].upper()}{failure.hint[1:]}.")
    if how.timestamp_type is TimestampType.BROKER and settings.get("message.timestamp.type") != _STAMPED:
        why = f"timestamp_type is broker, but topic {topic} stores the timestamps of producers"
        yield error(topic, why, f"Run: {_command(what, topic, f'message.timestamp.type={_STAMPED}')}")
    if what.envelope.kind in _BY_KEY and "compact" not in policy and settings.get("retention.ms") != _FOR_EVER:
        why = f"topic {topic} deletes messages by age, including the latest message of a key"
        hint = "A source that reads the topic again misses these rows. Run: "
        yield warning(topic, why, f"{hint}{_command(what, topic, 'cleanup.policy=compact')}")
    if settings.get("unclean.leader.election.enable") == "true":
        why = f"topic {topic} may lose messages that were already read; the source must then be restarted"
        yield warning(topic, why, f"Run: {_command(what, topic, 'unclean.leader.election.enable=false')}")


def _command(what: KafkaSqlOptions, topic: str, setting: str) -> str:
    named = f"kafka-configs.sh --bootstrap-server {what.broker} --entity-type topics --entity-name {topic}"
    return f"{named} --alter --add-config {setting}"
