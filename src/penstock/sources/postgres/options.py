"""The options of a Postgres source: what may be asked for, held to sense in one place.

::

    _Database ──┐
    _Chosen ────┴┬─▶ PostgresSqlOptions    clauses:   CONNECTION '…' FOR TABLES (…)
                 ├─▶ PostgresOptions       the fields of `PostgresSource`, from Python and the command line
    _Behaviour ──┴─▶ PostgresWithOptions   settings:  WITH (snapshot = 'chunked', …)

They go into the catalog with the source. Whether the tables and columns that they name exist is for preflight to say.
"""

from __future__ import annotations

import enum
import re
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from penstock.errors import UsageError
from penstock.secret import check_reference
from penstock.sources.interface import SourceOptions
from penstock.sources.name_syntax import DottedName, Name, dotted_text
from penstock.sources.option_syntax import Keyword
from penstock.sources.postgres.connection import parse_url
from penstock.sources.postgres.names import ColumnName, TableChoice, choice_text, parse_column, parse_table
from penstock.sources.postgres.shards import check_connections
from penstock.sources.syntax import Listed, Secret, Span
from penstock.units import parse_duration

__all__ = [
    "Heartbeat",
    "Ownership",
    "Partitions",
    "PostgresOptions",
    "PostgresSqlOptions",
    "PostgresWithOptions",
    "Rules",
    "Snapshot",
    "Watermarks",
    "check_slot_name",
]

_Columns = Annotated[tuple[str, ...], Listed(DottedName("schema.table.column"))]
_Span = Annotated[str, Span()]


class Ownership(enum.StrEnum):
    """Whose a publication or a slot is."""

    MANAGED = "managed"
    """Ours: made with the source, dropped with it."""
    USER = "user"
    """Yours: it must be there, is checked, and is never changed or dropped."""


class Rules(enum.StrEnum):
    """What a publication may look like."""

    OPEN = "open"
    """Broad publications, row filters, column lists and partition roots hold for the first copy as well."""
    STRICT = "strict"
    """Exactly the captured tables and every change of them; nothing filtered, no root. A TRUNCATE stops its table."""


class Partitions(enum.StrEnum):
    """As what partitioned tables are captured."""

    LEAVES = "leaves"
    """Each partition is a table of its own."""
    ROOT = "root"
    """All partitions are one table, under the name of the partitioned table."""


class Heartbeat(enum.StrEnum):
    """How an idle database is kept moving."""

    MESSAGE = "message"
    """By a logical message in the WAL."""
    TABLE = "table"
    """By an update of a table of ours."""


class Snapshot(enum.StrEnum):
    """How a table is copied first."""

    PARALLEL = "parallel"
    """At one exported snapshot, by pages, many at a time; begun again if it dies."""
    CHUNKED = "chunked"
    """By ranges of the key, beside the stream; after a crash it goes on with the next chunk."""


class Watermarks(enum.StrEnum):
    """How the windows of a chunked copy or a repair are marked in the stream."""

    MESSAGE = "message"
    """By logical messages in the WAL."""
    TABLE = "table"
    """By updates of the one row of ``dblog_meta.watermarks``."""


