"""The tables of a source that reads Kafka topics, as live views and apply use them."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.sources.kafka.apply.merge import TopicApply
from penstock.sources.kafka.apply.quarantine import Quarantine
from penstock.sources.kafka.apply.tail import check_quarantine_limit, live_quarantine, live_topic
from penstock.sources.kafka.topic_log import TopicLog
from penstock.tables.base_state import State
from penstock.tables.interface import BaseTable
from penstock.tables.message_tables import AppliedTable, MessageTables

__all__ = ["TopicTables"]


class TopicTables(MessageTables):
    """The tables of one `TopicLog`."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def live(self, spark: SparkSession, rows: DataFrame, at: State, schema: TableSchema, upto: Lsn) -> DataFrame:
        """Overlay the rows of a table with the messages up to `upto`."""
        return live_topic(spark, self._log, rows, at, schema, upto)

    def apply(self, spark: SparkSession, table: AppliedTable, at: State, upto: Lsn) -> None:
        """Merge messages, range by range."""
        TopicApply(spark, self._log, table).merge(at, upto)

    def quarantine(
        self, spark: SparkSession, stored: Path, base: BaseTable | None, at: State | None, upto: Lsn | None
    ) -> DataFrame:
        """Return the stored messages, and those that apply will add."""
        quarantine = Quarantine(spark, stored)
        if base is None or at is None or upto is None:
            return quarantine.rows()
        return live_quarantine(spark, self._log, quarantine, base, at, upto)

    def check_limit(self, spark: SparkSession, stored: Path, base: BaseTable, at: State, upto: Lsn, local: str) -> None:
        """Raise the error of a quarantine that exceeds its limit."""
        check_quarantine_limit(spark, self._log, Quarantine(spark, stored), base, at, upto, local)
