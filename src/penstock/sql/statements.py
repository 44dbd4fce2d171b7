"""The statements of ours, as values. `grammar.parse` reads them; whoever has a home carries them out.

The first line of each docstring is how it is written, and what it does: the reference shows it.

A source as the statement that makes it: ``SHOW CREATE`` shows it, and `grammar.parse` reads the same from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, SecretStr

from penstock.sources.name_syntax import written_name
from penstock.sources.option_syntax import written_clauses, written_settings

__all__ = [
    "AcceptInterference",
    "AddTable",
    "AlterSet",
    "CreateSource",
    "DropSources",
    "DropTable",
    "Explain",
    "Repairing",
    "RetryTable",
    "ShowCreate",
    "ShowErrors",
    "ShowRepairs",
    "ShowSinks",
    "ShowSources",
    "ShowTables",
    "Statement",
    "Verify",
    "written_source",
]


@dataclass(frozen=True)
class CreateSource:
    """``CREATE SOURCES [IF NOT EXISTS] source FROM kind clause … [WITH (option = value, …)]``: capture tables."""

    name: str
    kind: str
    """The name of the kind, as it stands behind FROM."""
    sql_options: BaseModel
    with_options: BaseModel
    if_not_exists: bool = False
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """Secrets given in clear, by field. They are not among the options: whoever makes the source first puts each
    where a reference can name it. Empty unless the statement says ``allow literal secrets``."""


@dataclass(frozen=True)
class Explain:
    """``EXPLAIN [CREATE] SOURCES source FROM kind …``: show what would be made, and make nothing."""

    statement: CreateSource


@dataclass(frozen=True)
class AlterSet:
    """``ALTER SOURCES source SET (option = value, …)``: change options in WITH."""

    source: str
    options: Mapping[str, Any]
    """By field. Which kind the source is of, and so whether it has them, is for whoever knows the source to say."""
    secrets: Mapping[str, SecretStr] = field(default_factory=dict)
    """As in `CreateSource`."""


@dataclass(frozen=True)
class AddTable:
    """``ALTER SOURCES source ADD TABLE schema.table [AS name]``: capture another table."""

    source: str
    table: str
    """As the options of a source name one, with the name that it shall have here."""


@dataclass(frozen=True)
class DropTable:
    """``ALTER SOURCES source DROP TABLE table``: capture a table no more."""

    source: str
    table: str


@dataclass(frozen=True)
class RetryTable:
    """``ALTER SOURCES source RETRY TABLE table``: capture a table anew, and copy it afresh."""

    source: str
    table: str


@dataclass(frozen=True)
class AcceptInterference:
    """``ALTER SOURCES source ACCEPT INTERFERENCE``: go on behind what others wrote in the place of watermarks."""

    source: str


@dataclass(frozen=True)
class DropSources:
    """``DROP SOURCES [IF EXISTS] source [KEEP TABLES] [FORCE]``: remove a source, and what it made upstream."""

    name: str
    if_exists: bool = False
    keep_tables: bool = False
    force: bool = False


@dataclass(frozen=True)
class ShowSources:
    """``SHOW SOURCES``: each with its state and frontiers."""


@dataclass(frozen=True)
class ShowTables:
    """``SHOW TABLES [FROM source]``: the live tables, of all sources or of one."""

    source: str | None = None


@dataclass(frozen=True)
class ShowSinks:
    """``SHOW SINKS``: where live tables are written to."""


@dataclass(frozen=True)
class ShowCreate:
    """``SHOW CREATE SOURCES source``: the statement that makes the same source."""

    source: str


@dataclass(frozen=True)
class ShowErrors:
    """``SHOW ERRORS``: what stands until somebody acts."""


@dataclass(frozen=True)
class ShowRepairs:
    """``SHOW REPAIRS``: what was repaired, by whom, when, and what came of it."""


@dataclass(frozen=True)
class Verify:
    """``VERIFY source[.table]``: compare live tables with Postgres."""

    source: str
    table: str | None = None


@dataclass(frozen=True)
class Repairing:
    """``REPAIR source.table [WHERE KEY IN (key, …) | WHERE condition]``: read rows anew, and put them right."""

    source: str
    table: str
    keys: list[Any] | None = None
    where: str | None = None


Statement = (
    AcceptInterference
    | AddTable
    | AlterSet
    | CreateSource
    | DropSources
    | DropTable
    | Explain
    | Repairing
    | RetryTable
    | ShowCreate
    | ShowErrors
    | ShowRepairs
    | ShowSinks
    | ShowSources
    | ShowTables
    | Verify
)


def written_source(name: str, kind: str, sql_options: BaseModel, with_options: BaseModel) -> str:
    """Write the statement: only what differs from the defaults, a line each."""
    settings = written_settings(with_options)
    lines = [f"CREATE SOURCES {written_name(name)} FROM {kind}", *written_clauses(sql_options)]
    if settings:
        lines.append("WITH (\n    " + ",\n    ".join(settings) + "\n  )")
    return "\n  ".join(lines) + ";"
