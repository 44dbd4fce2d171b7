"""The capture of topics, with the tables that their messages make.

The log has two tables for each topic: one of its ticks (`ticks`), and the one that users see, which has columns, errors
and a beginning there, but no changes: those are the messages, which stay in Kafka. `reading` gives everybody a log that
knows this (`topic_log`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from penstock.changelog.interface import ChangeLog
from penstock.errors import UsageError
from penstock.fields import with_fields
from penstock.sources.interface import ProducedTable, Source
from penstock.sources.kafka.registry_address import registry_address
from penstock.sources.kafka.restart import begins_alone
from penstock.sources.kafka.sql_options import KafkaSqlOptions
from penstock.sources.kafka.tick_instance import FollowingConfig
from penstock.sources.kafka.ticks import tick_table
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable, reached_by
from penstock.sources.kafka.transactions.metadata import TransactionMetadata
from penstock.sources.kafka.with_options import KafkaWithOptions
from penstock.sources.row_tables import RowTable

__all__ = ["KafkaConfig"]


class KafkaConfig(FollowingConfig):
    """Topics, and a table of each."""

    tables: tuple[TopicTable | RowTable, ...]
    metadata: TransactionMetadata | None = None
    """Where Debezium tells which changes are one transaction; None: each topic is followed on its own."""

    @classmethod
    def made(
        cls, source: str, what: KafkaSqlOptions, how: KafkaWithOptions, tables: Sequence[TopicTable], **told: Any
    ) -> Self:
        """Make it of the options and the tables."""
        return cls(
            source=source,
            what=what,
            how=how,
            topics=tuple(table.topic for table in tables),
            tables=_with_ticks(tables),
            **told,
        )

    def produced(self) -> Sequence[TopicTable]:
        """Return the tables that users see."""
        return [table for table in self.tables if isinstance(table, TopicTable)]

    def reading(self, log: ChangeLog, state: Path) -> ChangeLog:
        """Return the log with what the topics hold."""
        return TopicLog(log, self.source, self.what, self.how, tuple(self.produced()), state)

    def altered(self, spec: Source) -> Self:
        """Return this config with the options that can be changed; tables know how a registry is reached, too."""
        wished = {option: getattr(spec, option) for option in spec.ALTERABLE}
        how = with_fields(self.how, **{o: value for o, value in wished.items() if o in KafkaWithOptions.model_fields})
        registry = registry_address(self.what, how)
        told = self.metadata
        return with_fields(
            self,
            how=how,
            tables=tuple(t.reached_by(registry) if isinstance(t, TopicTable) else t for t in self.tables),
            metadata=None if told is None else with_fields(told, format=reached_by(told.format, registry)),
            retain_history=wished.get("retain_history", self.retain_history),
        )

    def waiting(self, state: Path) -> str | None:
        """Say for what transaction is waited."""
        if self.metadata is None:
            return None
        from penstock.sources.kafka.transactions.waiting import waits_for

        return waits_for(state)

    def valid_from(self, state: Path) -> str | None:
        """Say with which transaction its tables became valid, where reading began in the middle."""
        if self.metadata is None:
            return None
        from penstock.sources.kafka.transactions.waiting import valid_from

        return valid_from(state)

    def anew(self, tables: Sequence[ProducedTable]) -> Self:
        """Let its one topic be read again, from where reading it would begin now."""
        found = [table for table in tables if isinstance(table, TopicTable)]
        if not begins_alone(self.what):
            message = f"the tables of source {self.source} are made together: one alone cannot be captured anew"
            raise UsageError(message, f"Drop the source and create it again: penstock drop {self.source}")
        update = {"topics": tuple(table.topic for table in found), "tables": _with_ticks(found)}
        return with_fields(self, **update)


def _with_ticks(tables: Sequence[TopicTable]) -> tuple[TopicTable | RowTable, ...]:
    """Return tables, and those of their ticks, which begin anew when they do."""
    ticks = (with_fields(tick_table(table.topic.name), generation=table.generation) for table in tables)
    return (*tables, *ticks)
