"""The capture of topics, with the tables built from their messages.

The log has two tables for each topic: one of its ticks (`ticks`), and the one that users see. The latter has columns,
errors and a start position in the log, but no changes: those are the messages, which stay in Kafka. `reading` returns a
log that combines both (`topic_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from penstock.changelog.interface import ChangeLog
from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.kafka_client.settings import registry_address
from penstock.sources.interface import Source
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tick_instance import TickConfig
from penstock.sources.kafka.ticks import tick_table
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_start import can_restart_table
from penstock.sources.kafka.topic_table import TopicTable, reached_by
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sources.produced_table import ProducedTable
from penstock.sources.row_tables import RowTable

__all__ = ["KafkaConfig"]


class KafkaConfig(TickConfig):
    """Topics, and a table for each."""

    tables: tuple[TopicTable | RowTable, ...]
    metadata: TransactionMetadata | None = None
    """The topic with Debezium's transaction metadata; None: ticks ignore upstream transactions."""

    @classmethod
    def create(
        cls, source: str, what: KafkaSqlOptions, how: KafkaWithOptions, tables: Sequence[TopicTable], **fields: Any
    ) -> Self:
        """Create the config from the options and the tables."""
        return cls(
            source=source,
            what=what,
            how=how,
            topics=tuple(table.topic for table in tables),
            tables=_with_ticks(tables),
            **fields,
        )

    def produced(self) -> Sequence[TopicTable]:
        """Return the tables that users see."""
        return [table for table in self.tables if isinstance(table, TopicTable)]

    def reading(self, log: ChangeLog, state: Path) -> ChangeLog:
        """Return the log combined with the messages of the topics."""
        return TopicLog(log, self.source, self.what, self.how, tuple(self.produced()), state)

    def altered(self, spec: Source) -> Self:
        """Return this config with the alterable options of `spec`; tables also store the registry address."""
        requested = {option: getattr(spec, option) for option in spec.ALTERABLE}
        how = with_fields(
            self.how, **{o: value for o, value in requested.items() if o in KafkaWithOptions.model_fields}
        )
        registry = registry_address(self.what.schema_registry, how)
        metadata = self.metadata
        return with_fields(
            self,
            how=how,
            tables=tuple(t.reached_by(registry) if isinstance(t, TopicTable) else t for t in self.tables),
            metadata=None if metadata is None else with_fields(metadata, format=reached_by(metadata.format, registry)),
            retain_history=requested.get("retain_history", self.retain_history),
        )

    def waiting(self, state: Path) -> str | None:
        """Return the transaction that the source waits for."""
        if self.metadata is None:
            return None
        from penstock.sources.kafka.transactions.wait_status import read_wait_reason

        return read_wait_reason(state)

    def valid_from(self, state: Path) -> str | None:
        """Return the transaction at which the tables became valid, if reading started within the topics."""
        if self.metadata is None:
            return None
        from penstock.sources.kafka.transactions.wait_status import valid_from

        return valid_from(state)

    def restarted(self, tables: Sequence[ProducedTable]) -> Self:
        """Return this config with its one topic read again, from the current start offsets."""
        found = [table for table in tables if isinstance(table, TopicTable)]
        if not can_restart_table(self.what):
            message = f"cannot resnapshot a single table of source {self.source}: its tables share their positions"
            raise UsageError(message, f"Drop the source and create it again: penstock drop {self.source}")
        update = {"topics": tuple(table.topic for table in found), "tables": _with_ticks(found)}
        return with_fields(self, **update)


def _with_ticks(tables: Sequence[TopicTable]) -> tuple[TopicTable | RowTable, ...]:
    """Return tables and their tick tables, which have the same generation."""
    ticks = (with_fields(tick_table(table.topic.name), generation=table.generation) for table in tables)
    return (*tables, *ticks)
