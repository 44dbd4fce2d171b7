"""Capture follows the schemas of its topics: before a tick is published, its messages have no field that is unknown.

::

    next tick: offsets per partition ─▶ registry: versions of the subject since the last ones  ─┐
                                        inferred JSON: the messages, for keys that are unknown ─┴▶ wider table, or none

**Registry.** The registry has the schema of a message before the message is in the topic. So a subject is asked *after*
the end of a tick is known, and every version since the last tick is merged, not only the latest. If the registry does
not respond, there is no tick: its messages may have fields that would be lost.

**Inferred JSON.** No schema says which keys there are, so the messages of a tick are read for them. Ticks are smaller
for such topics, because reading takes time.

The log is the only record of what is known: a run starts with the columns that the log has.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.errors import DefiniteError, HistoryExpiredError, TransientError
from penstock.formats import Registry, RegistryAddress
from penstock.sources.kafka.resolved_formats import followed_subject
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.table_growth import grown_by_schema, grown_table, is_inferred, may_add
from penstock.sources.kafka.ticks import GROUP_MESSAGES, OffsetRange
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions, NewColumns

__all__ = ["SchemaFollower", "follower_of"]

_LOG = logging.getLogger("penstock.kafka")
_LOG.addHandler(logging.NullHandler())
_MOST_COLUMNS = 1000
"""Of a table with inferred columns: beyond it, keys are probably values."""
_READ_MESSAGES = 200_000
"""The limit for a tick whose messages are read, so that capture stops and reports in time."""


class SchemaFollower(ABC):
    """Follows the schema of the values of one topic."""

    most_messages: int | None = None
    """The limit for the messages of a tick; None for the usual one."""

    def __init__(self, table: TopicTable, source: str) -> None:
        self.table = table
        """The table with the columns that are known."""
        self._source = source

    @abstractmethod
    def follow(self, ranges: Sequence[OffsetRange]) -> TopicTable | None:
        """Return the table with the columns that some messages add; None if they add none."""

    def close(self) -> None:  # noqa: B027
        """Release the connections."""

    def _grown(self, table: TopicTable) -> TopicTable:
        added = table.table_schema().added_to(self.table.table_schema())
        _LOG.info("topic %s has new columns: %s", table.topic.name, ", ".join(field.name for field in added))
        self.table = table
        return table

    def _hold_hint(self) -> str:
        return f"To continue without new columns: ALTER SOURCES {self._source} SET (new columns = 'hold')."


class _RegistryFollower(SchemaFollower):
    def __init__(self, table: TopicTable, source: str, registry: RegistryAddress, subject: str) -> None:
        super().__init__(table, source)
        self._registry, self._subject = Registry(registry), subject
        self._version = table.schema_version

    def follow(self, ranges: Sequence[OffsetRange]) -> TopicTable | None:
        try:
            newer = self._registry.versions_after(self._subject, self._version)
        except (DefiniteError, TransientError) as error:
            hint = f"{error.hint} {self._hold_hint()}".strip()
            raise TransientError(error.message, hint) from error
        before = table = self.table
        for version, schema in newer:
            table = grown_by_schema(table, schema, version) or table
            self._version = version
        return None if table is before else self._grown(table)


class _KeyFollower(SchemaFollower):
    most_messages = _READ_MESSAGES

    def __init__(self, table: TopicTable, source: str, connect: Callable[[str], TopicConsumer]) -> None:
        from penstock.formats.json.new_keys import NewKeys

        super().__init__(table, source)
        self._connect = connect
        self._consumer: TopicConsumer | None = None
        self._keys = NewKeys(table.value_format, table.places(), may_add(table))

    def follow(self, ranges: Sequence[OffsetRange]) -> TopicTable | None:
        if self._consumer is None:
            self._consumer = self._connect(self.table.topic.name)
        grew = False
        for part in ranges:
            for first in range(part.first, part.last, GROUP_MESSAGES):
                piece = part._replace(first=first, last=min(part.last, first + GROUP_MESSAGES))
                grew |= self._keys.adopt(self._values(piece))
        if not grew:
            return None
        wider = grown_table(self.table, self._keys.resolved)
        if wider is None:
            self._keys.resolved = self.table.value_format
            return None
        if len(wider.table_schema().columns) > _MOST_COLUMNS:
            message = f"messages of topic {wider.topic.name} have keys for more than {_MOST_COLUMNS} columns"
            raise TransientError(message, self._hold_hint())
        self._keys.may_add = may_add(wider)
        return self._grown(wider)

    def _values(self, part: OffsetRange) -> pa.ChunkedArray:
        assert self._consumer is not None
        try:
            return self._consumer.read([part], headers=False).column("value")
        except HistoryExpiredError as error:  # the next poll reports it, with all partitions
            raise TransientError(error.message, error.hint) from error

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def follower_of(table: TopicTable, what: KafkaSqlOptions, how: KafkaWithOptions, source: str) -> SchemaFollower | None:
    """Return the follower of a topic's values; None if their schema was given, or new fields are not added."""
    if how.new_columns is NewColumns.HOLD:
        return None
    subject = followed_subject(table.value_format.format, f"{table.topic.name}-value")
    registry = getattr(table.value_format.format, "registry", None)
    if subject is not None and registry is not None:
        return _RegistryFollower(table, source, registry, subject)
    if is_inferred(table.value_format):
        return _KeyFollower(table, source, lambda topic: TopicConsumer(what, how, source, topic, partition_eof=True))
    return None
