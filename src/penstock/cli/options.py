"""Options that several commands share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.global_options import LogFormatChoice, LogLevelChoice

__all__ = [
    "DebugOption",
    "ExcludeOption",
    "FailoverOption",
    "HistoryOption",
    "HomeOption",
    "JsonOption",
    "LogFormatOption",
    "LogLevelOption",
    "LogOption",
    "PartitionsChoice",
    "PartitionsOption",
    "PasswordOption",
    "PublicationOption",
    "RulesChoice",
    "RulesOption",
    "SchemaOption",
    "SlotOption",
    "SnapshotChoice",
    "SnapshotOption",
    "TableOption",
    "TextOption",
    "source_options",
]

HomeOption = Annotated[Path, typer.Option("--home", envvar="PENSTOCK_HOME", help="The folder with all local data.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
LogLevelOption = Annotated[
    LogLevelChoice, typer.Option("--log-level", envvar="PENSTOCK_LOG_LEVEL", help="The least important events to log.")
]
LogFormatOption = Annotated[
    LogFormatChoice,
    typer.Option("--log-format", envvar="PENSTOCK_LOG_FORMAT", help="The format of events on stderr."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class RulesChoice(enum.StrEnum):
    """The requirements for the publication."""

    OPEN = "open"
    STRICT = "strict"


class SnapshotChoice(enum.StrEnum):
    """The method of the initial snapshot."""

    PARALLEL = "parallel"
    CHUNKED = "chunked"


class PartitionsChoice(enum.StrEnum):
    """The tables as which a partitioned table is captured."""

    LEAVES = "leaves"
    ROOT = "root"


# -- the fields of a Postgres source ---------------------------------------------------------------------------------

PasswordOption = Annotated[
    str | None,
    typer.Option("--password", help="A reference to the password: env:NAME or file:PATH. Never the password itself."),
]
SchemaOption = Annotated[
    list[str] | None, typer.Option("--schema", help="Capture all tables of this schema. Can be repeated.")
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", help="Capture this table: schema.table or 'schema.table AS name'. Can be repeated."),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude-column", help="Exclude schema.table.column. Can be repeated."),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option("--text-column", help="Capture schema.table.column as text. Can be repeated."),
]
PublicationOption = Annotated[
    str | None,
    typer.Option(
        "--publication", help="Use this existing publication, which is never changed, instead of creating one."
    ),
]
SlotOption = Annotated[
    str | None,
    typer.Option(
        "--slot", help="Use this existing slot. Requires --publication; create the publication before the slot."
    ),
]
RulesOption = Annotated[
    RulesChoice,
    typer.Option("--rules", help="strict: require a publication of exactly the captured tables, unfiltered."),
]
PartitionsOption = Annotated[
    PartitionsChoice,
    typer.Option("--partitions", help="Capture each partition as a table, or all of them as their root table."),
]
LogOption = Annotated[
    str | None,
    typer.Option("--log", help="Location of the change log: kafka://broker:9092. Default: a file in the home."),
]
HistoryOption = Annotated[
    str | None,
    typer.Option(
        "--retain-history", help="Retain history this long, beyond what readers need, like '3 days'. Default: 1 day."
    ),
]
SnapshotOption = Annotated[
    SnapshotChoice,
    typer.Option("--snapshot", help="chunked: copy in key ranges and resume after a crash. For very large tables."),
]
FailoverOption = Annotated[
    bool, typer.Option("--failover", help="Synchronize the slot to standbys (Postgres 17 or later).")
]


def source_options(
    password: str | None,
    schemas: list[str] | None,
    tables: list[str] | None,
    excluded: list[str] | None,
    as_text: list[str] | None,
    publication: str | None,
    slot: str | None,
    rules: RulesChoice,
    partitions: PartitionsChoice,
    failover: bool,
    log: str | None = None,
    retain_history: str | None = None,
    snapshot: SnapshotChoice = SnapshotChoice.PARALLEL,
) -> dict[str, Any]:
    """Return the given options as fields of a source; a publication or slot that is named belongs to the user."""
    given: dict[str, Any] = {
        "password": password,
        "schemas": tuple(schemas or ()) or None,
        "tables": tuple(tables or ()) or None,
        "exclude_columns": tuple(excluded or ()) or None,
        "text_columns": tuple(as_text or ()) or None,
        "publication": publication,
        "publication_ownership": "user" if publication else None,
        "slot": slot,
        "slot_ownership": "user" if slot else None,
        "rules": rules.value if rules is not RulesChoice.OPEN else None,
        "partitions": partitions.value if partitions is not PartitionsChoice.LEAVES else None,
        "failover": failover or None,
        "log": log,
        "retain_history": retain_history,
        "snapshot": snapshot.value if snapshot is not SnapshotChoice.PARALLEL else None,
    }
    return {option: value for option, value in given.items() if value is not None}
