"""Penstock's SQL statements as values. `grammar.parse` creates them; `penstock.executor` executes them.

The first line of each docstring is the statement's syntax and purpose; the reference documentation contains it.

`written_source` does the reverse for a source: it writes the ``CREATE SOURCES`` statement that ``SHOW CREATE SOURCES``
shows, and that `grammar.parse` reads back as the same source. `written_sink` does the same for a sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, SecretStr

from penstock.sql.errors import Position
from penstock.sql.syntax.names import written_name
from penstock.sql.syntax.options import written_clauses, written_settings

__all__ = [
    "AcceptInterference",
    "AddTable",
    "AlterSet",
    "AlterSink",
    "CreateSink",
    "CreateSource",
    "DropSink",
    "DropSources",
    "DropTable",
    "Explain",
    "ExplainSink",
    "RepairRows",
    "RetrySink",
    "RetryTable",
    "ShowCreate",
    "ShowCreateSink",
    "ShowErrors",
    "ShowReaders",
    "ShowRepairs",
    "ShowSinks",
    "ShowSources",
    "ShowTables",
    "Statement",
    "Subscribe",
    "Verify",
    "written_sink",
    "written_source",
]


@dataclass(frozen=True)
class CreateSource:
    """``CREATE SOURCES [IF NOT EXISTS] source FROM kind clause … [WITH (option = value, …)]``: capture tables."""

    name: str
    kind: str
    """The name of the kind, as written after FROM."""
    sql_options: BaseModel
    with_options: BaseModel
    if_not_exists: bool = False
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """Literal secrets by field, kept apart from the options: before the source is created, each is stored where a
    reference can name it. Empty unless the statement sets ``allow literal secrets``."""


@dataclass(frozen=True)
class Explain:
    """``EXPLAIN [CREATE] SOURCES source FROM kind …``: show what the statement would create, without creating it."""

    statement: CreateSource


@dataclass(frozen=True)
class AlterSet:
    """``ALTER SOURCES source SET (option = value, …)``: change options of a source."""

    source: str
    options: Mapping[str, Any]
    """Values by field. The executor checks that the source's kind has these options."""
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """As in `CreateSource`."""
    positions: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)
    """The position of each value, for errors of the executor."""


@dataclass(frozen=True)
class CreateSink:
    """``CREATE SINK [IF NOT EXISTS] sink FROM source[.table] INTO kind clause … [WITH (…)]``: write changes.

    Without a table, the sink writes the changes of all tables of the source.
    """

    name: str
    source: str
    table: str | None
    """A local name, or ``schema.table``; None for all tables."""
    kind: str
    """The name of the kind, as written after INTO."""
    sql_options: BaseModel
    with_options: BaseModel
    if_not_exists: bool = False
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """As in `CreateSource`."""


@dataclass(frozen=True)
class ExplainSink:
    """``EXPLAIN [CREATE] SINK sink FROM source[.table] INTO kind …``: show topics, keys and subjects of each table."""

    statement: CreateSink


@dataclass(frozen=True)
class AlterSink:
    """``ALTER SINK sink SET (option = value, …)``: change options of a sink."""

    sink: str
    options: Mapping[str, Any]
    """Values by field. The executor checks that these options can be changed."""
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """As in `CreateSource`."""
    positions: Mapping[str, Position] = field(default_factory=dict, compare=False, repr=False)
    """The position of each value, for errors of the executor."""


@dataclass(frozen=True)
class RetrySink:
    """``ALTER SINK sink RETRY``: start a sink again that has failed."""

    sink: str


