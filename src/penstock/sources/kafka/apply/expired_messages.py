"""Detection of messages that Kafka has removed by retention before a query reads them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import HistoryExpiredError
from penstock.sources.kafka.ticks import OffsetRange
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_start import Start

__all__ = ["check_not_expired"]

_HINT = "Query a later time. To query further back in the future, increase the retention of the topic."


def check_not_expired(log: TopicLog, read: Sequence[OffsetRange]) -> None:
    """Raise `HistoryExpiredError` if messages of these ranges, all of one topic, were removed by retention."""
    topic = read[0].topic
    with TopicConsumer(log.what, log.how, log.source, topic) as client:
        starts = client.resolve_offsets(Start())
    for part in read:
        if part.first < starts[part.partition]:
            message = (
                f"partition {part.partition} of topic {topic} now starts at offset {starts[part.partition]}: the "
                f"messages from offset {part.first} on, which source {log.source} needs for this time, have expired"
            )
            raise HistoryExpiredError(message, _HINT)
