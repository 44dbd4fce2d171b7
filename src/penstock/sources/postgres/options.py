"""The options of a Postgres source and their validation.

::

    _Database ──┐
    _Chosen ────┴┬─▶ PostgresSqlOptions    clauses:   CONNECTION '…' FOR TABLES (…)
                 ├─▶ PostgresOptions       the fields of `PostgresSource`, from Python and the command line
    _Behaviour ──┴─▶ PostgresWithOptions   settings:  WITH (snapshot = 'chunked', …)

The catalog stores them with the source. Preflight checks that the tables and columns that they name exist.
"""

from __future__ import annotations

import enum
import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.secret import check_reference
from penstock.sources.interface import SourceOptions
from penstock.sources.option_names import ColumnName, TableChoice, choice_text, parse_column, parse_table
from penstock.sources.postgres.connection import parse_url
from penstock.sources.postgres.shard_labels import check_connections
from penstock.sql.syntax.names import DottedName, Name, dotted_text
from penstock.sql.syntax.options import Keyword
from penstock.sql.syntax.values import Listed, Secret, Span
from penstock.units import parse_duration, parse_size

__all__ = [
    "Heartbeat",
    "NewTables",
    "OnSchemaChange",
    "OnUnrepresentable",
    "Ownership",
    "Partitions",
    "PostgresOptions",
    "PostgresSqlOptions",
    "PostgresWithOptions",
    "Rules",
    "SnapshotMode",
    "Watermarks",
    "check_slot_name",
]

_Columns = Annotated[tuple[str, ...], Listed(DottedName("schema.table.column"))]
_Span = Annotated[str, Span()]


class Ownership(enum.StrEnum):
    """Who manages a publication or a slot."""

    MANAGED = "managed"
    """Penstock creates it with the source, and drops it with the source."""
    USER = "user"
    """The user creates it. Penstock checks it, and never alters or drops it."""


class Rules(enum.StrEnum):
    """Which publications are accepted."""

    OPEN = "open"
    """FOR ALL TABLES, row filters, column lists and partition roots are allowed, and apply to the snapshot as well."""
    STRICT = "strict"
    """Exactly the captured tables and all their changes; no filters, no partition roots. A TRUNCATE stops its table."""


class Partitions(enum.StrEnum):
    """How partitioned tables are captured."""

    LEAVES = "leaves"
    """Each partition is captured as a separate table."""
    ROOT = "root"
    """All partitions are captured as one table, named as the partitioned table."""


class NewTables(enum.StrEnum):
    """What happens to tables that are created after the source, if it captures all tables or those of schemas."""

    CAPTURE = "capture"
    """They are added to the source within about ten seconds, as with ADD TABLE."""
    IGNORE = "ignore"
    """They are not captured until they are added with ADD TABLE."""


class OnUnrepresentable(enum.StrEnum):
    """What happens to a value that the Spark type of its column cannot hold, like an infinite date."""

    STOP = "stop"
    """The table stops with an error at that transaction."""
    RESCUE = "rescue"
    """The column is null in that row, and the column ``_rescued`` has the text that Postgres prints for the value."""


class OnSchemaChange(enum.StrEnum):
    """What happens to a table whose definition changes upstream in a way that cannot be applied."""

    STOP = "stop"
    """It stops with an error at that transaction, until RETRY TABLE takes a new snapshot of it."""
    RESNAPSHOT = "resnapshot"
    """It stops, and a new snapshot of it is taken without a request."""


class Heartbeat(enum.StrEnum):
    """How heartbeats are written, so that the slot advances on an idle server."""

    MESSAGE = "message"
    """As logical messages in the WAL."""
    TABLE = "table"
    """As updates of the one row of ``dblog_meta.heartbeats``."""


class SnapshotMode(enum.StrEnum):
    """How the initial snapshot reads a table."""

    PARALLEL = "parallel"
    """At one exported snapshot, in page ranges, in parallel; after a crash it starts from the beginning."""
    CHUNKED = "chunked"
    """Incrementally, in key ranges, while the stream continues; after a crash it resumes with the next chunk."""


class Watermarks(enum.StrEnum):
    """How the windows of a chunked snapshot or a repair are marked in the stream."""

    MESSAGE = "message"
    """With logical messages in the WAL."""
    TABLE = "table"
    """With updates of the one row of ``dblog_meta.watermarks``."""


