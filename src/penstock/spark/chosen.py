"""What a query reads: tables of one source, in one shape, from one log. Made on the driver; its parts travel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from penstock.catalog.store import Catalog
from penstock.changelog.as_of import not_yet, position_as_of
from penstock.changelog.interface import ChangeLog, ChangeLogReader, LoggedTable
from penstock.changelog.json_rows import multi_changes, multi_changes_schema
from penstock.changelog.shapes import changes, changes_schema
from penstock.changelog.updates import updates, updates_schema
from penstock.errors import TableError, TransientError, UsageError
from penstock.layout import catalog_path
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn, parse_as_of
from penstock.spark.source_options import PenstockOptions, Rows, parse_position

__all__ = ["Chosen", "Shape", "open_catalog"]


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
