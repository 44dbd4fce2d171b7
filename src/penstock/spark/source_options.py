"""The options of ``format("penstock")``, and what their values mean.

What a query reads: tables of one source, in one shape, from one log. Made on the driver; its parts travel.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from penstock.catalog.store import Catalog
from penstock.changelog.as_of import not_yet, position_as_of
from penstock.changelog.interface import ChangeLog, ChangeLogReader, LoggedTable
from penstock.changelog.json_rows import multi_changes, multi_changes_schema
from penstock.changelog.user_rows import changes, changes_schema, updates, updates_schema
from penstock.errors import TableError, TransientError, UsageError
from penstock.layout import catalog_path
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn, parse_as_of

__all__ = ["EARLIEST", "LATEST", "Chosen", "PenstockOptions", "Rows", "Shape", "open_catalog", "parse_position"]

EARLIEST, LATEST = "earliest", "latest"


class Rows(enum.StrEnum):
    """The shape of rows."""

    CHANGES = "changes"
    """One row per change, before and after."""
    UPDATES = "updates"
    """The row's columns and how many more of it there are: +1 or -1."""
    LIVE = "live"
    """The table itself, at one position. Batch only."""


class PenstockOptions(BaseModel):
    """The options of ``format("penstock")``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: str = Field(description="The home of the source: a folder that the driver can read")
    source: str = Field(description="The source's name")
    table: str = Field(
        description="The upstream table, as schema.table; several, with commas between them, come as rows of JSON"
    )
    rows: Rows = Field(Rows.CHANGES, description="The shape of rows: changes, updates, or (batch only) live")
    starting_position: str | None = Field(
        None,
        alias="startingPosition",
        description="Where to begin: earliest (the table as it is now, then its changes), latest, an LSN or a time"
        " (what came after it). A stream begins at latest, a batch at earliest, unless told otherwise",
    )
    ending_position: str = Field(
        LATEST, alias="endingPosition", description="Batch only: up to this LSN or time, or up to now: latest"
    )
    as_of: str | None = Field(
        None,
        alias="asOf",
        description="With rows=live: the table as it was at this LSN or time, which names its zone; without, as it is"
        " now",
    )
    max_rows: int | None = Field(
        None,
        alias="maxRowsPerTrigger",
        ge=1,
        description="Stream only: about how many changes a micro-batch has at most; a transaction is never divided",
    )
    max_bytes: int | None = Field(
        None, alias="maxBytesPerTrigger", ge=1, description="Stream only: the same, by their size in the log, in bytes"
    )
    reader: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,60}$",
        description="Stream only: the name of a registered reader; the log keeps what it has not read, however long it"
        " is away. Without, history is kept for as long as the source retains it",
    )

    @classmethod
    def parse(cls, given: dict[str, str]) -> PenstockOptions:
        """Read options as Spark gives them, their names in any case; refuse unknown ones by name."""
        names = {(field.alias or name).lower(): field.alias or name for name, field in cls.model_fields.items()}
        for name in given:
            if name.lower() not in names:
                near = difflib.get_close_matches(name.lower(), names, 1)
                hint = f"Did you mean {names[near[0]]}?" if near else f"Known are: {', '.join(names.values())}."
                message = f"format penstock has no option {name!r}"
                raise UsageError(message, hint)
        try:
            options = cls.model_validate({names[name.lower()]: value for name, value in given.items()})
        except ValidationError as error:
            first = error.errors()[0]
            message = f"option {first['loc'][0]} of format penstock: {first['msg']}"
            raise UsageError(message, "See the reference of the Spark source.") from error
        if options.as_of is not None and options.rows is not Rows.LIVE:
            message = f"rows={options.rows} has no option asOf"
            hint = "Read the table with rows=live, or a range with startingPosition and endingPosition."
            raise UsageError(message, hint)
        return options

    @field_validator("starting_position", "ending_position")
    @classmethod
    def _is_a_position(cls, text: str | None, info: object) -> str | None:
        if text is not None and text != EARLIEST:
            parse_position(text)
        return text

    @field_validator("as_of")
    @classmethod
    def _is_an_as_of(cls, text: str | None) -> str | None:
        if text is not None:
            parse_as_of(text)
        return text

    def table_names(self) -> tuple[TableName, ...]:
        """Return the tables to read."""
        try:
            return tuple(dict.fromkeys(TableName.parse(name.strip()) for name in self.table.split(",")))
        except ValueError as error:
            raise UsageError(str(error), "Name the upstream table, like public.orders.") from error


def parse_position(text: str) -> Lsn | datetime | None:
    """Read an LSN or a time (UTC where it does not say); None for `LATEST`."""
    if text == LATEST:
        return None
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"{text!r} is not a position"
        hint = "Give an LSN like 16/B374D848, a time like 2026-11-15T12:00:00Z, or latest; to begin with: earliest."
        raise UsageError(message, hint) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


@dataclass(frozen=True)
class Shape:
    """How images of a table become rows for users."""

    rows: Rows
    several: bool

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return what a query gives, of a table with these columns."""
        if self.several:
            return multi_changes_schema()
        if self.rows is Rows.LIVE:
            return columns
        return (changes_schema if self.rows is Rows.CHANGES else updates_schema)(columns)

    def of(self, images: pa.RecordBatch, table: TableName) -> pa.RecordBatch:
        """Turn images into rows."""
        if self.several:
            return multi_changes(images, table)
        if self.rows is Rows.LIVE:
            row = images.column("row")
            return pa.RecordBatch.from_arrays(row.flatten(), schema=pa.schema(list(row.type)))
        return changes(images) if self.rows is Rows.CHANGES else updates(images, table)


