"""The metadata topic, as a config stores it, and the routes from its tables to topics.

ENDs count events by table (``schema.table``), ticks by topic. A route names the topic with the events of a table:
Debezium names topics ``<prefix>.<schema>.<table>``, with an underscore for each character that Kafka does not allow;
other routes are configured. Events of tables without a topic in this source are not waited for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from penstock.errors import DefiniteError
from penstock.formats import ResolvedFormat
from penstock.sources.kafka.topic_table import SourceTopic
from penstock.sources.kafka.transactions.message_columns import Ends, Ints

__all__ = ["Routes", "TransactionMetadata"]


_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")


class Routes:
    """Finds the topics of tables, and caches them."""

    def __init__(self, topics: Sequence[str], given: Mapping[str, str] | None = None) -> None:
        self._topics = tuple(topics)
        self._found: dict[str, int | None] = {}
        for table, topic in (given or {}).items():
            self._found[table] = self._topics.index(topic) if topic in self._topics else None

    def wanted(self, ends: Ends) -> Ints:
        """Return the number of events of each END in each topic: a row for each END, a column for each topic."""
        wanted = np.zeros((len(ends.offsets), len(self._topics)), np.int64)
        for place, table in enumerate(ends.collections):
            topic = self._topic_of(table)
            if topic is not None:
                wanted[:, topic] += ends.counts[:, place]
        return wanted

    def _topic_of(self, table: str) -> int | None:
        if table not in self._found:
            self._found[table] = self._by_name(table)
        return self._found[table]

    def _by_name(self, table: str) -> int | None:
        name = _FOREIGN.sub("_", table)
        found = [place for place, topic in enumerate(self._topics) if f".{topic}".endswith(f".{name}")]
        if len(found) > 1:
            message = f"topic of table {table} is ambiguous: {' or '.join(self._topics[place] for place in found)}"
            raise DefiniteError(message, "Create a separate source for each of these topics.")
        return found[0] if found else None


class TransactionMetadata(BaseModel):
    """The topic to which Debezium writes transaction metadata."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    topic: SourceTopic
    format: ResolvedFormat
    """The format of its values."""
    routes: dict[str, str] = Field(default_factory=dict)
    """Topics by table (``schema.table``), for topics not named after their table."""
