"""The options of ``format("penstock")``, and the tables, row shape and log that they select.

`PenstockOptions` parses and validates. `TableSelection` resolves the options on the driver; tasks get parts of it.
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
from penstock.changelog.as_of import not_yet_captured, position_as_of
from penstock.changelog.interface import ChangeLog, ChangeLogReader, LoggedTable
from penstock.changelog.json_rows import multi_changes, multi_changes_schema
from penstock.changelog.user_rows import changes, changes_schema, updates, updates_schema
from penstock.errors import TableError, TransientError, UsageError
from penstock.layout import catalog_path
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn, parse_as_of

__all__ = ["EARLIEST", "LATEST", "PenstockOptions", "Rows", "Shape", "TableSelection", "open_catalog", "parse_position"]

EARLIEST, LATEST = "earliest", "latest"


class Rows(enum.StrEnum):
    """The shape of rows."""

    CHANGES = "changes"
    """One row per change, with the row before and after."""
    UPDATES = "updates"
    """The row's columns and the change of its count: +1 or -1."""
    LIVE = "live"
    """The table itself, at one position. Batch only."""


class PenstockOptions(BaseModel):
    """The options of ``format("penstock")``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: str = Field(description="The home of the source: a folder that the driver can read")
    source: str = Field(description="The source's name")
    table: str = Field(
        description="The upstream table, as schema.table. A comma-separated list of tables returns rows as JSON"
    )
    rows: Rows = Field(Rows.CHANGES, description="The shape of rows: changes, updates, or (batch only) live")
    starting_position: str | None = Field(
        None,
        alias="startingPosition",
        description="Where to start: earliest (the current table, then its changes), latest, an LSN or a time"
        " (changes after it). The default is latest for a stream and earliest for a batch",
    )
    ending_position: str = Field(
        LATEST,
        alias="endingPosition",
        description="Batch only: the LSN or time to read up to; latest is the end of the log",
    )
    as_of: str | None = Field(
        None,
        alias="asOf",
        description="With rows=live: the LSN, or the time with its zone, at which to read the table. The default is the"
        " end of the log",
    )
    max_rows: int | None = Field(
        None,
        alias="maxRowsPerTrigger",
        ge=1,
        description="Stream only: the approximate maximum of changes per micro-batch; transactions are never split",
    )
    max_bytes: int | None = Field(
        None, alias="maxBytesPerTrigger", ge=1, description="Stream only: the same limit by size in the log, in bytes"
    )
    reader: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,60}$",
        description="Stream only: the name of a registered reader. The log retains all changes that it has not read,"
        " for any length of time. Without a reader, the retention of the source applies",
    )

    @classmethod
    def parse(cls, given: dict[str, str]) -> PenstockOptions:
        """Parse options as Spark passes them, with case-insensitive names; reject unknown names."""
        names = {(field.alias or name).lower(): field.alias or name for name, field in cls.model_fields.items()}
        for name in given:
            if name.lower() not in names:
                near = difflib.get_close_matches(name.lower(), names, 1)
                hint = f"Did you mean {names[near[0]]}?" if near else f"Valid options: {', '.join(names.values())}."
                message = f"unknown option {name!r} of format penstock"
                raise UsageError(message, hint)
        try:
            options = cls.model_validate({names[name.lower()]: value for name, value in given.items()})
        except ValidationError as error:
            first = error.errors()[0]
            message = f"invalid option {first['loc'][0]} of format penstock: {first['msg']}"
            raise UsageError(message, "See docs/reference/spark-source.md for all options.") from error
        if options.as_of is not None and options.rows is not Rows.LIVE:
            message = f"option asOf is not valid with rows={options.rows}"
            hint = "Set rows=live to read the table, or startingPosition and endingPosition to read a range."
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
            raise UsageError(
                str(error), "Give the upstream table as schema.table, for example public.orders."
            ) from error


def parse_position(text: str) -> Lsn | datetime | None:
    """Parse an LSN or a time (UTC unless it has a zone); None for `LATEST`."""
    if text == LATEST:
        return None
    try:
        return Lsn.parse(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        message = f"invalid position {text!r}"
        hint = "Use an LSN (16/B374D848), a time (2026-11-15T12:00:00Z), latest, or, for startingPosition, earliest."
        raise UsageError(message, hint) from error
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


@dataclass(frozen=True)
class Shape:
    """The conversion of a table's images to rows for users."""

    rows: Rows
    several: bool

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Return the schema of a query's rows, for a table with these columns."""
        if self.several:
            return multi_changes_schema()
        if self.rows is Rows.LIVE:
            return columns
        return (changes_schema if self.rows is Rows.CHANGES else updates_schema)(columns)

    def of(self, images: pa.RecordBatch, table: TableName) -> pa.RecordBatch:
        """Convert images to rows."""
        if self.several:
            return multi_changes(images, table)
        if self.rows is Rows.LIVE:
            row = images.column("row")
            return pa.RecordBatch.from_arrays(row.flatten(), schema=pa.schema(list(row.type)))
        return changes(images) if self.rows is Rows.CHANGES else updates(images, table)