class Chosen:
    """The tables that the options name, as the log has them now."""

    def __init__(self, options: PenstockOptions) -> None:
        self.options = options
        self.names = options.table_names()
        self.shape = Shape(options.rows, len(self.names) > 1)
        if self.shape.several and options.rows is not Rows.CHANGES:
            message = f"several tables cannot be read as {options.rows}"
            raise UsageError(message, "Read them with rows=changes, or one at a time.")
        self.catalog = open_catalog(options.home, options.source)
        self.log: ChangeLog = self.catalog.log(options.source)
        self._reader: ChangeLogReader | None = None

    def reader(self) -> ChangeLogReader:
        """Return the driver's own reader of the log, which stays open."""
        if self._reader is None:
            self._reader = self.log.reader()
        return self._reader

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return what the log knows of the chosen tables."""
        known = self.reader().tables()
        for name in self.names:
            if name not in known:
                there = ", ".join(sorted(map(str, known))) or "none yet"
                message = f"source {self.options.source} has no table {name}"
                raise UsageError(message, f"It has: {there}")
        return {name: known[name] for name in self.names}

    def schema(self) -> pa.Schema:
        """Return the schema of the rows that the query gives."""
        first = next(iter(self.tables().values()))
        schema = first.schema if self.options.as_of is None else first.schema_at(self.upto())
        return self.shape.schema(schema.columns)

    def columns(self, names: Sequence[str]) -> dict[TableName, TableSchema | None]:
        """Return the columns to read of each table: those that the query began with; None where rows are JSON."""
        if self.shape.several:
            return dict.fromkeys(self.names)
        (name, table) = next(iter(self.tables().items()))
        return {name: next(s for s in reversed(table.schemas) if s.columns.names == list(names))}

    def position(self, text: str) -> Lsn:
        """Return the position that an option means."""
        wanted = parse_position(text)
        if wanted is None:
            return self.reader().frontiers().durable
        return wanted if isinstance(wanted, Lsn) else self.reader().position_at(wanted)

    def upto(self) -> Lsn:
        """Return the position at which a batch ends, or at which a table is read: one that the log has come to."""
        options = self.options
        asked = parse_position(options.ending_position) if options.as_of is None else parse_as_of(options.as_of)
        stands = self.reader().frontiers()
        if asked is None:
            return stands.durable
        if not stands.reach(asked):
            raise not_yet({options.source: (stands, asked)})
        return position_as_of(options.source, self.reader(), stands, asked)

    def error(self) -> TableError | None:
        """Return the first definite error among the chosen tables."""
        errors = (table.error for table in self.tables().values())
        return min((error for error in errors if error is not None), key=lambda error: error.lsn, default=None)

    def readable(self) -> Lsn:
        """Return the last position at which all chosen tables can be read."""
        durable, error = self.reader().frontiers().durable, self.error()
        return durable if error is None else Lsn(min(durable, error.lsn - 1))

    def refuse_past(self, upto: Lsn) -> None:
        """Refuse to read beyond an error, or beyond what is written."""
        error = self.error()
        if error is not None and upto >= error.lsn:
            raise error
        durable = self.reader().frontiers().durable
        if upto > durable:
            message = f"the log ends at {durable}: changes up to {upto} are not in it yet"
            raise TransientError(message, "Try again later, or end at a position that the log has.")


def open_catalog(home: str, source: str) -> Catalog:
    """Open the catalog of a home that has this source."""
    path = catalog_path(Path(home))
    if not path.exists():
        message = f"there is no home at {home}"
        raise UsageError(message, "Name the folder in which `penstock run` works.")
    catalog = Catalog(path)
    if not catalog.parts(source):
        known = ", ".join(dict.fromkeys(record.known_as for record in catalog.sources())) or "none"
        message = f"there is no source {source} in {home}"
        raise UsageError(message, f"Its sources are: {known}.")
    return catalog
