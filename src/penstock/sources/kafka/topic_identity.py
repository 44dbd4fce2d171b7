"""The topic that was captured, and not another one of the same name.

Offsets are meaningful in one topic only. If a topic is deleted and recreated, capture stops; but ranges that were
recorded before may be read later, and would then return messages of the other topic. So whoever reads a range compares
the id of the topic *after* reading, before using what was read.
"""

from __future__ import annotations

from penstock.sources.kafka.topic_admin import TopicAdmin
from penstock.sources.kafka.topic_table import SourceTopic

__all__ = ["recreated"]


def recreated(admin: TopicAdmin, topic: SourceTopic) -> str | None:
    """Return the message of an error if the topic is not the one that was captured, otherwise None."""
    if topic.id is None:  # brokers before Kafka 2.8 do not report it
        return None
    found = admin.describe([topic.name])[topic.name]
    if found is None or found.id not in (None, topic.id):
        return f"topic {topic.name} was deleted and recreated, so its messages are not those that were captured"
    return None
