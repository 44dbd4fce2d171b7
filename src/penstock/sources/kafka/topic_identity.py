"""The topic that was captured, and not another one of the same name.

Offsets are meaningful in one topic only. If a topic is deleted and recreated, capture stops; but ranges that were
recorded before may be read later, and would then return messages of the other topic. So whoever reads a range compares
the id of the topic *after* reading, before using what was read.
"""

from __future__ import annotations

from penstock.errors import DefiniteError
from penstock.sources.kafka.topic_admin import TopicAdmin
from penstock.sources.kafka.topic_table import SourceTopic

__all__ = ["require_same_topic"]


def require_same_topic(admin: TopicAdmin, topic: SourceTopic, restart: str) -> None:
    """Raise `DefiniteError`, with the hint `restart`, if the topic is not the one that was captured."""
    if topic.id is None:  # brokers before Kafka 2.8 do not report it
        return
    found = admin.describe([topic.name])[topic.name]
    if found is None or found.id not in (None, topic.id):
        message = f"topic {topic.name} was deleted and recreated, so its messages are not those that were captured"
        raise DefiniteError(message, restart)
