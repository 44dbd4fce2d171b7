"""The interface of tables whose log holds messages instead of changes: their kind of source decodes them, in Spark.

::

    live view ──▶ live, quarantine, check_limit ──┐
    apply ──────▶ apply ──────────────────────────┴──▶ MessageTables, an implementation in the folder of the kind

A change log holds row images, which are the same for every kind of source. A log that only points to messages elsewhere
(a Kafka topic) sets `ChangeLog.TABLES` to the entry point of its implementation. The entry point is text, because the
implementation needs Spark and base tables, which a log and its source do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from penstock.changelog.interface import ChangeLog
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.tables.base_state import State
from penstock.tables.interface import BaseTable

__all__ = ["AppliedTable", "MessageTables", "message_tables"]


class AppliedTable(Protocol):
    """A table that apply writes; the engine implements it."""

    base: BaseTable
    at: State | None
    """The state that `load_state` read; None while the table has no complete snapshot."""
    quarantine: Path
    """The folder of its rejected messages."""

    @property
    def name(self) -> TableName:
        """Its upstream name."""

    @property
    def local(self) -> str:
        """Its name in queries, without the source."""

    def load_state(self) -> None:
        """Read its position after a commit, and record it in the catalog."""


class MessageTables(ABC):
    """The tables of one log of messages."""

    @abstractmethod
    def live(self, spark: SparkSession, rows: DataFrame, at: State, schema: TableSchema, upto: Lsn) -> DataFrame:
        """Advance the `rows` of a table from the position of `at` to `upto`; raise `TableError` as apply would."""

    @abstractmethod
    def apply(self, spark: SparkSession, table: AppliedTable, at: State, upto: Lsn) -> None:
        """Merge the messages in (at, upto] into the base table; raise `TableError` if the table fails before `upto`."""

    @abstractmethod
    def quarantine(
        self, spark: SparkSession, stored: Path, base: BaseTable | None, at: State | None, upto: Lsn | None
    ) -> DataFrame:
        """Return the quarantined messages in the folder `stored`.

        With a base table and its state, include the messages that apply will quarantine up to `upto`.
        """

    @abstractmethod
    def check_limit(self, spark: SparkSession, stored: Path, base: BaseTable, at: State, upto: Lsn, local: str) -> None:
        """Raise the error that will stop apply if more messages are rejected up to `upto` than the limit allows."""


def message_tables(log: ChangeLog) -> MessageTables | None:
    """Return the tables of a log of messages; None if the log holds changes."""
    if log.TABLES is None:
        return None
    module, _, name = log.TABLES.partition(":")
    found: MessageTables = getattr(import_module(module), name)(log)
    return found
