"""The names that users see of the tables of topics.

The table of a source's one topic is called as the source. Of several, each is called by what stands behind the last dot
of the topic (Debezium writes ``prefix.schema.table``), where that tells them apart; else by the whole name, with
underscores for dots, and by a number where that is taken, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

__all__ = ["local_names"]


def local_names(source: str, topics: Sequence[str]) -> dict[str, str]:
    """Return the name of each topic's table; no two are the same, in any case."""
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
    """Return a name, with the first number behind it with which it is new."""
    used = {each.lower() for each in taken}
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(each for each in numbered if each.lower() not in used)
