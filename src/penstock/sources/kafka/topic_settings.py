"""Settings of a topic, held against what a source needs of them; each finding has the command that mends it.

===========================  ==================================================================================
``cleanup.policy``           DEBEZIUM needs every record. UPSERT wants the newest of each key, which ``delete`` removes
``message.timestamp.type``   where ``timestamp_type`` is broker
``unclean.leader.election``  messages that were taken may vanish
===========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.envelopes.upstream import refuse_compacted
from penstock.errors import UsageError
from penstock.sources.findings import Finding, error, warning
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.with_options import KafkaWithOptions, TimestampType

__all__ = ["needs_settings", "setting_findings"]

_BY_KEY = (EnvelopeKind.UPSERT, EnvelopeKind.DEBEZIUM_UPSERT)
_STAMPED = "LogAppendTime"
_FOR_EVER = "-1"


def needs_settings(what: KafkaSqlOptions, how: KafkaWithOptions) -> bool:
    """Say whether a source cannot be made without knowing the settings of its topics."""
    return what.envelope.kind is EnvelopeKind.DEBEZIUM or how.timestamp_type is TimestampType.BROKER


def setting_findings(
    what: KafkaSqlOptions, how: KafkaWithOptions, topic: str, settings: Mapping[str, str]
) -> Iterator[Finding]:
    """Say what is wrong with the settings of a topic."""
    policy = settings.get("cleanup.policy", "")
    if what.envelope.kind is EnvelopeKind.DEBEZIUM:
        try:
            refuse_compacted(topic, policy)
        except UsageError as refused:
            yield error(topic, refused.message, f"{refused.hint[:1].upper()}{refused.hint[1:]}.")
    if how.timestamp_type is TimestampType.BROKER and settings.get("message.timestamp.type") != _STAMPED:
        why = f"timestamp type is broker, and the topic {topic} keeps the times that producers give"
        yield error(topic, why, f"Run: {_command(what, topic, f'message.timestamp.type={_STAMPED}')}")
    if what.envelope.kind in _BY_KEY and "compact" not in policy and settings.get("retention.ms") != _FOR_EVER:
        why = f"the topic {topic} loses messages by their age, also those that are the newest of their key"
        hint = "Whoever reads it anew does not see these rows any more. Run: "
        yield warning(topic, why, f"{hint}{_command(what, topic, 'cleanup.policy=compact')}")
    if settings.get("unclean.leader.election.enable") == "true":
        why = f"the topic {topic} may lose messages at its end that were taken already, and is then read anew"
        yield warning(topic, why, f"Run: {_command(what, topic, 'unclean.leader.election.enable=false')}")


def _command(what: KafkaSqlOptions, topic: str, setting: str) -> str:
    named = f"kafka-configs.sh --bootstrap-server {what.broker} --entity-type topics --entity-name {topic}"
    return f"{named} --alter --add-config {setting}"
