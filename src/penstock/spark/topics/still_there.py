"""Whether Kafka still has the messages of a range: whoever asks for the past may come too late."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import HistoryExpiredError
from penstock.sources.kafka.ticks import OffsetRange
from penstock.sources.kafka.topic_client import TopicClient
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_start import Start

__all__ = ["check_still_there"]

_REMEDY = "Ask for a later moment. To go back further from now on, let the topic keep its messages for longer."


def check_still_there(log: TopicLog, read: Sequence[OffsetRange]) -> None:
    """Raise `HistoryExpiredError` where messages of these ranges, which are of one topic, were removed by age."""
    topic = read[0].topic
    with TopicClient(log.what, log.how, log.source, topic) as client:
        starts = client.settled(Start())
    for part in read:
        if part.first < starts[part.partition]:
            message = (
                f"partition {part.partition} of the topic {topic} begins at {starts[part.partition]} by now: the "
                f"messages from {part.first} on, which this moment of source {log.source} is made of, are gone"
            )
            raise HistoryExpiredError(message, _REMEDY)