class _Chosen(BaseModel):
    """The password, and the selection of tables."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    password: Annotated[str | None, Secret()] = Field(
        default=None, description="reference to the password: env:NAME or file:PATH"
    )
    tables: Annotated[
        tuple[str, ...], Keyword("FOR TABLES", "tables", "FOR ALL TABLES"), Listed(DottedName("schema.table", True))
    ] = Field(default=(), description="tables to capture: schema.table, optionally AS another name")
    schemas: Annotated[tuple[str, ...], Keyword("FOR SCHEMAS", "tables", "FOR ALL TABLES"), Listed(Name("schema"))] = (
        Field(default=(), description="all tables of these schemas")
    )

    @field_validator("password")
    @classmethod
    def _only_a_reference(cls, password: str | None) -> str | None:
        return None if password is None else check_reference(password)

    @field_validator("tables")
    @classmethod
    def _names_of_tables(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(choice_text(parse_table(text)) for text in tables)

    @model_validator(mode="after")
    def _chosen_together(self) -> Self:
        _refuse_conflicts(self)
        choices = self.choices()
        _each_once("table", [str(choice.table) for choice in choices])
        _each_once("name", [choice.alias.lower() for choice in choices if choice.alias])
        return self

    def choices(self) -> tuple[TableChoice, ...]:
        """Return the tables that the options name."""
        return tuple(parse_table(text) for text in self.tables)

    @property
    def _tables_and_schemas(self) -> bool:
        return bool(self.tables and self.schemas)


class _Behaviour(BaseModel):
    """How tables are captured and snapshotted."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    new_tables: NewTables = Field(
        default=NewTables.CAPTURE, description="whether all tables, or those of schemas, include ones created later"
    )
    exclude_tables: Annotated[tuple[str, ...], Listed(DottedName("schema.table"))] = Field(
        default=(), description="tables that all tables, or those of schemas, do not include"
    )
    exclude_columns: _Columns = Field(default=(), description="columns to exclude: schema.table.column")
    text_columns: _Columns = Field(default=(), description="columns to capture as text, as Postgres prints them")
    on_unrepresentable: OnUnrepresentable = Field(
        default=OnUnrepresentable.STOP,
        description="what happens to values that the type of their column cannot hold, like infinite dates",
    )
    on_schema_change: OnSchemaChange = Field(
        default=OnSchemaChange.STOP,
        description="what happens to a table whose definition changes upstream in a way that cannot be applied",
    )
    publication_ownership: Ownership = Field(default=Ownership.MANAGED, description="who manages the publication")
    slot_ownership: Ownership = Field(default=Ownership.MANAGED, description="who manages the slot")
    rules: Rules = Field(default=Rules.OPEN, description="which publications are accepted")
    slot_temporary: bool = Field(default=False, description="whether the slot is temporary (not supported)")
    two_phase: bool = Field(default=False, description="whether the slot decodes prepared transactions")
    failover: bool = Field(default=False, description="whether the slot is synchronized to standbys (Postgres 17+)")
    partitions: Partitions = Field(default=Partitions.LEAVES, description="how partitioned tables are captured")
    heartbeat: Heartbeat | None = Field(default=None, description="how heartbeats are written, if at all")
    heartbeat_interval: float = Field(default=10.0, description="seconds between heartbeats")
    snapshot: SnapshotMode = Field(default=SnapshotMode.PARALLEL, description="how the initial snapshot reads a table")
    snapshot_wait: _Span = Field(default="1 hour", description="how long a snapshot waits for older transactions")
    snapshot_sessions: int = Field(
        default=0, ge=0, description="the most sessions that read tables for a snapshot at the same time; 0: no limit"
    )
    snapshot_rate: str = Field(
        default="", description="how much a snapshot reads per second, for example 20 MB; empty: no limit"
    )
    chunk_rows: int = Field(
        default=20_000, ge=1, description="rows of the first chunk of a chunked snapshot; the size then adapts"
    )
    chunk_pause: _Span = Field(default="0 s", description="the pause between the chunks of a chunked snapshot")
    watermarks: Watermarks = Field(default=Watermarks.MESSAGE, description="how windows are marked in the stream")

    @field_validator("heartbeat_interval")
    @classmethod
    def _some_seconds(cls, seconds: float) -> float:
        if not 0.1 <= seconds <= 3600:
            message = f"heartbeat_interval {seconds:g} is out of range"
            raise UsageError(message, "Choose an interval between 0.1 and 3600 seconds.")
        return seconds

    @field_validator("snapshot_wait", "chunk_pause")
    @classmethod
    def _is_a_span(cls, text: str) -> str:
        parse_duration(text)
        return text

    @field_validator("snapshot_rate")
    @classmethod
    def _is_a_size(cls, text: str) -> str:
        if text and not parse_size(text):
            message = "snapshot_rate is zero"
            raise UsageError(message, "Choose a size per second like '20 MB', or '' for no limit.")
        return text

    @field_validator("exclude_tables")
    @classmethod
    def _names_of_excluded_tables(cls, tables: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(choice_text(TableChoice(parse_table(text).table)) for text in tables))

    @field_validator("exclude_columns", "text_columns")
    @classmethod
    def _names_of_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        found = (parse_column(text) for text in columns)
        return tuple(dotted_text((each.table.schema, each.table.name, each.column)) for each in found)

    @model_validator(mode="after")
    def _behaves_together(self) -> Self:
        _refuse_conflicts(self)
        both = set(self.excluded()) & set(self.as_text())
        if both:
            message = f"column {min(both)} is in both exclude_columns and text_columns"
            raise UsageError(message, "Remove it from one of the two.")
        return self

    def excluded_tables(self) -> frozenset[TableName]:
        """Return the tables to exclude."""
        return frozenset(parse_table(text).table for text in self.exclude_tables)

    def excluded(self) -> tuple[ColumnName, ...]:
        """Return the columns to exclude."""
        return tuple(parse_column(text) for text in self.exclude_columns)

    def as_text(self) -> tuple[ColumnName, ...]:
        """Return the columns to capture as text."""
        return tuple(parse_column(text) for text in self.text_columns)

    @property
    def _slot_before_publication(self) -> bool:
        return self.slot_ownership is Ownership.USER and self.publication_ownership is Ownership.MANAGED

    @property
    def _failover_of_a_temporary_slot(self) -> bool:
        return self.failover and self.slot_temporary

    @property
    def _root_under_strict_rules(self) -> bool:
        return self.partitions is Partitions.ROOT and self.rules is Rules.STRICT