@dataclass(frozen=True)
class DropSink:
    """``DROP SINK [IF EXISTS] sink``: stop and remove a sink; its topics are kept."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class ShowCreateSink:
    """``SHOW CREATE SINK sink``: show the statement that creates a sink."""

    sink: str


@dataclass(frozen=True)
class AddTable:
    """``ALTER SOURCES source ADD TABLE schema.table [AS name]``: capture another table."""

    source: str
    table: str
    """The table in the notation of source options: ``schema.table [AS name]``."""


@dataclass(frozen=True)
class DropTable:
    """``ALTER SOURCES source DROP TABLE table``: stop capturing a table."""

    source: str
    table: str


@dataclass(frozen=True)
class RetryTable:
    """``ALTER SOURCES source RETRY TABLE table``: capture a table again, with a new snapshot."""

    source: str
    table: str


@dataclass(frozen=True)
class AcceptInterference:
    """``ALTER SOURCES source ACCEPT INTERFERENCE``: resume after foreign writes to the watermarks."""

    source: str


@dataclass(frozen=True)
class DropSources:
    """``DROP SOURCES [IF EXISTS] source [KEEP TABLES] [FORCE]``: remove a source and its upstream objects."""

    name: str
    if_exists: bool = False
    keep_tables: bool = False
    force: bool = False


@dataclass(frozen=True)
class ShowSources:
    """``SHOW SOURCES [LIKE 'pattern']``: list sources with their states and frontiers."""

    like: str | None = None
    """A pattern for names, with ``%`` for any text and ``_`` for any character."""


@dataclass(frozen=True)
class ShowTables:
    """``SHOW TABLES [FROM source] [LIKE 'pattern']``: list the live tables of all sources or of one."""

    source: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class ShowSinks:
    """``SHOW SINKS [LIKE 'pattern']``: list sinks with their states and positions."""

    like: str | None = None


@dataclass(frozen=True)
class ShowReaders:
    """``SHOW READERS [FROM source] [LIKE 'pattern']``: list the readers for which history is retained."""

    source: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class ShowCreate:
    """``SHOW CREATE SOURCES source``: show the statement that creates a source."""

    source: str


@dataclass(frozen=True)
class ShowErrors:
    """``SHOW ERRORS [LIKE 'pattern']``: list the errors of sources, tables and sinks, with hints."""

    like: str | None = None


@dataclass(frozen=True)
class ShowRepairs:
    """``SHOW REPAIRS``: list repairs with their user, time and outcome."""


@dataclass(frozen=True)
class Verify:
    """``VERIFY source[.table]``: compare live tables with Postgres."""

    source: str
    table: str | None = None


@dataclass(frozen=True)
class Subscribe:
    """``SUBSCRIBE source[.table]``: return transactions as they commit, until the statement is cancelled."""

    source: str
    table: str | None = None


@dataclass(frozen=True)
class RepairRows:
    """``REPAIR source.table [WHERE { KEY IN (key, …) | condition }]``: read rows again upstream and correct them."""

    source: str
    table: str
    keys: list[Any] | None = None
    where: str | None = None


Statement = (
    AcceptInterference
    | AddTable
    | AlterSet
    | AlterSink
    | CreateSink
    | CreateSource
    | DropSink
    | DropSources
    | DropTable
    | Explain
    | ExplainSink
    | RepairRows
    | RetrySink
    | RetryTable
    | ShowCreate
    | ShowCreateSink
    | ShowErrors
    | ShowReaders
    | ShowRepairs
    | ShowSinks
    | ShowSources
    | ShowTables
    | Subscribe
    | Verify
)


def written_source(name: str, kind: str, sql_options: BaseModel, with_options: BaseModel) -> str:
    """Write the ``CREATE SOURCES`` statement, with only the options that differ from their defaults."""
    return _written(f"CREATE SOURCES {written_name(name)} FROM {kind}", sql_options, with_options)


def written_sink(
    name: str, source: str, table: str | None, kind: str, sql_options: BaseModel, with_options: BaseModel
) -> str:
    """Write the ``CREATE SINK`` statement, with only the options that differ from their defaults."""
    tables = written_name(source) + (f".{written_name(table)}" if table is not None else "")
    return _written(f"CREATE SINK {written_name(name)} FROM {tables} INTO {kind}", sql_options, with_options)


def _written(beginning: str, sql_options: BaseModel, with_options: BaseModel) -> str:
    settings = written_settings(with_options)
    lines = [beginning, *written_clauses(sql_options)]
    if settings:
        lines.append("WITH (\n    " + ",\n    ".join(settings) + "\n  )")
    return "\n  ".join(lines) + ";"