class _Chosen(BaseModel):
    """Which tables, and how the database lets us in."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    password: Annotated[str | None, Secret()] = Field(
        default=None, description="where the password is: env:NAME or file:PATH"
    )
    tables: Annotated[
        tuple[str, ...], Keyword("FOR TABLES", "tables", "FOR ALL TABLES"), Listed(DottedName("schema.table", True))
    ] = Field(default=(), description="these tables, schema.table, optionally AS another name")
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
        """Return the tables that were named."""
        return tuple(parse_table(text) for text in self.tables)

    @property
    def _tables_and_schemas(self) -> bool:
        return bool(self.tables and self.schemas)


class _Behaviour(BaseModel):
    """How tables are captured and copied."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    exclude_columns: _Columns = Field(default=(), description="columns left out, schema.table.column")
    text_columns: _Columns = Field(default=(), description="columns kept as the text that Postgres prints")
    publication_ownership: Ownership = Field(default=Ownership.MANAGED, description="whose the publication is")
    slot_ownership: Ownership = Field(default=Ownership.MANAGED, description="whose the slot is")
    rules: Rules = Field(default=Rules.OPEN, description="what a publication may look like")
    slot_temporary: bool = Field(default=False, description="whether the slot ends with its session")
    two_phase: bool = Field(default=False, description="whether the slot decodes prepared transactions")
    failover: bool = Field(default=False, description="whether the slot is kept on standbys (Postgres 17 or newer)")
    partitions: Partitions = Field(default=Partitions.LEAVES, description="as what partitioned tables are captured")
    heartbeat: Heartbeat | None = Field(default=None, description="how an idle database is kept moving")
    heartbeat_interval: float = Field(default=10.0, description="seconds between heartbeats")
    snapshot: Snapshot = Field(default=Snapshot.PARALLEL, description="how tables are copied first")
    snapshot_wait: _Span = Field(default="1 hour", description="how long a copy waits for transactions begun before it")
    chunk_rows: int = Field(
        default=20_000, ge=1, description="rows of the first chunk of a chunked copy; then it adapts"
    )
    chunk_pause: _Span = Field(default="0 s", description="the pause between the chunks of a chunked copy")
    watermarks: Watermarks = Field(default=Watermarks.MESSAGE, description="how windows are marked in the stream")

    @field_validator("heartbeat_interval")
    @classmethod
    def _some_seconds(cls, seconds: float) -> float:
        if not 0.1 <= seconds <= 3600:
            message = f"heartbeats every {seconds:g} seconds"
            raise UsageError(message, "Choose an interval between 0.1 and 3600 seconds.")
        return seconds

    @field_validator("snapshot_wait", "chunk_pause")
    @classmethod
    def _is_a_span(cls, text: str) -> str:
        parse_duration(text)
        return text

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
            message = f"{min(both)} is both excluded and kept as text"
            raise UsageError(message, "Name it in one of the two.")
        return self

    def excluded(self) -> tuple[ColumnName, ...]:
        """Return the columns to leave out."""
        return tuple(parse_column(text) for text in self.exclude_columns)

    def as_text(self) -> tuple[ColumnName, ...]:
        """Return the columns to keep as text."""
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
    """What one may ask of a Postgres source beyond its database."""


class _Database(BaseModel):
    """Where the tables are: in one database, or in several that are the shards of one."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    connection: Annotated[str | None, Keyword("CONNECTION", "connection")] = Field(
        default=None, description="the database: a URL, or keywords as libpq has them, without a password"
    )
    connections: Annotated[tuple[str, ...], Keyword("CONNECTIONS", "connection")] = Field(
        default=(), description="several databases with the same tables, the shards of one"
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
            message = "a Postgres source has one connection, or several that are its shards"
            raise UsageError(message, "Write CONNECTION 'postgresql://…', or CONNECTIONS ('postgresql://…', …).")
        return self


class PostgresSqlOptions(_Chosen, _Database):
    """What is said in clauses: which database or databases, and which tables."""


class PostgresWithOptions(_Behaviour, SourceOptions):
    """What is said in WITH."""

    publication: str | None = Field(default=None, description="the publication; penstock_ and the source's name")
    slot: str | None = Field(default=None, description="the replication slot; penstock_ and the source's name")

    @field_validator("slot")
    @classmethod
    def _name_of_a_slot(cls, slot: str | None) -> str | None:
        return None if slot is None else check_slot_name(slot)


def check_slot_name(slot: str) -> str:
    """Return the name of a replication slot; refuse what cannot be one."""
    if not re.fullmatch(r"[a-z0-9_]{1,63}", slot):
        message = f"{slot!r} cannot name a replication slot"
        raise UsageError(message, "Use lower-case letters, digits and underscores, 63 at most.")
    return slot


_CONFLICTS = {
    "_tables_and_schemas": (
        "both tables and schemas were named",
        "Name tables, or schemas, or neither for all tables.",
    ),
    "_slot_before_publication": (
        "a slot of yours cannot serve a publication of ours: a slot decodes only publications older than itself",
        "Make the publication first, then the slot, and give both; or leave the slot to Penstock.",
    ),
    "_failover_of_a_temporary_slot": (
        "a temporary slot cannot be kept on standbys",
        "Leave out one of failover and slot_temporary.",
    ),
    "_root_under_strict_rules": (
        "the strict rules allow no publication through the partitioned table",
        "Leave out partitions = root, or use the open rules.",
    ),
}


def _refuse_conflicts(options: BaseModel) -> None:
    """Refuse what contradicts itself; each half of the options knows some of the conflicts."""
    for conflict, (what, hint) in _CONFLICTS.items():
        if getattr(options, conflict, False):
            raise UsageError(what, hint)


def _each_once(what: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"the {what} {twice[0]} was given twice"
        raise UsageError(message, "Give it once.")