class TableSelection:
    """The tables that the options select, as of the current log."""

    def __init__(self, options: PenstockOptions, names: Sequence[TableName] | None = None) -> None:
        """Resolve options; `names` are the tables if not those of the option `table`."""
        self.options = options
        self.names = options.table_names() if names is None else tuple(names)
        self.shape = Shape(options.rows, len(self.names) > 1)
        if self.shape.several and options.rows is not Rows.CHANGES:
            message = f"rows={options.rows} requires a single table"
            raise UsageError(message, "Set rows=changes, or read one table at a time.")
        self.catalog = open_catalog(options.home, options.source)
        self.log: ChangeLog = self.catalog.log(options.source)
        self._reader: ChangeLogReader | None = None

    def reader(self) -> ChangeLogReader:
        """Return the driver's reader of the log, which stays open."""
        if self._reader is None:
            self._reader = self.log.reader()
        return self._reader

    def tables(self) -> dict[TableName, LoggedTable]:
        """Return the log's metadata of the selected tables."""
        known = self.reader().tables()
        for name in self.names:
            if name not in known:
                names = ", ".join(sorted(map(str, known))) or "none"
                message = f"source {self.options.source} has no table {name}"
                raise UsageError(message, f"Its tables are: {names}.")
        self.log.check_readable(self.names)
        return {name: known[name] for name in self.names}

    def schema(self) -> pa.Schema:
        """Return the schema of the query's rows."""
        return self.shape.schema(self.table_columns())

    def table_columns(self) -> pa.Schema:
        """Return the columns of the first table, at the position at which it is read."""
        first = next(iter(self.tables().values()))
        schema = first.schema if self.options.as_of is None else first.schema_at(self.upto())
        return schema.columns

    def columns(self, names: Sequence[str]) -> dict[TableName, TableSchema | None]:
        """Return the columns to read of each table: those that the query started with; None if rows are JSON."""
        if self.shape.several:
            return dict.fromkeys(self.names)
        (name, table) = next(iter(self.tables().items()))
        return {name: next(s for s in reversed(table.schemas) if s.columns.names == list(names))}

    def position(self, text: str) -> Lsn:
        """Return the position that an option denotes."""
        wanted = parse_position(text)
        if wanted is None:
            return self.reader().frontiers().durable
        return wanted if isinstance(wanted, Lsn) else self.reader().position_at(wanted)

    def upto(self) -> Lsn:
        """Return the position at which a batch ends or a table is read; the log must have reached it."""
        options = self.options
        requested = parse_position(options.ending_position) if options.as_of is None else parse_as_of(options.as_of)
        frontiers = self.reader().frontiers()
        if requested is None:
            return frontiers.durable
        if not frontiers.has_reached(requested):
            raise not_yet_captured({options.source: (frontiers, requested)})
        return position_as_of(options.source, self.reader(), frontiers, requested)

    def error(self) -> TableError | None:
        """Return the first permanent error among the selected tables."""
        errors = (table.error for table in self.tables().values())
        return min((error for error in errors if error is not None), key=lambda error: error.lsn, default=None)

    def readable(self) -> Lsn:
        """Return the last position at which all selected tables can be read."""
        durable, error = self.reader().frontiers().durable, self.error()
        return durable if error is None else Lsn(min(durable, error.lsn - 1))

    def check_readable(self, upto: Lsn) -> None:
        """Raise an error if `upto` is at or after a table's error, or after the end of the log."""
        error = self.error()
        if error is not None and upto >= error.lsn:
            raise error
        durable = self.reader().frontiers().durable
        if upto > durable:
            message = f"position {upto} is after the end of the log at {durable}"
            raise TransientError(message, "Try again later, or choose a position up to the end of the log.")


def open_catalog(home: str, source: str) -> Catalog:
    """Open the catalog of a home, which must have this source."""
    path = catalog_path(Path(home))
    if not path.exists():
        message = f"no home at {home}"
        raise UsageError(message, "Set the option home to the folder that `penstock run` uses.")
    catalog = Catalog(path)
    if not catalog.parts(source):
        known = ", ".join(dict.fromkeys(record.known_as for record in catalog.sources())) or "none"
        message = f"home {home} has no source {source}"
        raise UsageError(message, f"Its sources are: {known}.")
    return catalog
