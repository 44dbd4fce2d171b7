"""The names that users see of the tables of topics.

The table of a source's one topic is called as the source. Of several, each is called by what stands behind the last dot
of the topic (Debezium writes ``prefix.schema.table``), where that tells them apart; else by the whole name, with
underscores for dots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["local_names"]


def local_names(source: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the name of each topic's table."""
    if len(topics) == 1:
        return {topics[0]: source}
    short = {topic: topic.rpartition(".")[2] for topic in topics}
    names = {topic: name if _alone(name, short.values()) else _whole(topic) for topic, name in short.items()}
    return {topic: name if _alone(name, names.values()) else _whole(topic) for topic, name in names.items()}


def _alone(name: str, names: Iterable[str]) -> bool:
    return bool(name) and [each.lower() for each in names].count(name.lower()) == 1


def _whole(topic: str) -> str:
    return topic.replace(".", "_")