class PostgresOptions(_Behaviour, _Chosen):
    """All options of a Postgres source, except its databases."""

    @model_validator(mode="after")
    def _excludes_from_all(self) -> Self:
        _refuse_conflicts(self)
        return self

    @property
    def _excluded_from_a_list(self) -> bool:
        return bool(self.tables and self.exclude_tables)


class _Database(BaseModel):
    """The database, or the databases of a sharded source."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    connection: Annotated[str | None, Keyword("CONNECTION", "connection")] = Field(
        default=None, description="the database: a URL or a libpq keyword string, without a password"
    )
    connections: Annotated[tuple[str, ...], Keyword("CONNECTIONS", "connection")] = Field(
        default=(), description="the databases of a sharded source, which have the same tables"
    )

    @field_validator("connection")
    @classmethod
    def _is_a_database(cls, connection: str | None) -> str | None:
        if connection is not None:
            parse_url(connection)
        return connection

    @field_validator("connections")
    @classmethod
    def _are_databases(cls, connections: tuple[str, ...]) -> tuple[str, ...]:
        check_connections(connections)
        return connections

    @model_validator(mode="after")
    def _one_or_more(self) -> Self:
        if (self.connection is None) == (not self.connections):
            message = "a Postgres source requires either CONNECTION or CONNECTIONS"
            raise UsageError(message, "Write CONNECTION 'postgresql://…', or CONNECTIONS ('postgresql://…', …).")
        return self


class PostgresSqlOptions(_Chosen, _Database):
    """The clauses of ``CREATE SOURCES``: databases, and selection of tables."""


class PostgresWithOptions(_Behaviour, SourceOptions):
    """The options in ``WITH (…)``."""

    publication: str | None = Field(default=None, description="name of the publication; default: penstock_SOURCE")
    slot: str | None = Field(default=None, description="name of the replication slot; default: penstock_SOURCE")

    @field_validator("slot")
    @classmethod
    def _name_of_a_slot(cls, slot: str | None) -> str | None:
        return None if slot is None else check_slot_name(slot)


def check_slot_name(slot: str) -> str:
    """Return the name of a replication slot; raise `UsageError` if it is invalid."""
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        message = f"invalid replication slot name {slot!r}"
        raise UsageError(message, "Use lower-case letters, digits and underscores, 63 at most.")
    return slot


_CONFLICTS = {
    "_tables_and_schemas": (
        "tables and schemas cannot be used together",
        "Use one of them, or neither to capture all tables.",
    ),
    "_excluded_from_a_list": (
        "tables and exclude_tables cannot be used together",
        "Omit the tables from the list instead.",
    ),
    "_slot_before_publication": (
        "slot_ownership = user requires publication_ownership = user: a slot cannot decode with a newer publication",
        "Create the publication first, then the slot, and name both. Or omit slot_ownership.",
    ),
    "_failover_of_a_temporary_slot": (
        "a temporary slot cannot be synchronized to standbys",
        "Omit failover or slot_temporary.",
    ),
    "_root_under_strict_rules": (
        "partitions = root is not allowed with rules = strict",
        "Omit partitions = root, or use rules = open.",
    ),
}


def _refuse_conflicts(options: BaseModel) -> None:
    """Raise `UsageError` for conflicting options; each half of the options defines some of the conflicts."""
    for conflict, (message, hint) in _CONFLICTS.items():
        if getattr(options, conflict, False):
            raise UsageError(message, hint)


def _each_once(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"{what} {twice[0]} is listed twice"
        raise UsageError(message, "List it once.")
