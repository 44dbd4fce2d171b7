"""The start offsets of a topic: resolved once, when its source is created, and stored with the topic id."""

from __future__ import annotations

from penstock.errors import DefiniteError, TransientError
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_admin import TopicAdmin, TopicState
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.topic_table import SourceTopic
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["resolve_start"]


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
