"""Where following a topic begins: settled once, when its source is made, and stored with the topic's id."""

from __future__ import annotations

from penstock.errors import DefiniteError, TransientError
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.topic_client import TopicClient
from penstock.sources.kafka.topic_offsets import Observed, TopicsClient
from penstock.sources.kafka.topic_start import Start
from penstock.sources.kafka.topic_table import FollowedTopic
from penstock.sources.kafka.with_options import KafkaWithOptions

__all__ = ["beginning"]


def beginning(what: KafkaSqlOptions, how: KafkaWithOptions, source: str, topic: str, start: Start) -> FollowedTopic:
    """Settle a start to the offsets that it means now; refuse one of which messages are gone, or not there yet."""
    with TopicClient(what, how, source, topic) as settling, TopicsClient(what, how, source) as looking:
        before = looking.look([topic])[topic]
        offsets = settling.settled(start)
        found = looking.look([topic])[topic]
    if before is None or found is None or before.id != found.id:
        message = f"the topic {topic} at {what.broker} is being deleted or made again"
        raise TransientError(message, "Try again when that is done.")
    _check_within(topic, offsets, found)
    return FollowedTopic(name=topic, id=found.id, offsets=tuple(offsets))


def _check_within(topic: str, offsets: list[int], found: Observed) -> None:
    for partition, offset in enumerate(offsets):
        start, end = found.starts[partition], found.ends[partition]
        if not start <= offset <= end:
            message = f"reading cannot begin at {offset} in partition {partition} of the topic {topic}"
            raise DefiniteError(message, f"It has messages from {start} to {end}: choose start_offset among them.")
