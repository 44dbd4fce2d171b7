"""Options that several commands share."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "DebugOption",
    "ExcludeOption",
    "FailoverOption",
    "HistoryOption",
    "HomeOption",
    "JsonOption",
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

HomeOption = Annotated[
    Path, typer.Option("--home", envvar="PENSTOCK_HOME", help="The folder in which everything local lives.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


class RulesChoice(enum.StrEnum):
    """What a publication may look like."""

    OPEN = "open"
    STRICT = "strict"


class SnapshotChoice(enum.StrEnum):
    """How tables are copied first."""

    PARALLEL = "parallel"
    CHUNKED = "chunked"


class PartitionsChoice(enum.StrEnum):
    """As what partitioned tables are captured."""

    LEAVES = "leaves"
    ROOT = "root"


# -- what to capture of a database, and how: the fields of a Postgres source ----------------------------------------

PasswordOption = Annotated[
    str | None,
    typer.Option("--password", help="Where the password is: env:NAME or file:PATH. Never the password itself."),
]
SchemaOption = Annotated[
    list[str] | None, typer.Option("--schema", help="All tables of this schema; may be given again.")
]
TableOption = Annotated[
    list[str] | None,
    typer.Option("--table", help="This table, as schema.table or 'schema.table AS name'; may be given again."),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude-column", help="Leave out schema.table.column; may be given again."),
]
TextOption = Annotated[
    list[str] | None,
    typer.Option("--text-column", help="Keep schema.table.column as its text; may be given again."),
]
PublicationOption = Annotated[
    str | None,
    typer.Option("--publication", help="Read this publication of yours, which is never changed, not one of ours."),
]
SlotOption = Annotated[
    str | None,
    typer.Option("--slot", help="Read this slot of yours, not one of ours. Needs --publication, made before it."),
]
RulesOption = Annotated[
    RulesChoice, typer.Option("--rules", help="strict: a publication of exactly the captured tables, unfiltered.")
]
PartitionsOption = Annotated[
    PartitionsChoice, typer.Option("--partitions", help="Capture partitions as tables, or all as their root.")
]
LogOption = Annotated[
    str | None,
    typer.Option("--log", help="Where the change log is: kafka://broker:9092. Without, it is a file in the home."),
]
HistoryOption = Annotated[
    str | None,
    typer.Option("--retain-history", help="How long history is kept beyond what readers need, like '3 days'; 1 day."),
]
SnapshotOption = Annotated[
    SnapshotChoice,
    typer.Option("--snapshot", help="chunked: copy by ranges of the key; goes on after a crash. For huge tables."),
]
FailoverOption = Annotated[
    bool, typer.Option("--failover", help="Keep the slot on standbys, too (Postgres 17 or newer).")
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
    """Return what was given as fields of a source: a publication or slot that is named is the user's own."""
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
