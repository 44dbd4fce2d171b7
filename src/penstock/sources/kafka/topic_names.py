"""The names of topic tables that users see.

The table of a source with one topic has the name of the source. With several topics, each table is named after the last
part of the topic name (Debezium writes ``prefix.schema.table``) if that is unique; otherwise after the whole topic
name, with underscores for dots, and with a number if that is taken, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

__all__ = ["local_names"]


def local_names(source: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the name of each topic's table; names are unique regardless of case."""
    if len(topics) == 1:
        return {topics[0]: source}
    short = {topic: topic.rpartition(".")[2] for topic in topics}
    lowered = [name.lower() for name in short.values()]
    names: dict[str, str] = {}
    for topic, name in short.items():
        alone = bool(name) and lowered.count(name.lower()) == 1
        names[topic] = _free(name if alone else topic.replace(".", "_"), names.values())
    return names


def _free(name: str, taken: Iterable[str]) -> str:
    """Return a name, with the first number after it that makes it unique if it is taken."""
    used = {each.lower() for each in taken}
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in numbered if each.lower() not in used)
