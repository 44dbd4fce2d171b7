"""Tables at one position, read by Python tasks.

::

    catalog: newest base at L ≤ T ─▶ its Delta files ─▶ a task per file: rows without touched keys ──┐
    log: (L, T] ─▶ described once, folded by each task ─▶ one more task: rows that need no base row ─┴─▶ table at T

The same position and the same Delta versions give the same pieces in the same order: a stream stores both in its
offset, and can resume in the middle or repeat a part. A keyless table in which the count of a row decreased is a single
piece, because copies of a row may be in any file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.catalog.bases import BaseVersion
from penstock.catalog.store import TableRecord
from penstock.changelog.as_of import no_snapshot_at
from penstock.changelog.interface import ChangeLog, Extent
from penstock.errors import DefiniteError
from penstock.layout import base_path
from penstock.model import TableName, TableSchema, copied_images, image_schema
from penstock.positions import Lsn
from penstock.spark.base_files import BaseFile, BaseFiles, read_base_file
from penstock.spark.input_partitions import Piece
from penstock.spark.source_options import TableSelection
from penstock.tables.arrow.fold import KeyedNet, KeylessNet, fold_net, missing_base_row
from penstock.tables.arrow.overlay import can_split, kept_rows, live_rows, new_rows

__all__ = ["Snapshot"]

_NO_KEYS: Mapping[str, set[Any]] = {}


@dataclass(frozen=True)
class _TableAt:
    """One table at a position: a version of its base table, and the log after it."""

    schema: TableSchema
    at: Lsn
    base: BaseVersion
    path: str
    log: ChangeLog
    tail: Extent

    def net(self) -> KeyedNet | KeylessNet:
        """Fold the log after the base version."""
        with closing(self.log.reader()) as reader:
            read = reader.read(self.tail, self.schema.columns)
            return fold_net(pa.Table.from_batches(read, image_schema(self.schema.columns)), self.schema)

    def files(self) -> tuple[BaseFile, ...]:
        """Return the files of the base version."""
        return BaseFiles.at(self.path, self.base.version).files

    def images(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert rows to images of a snapshot."""
        return (copied_images(batch, self.at) for batch in rows)


class Snapshot:
    """Some tables at one position."""

    def __init__(self, at: Lsn, tables: Sequence[_TableAt]) -> None:
        self.at = at
        self._tables = tables

    @classmethod
    def choose(cls, chosen: TableSelection, at: Lsn, columns: Mapping[TableName, TableSchema | None]) -> Snapshot:
        """Choose for each table the newest base version at or before a position."""
        found = {record.upstream: record for record in chosen.catalog.tables(chosen.options.source)}
        bases = {name: _newest_base(chosen, found.get(name), name, at) for name in chosen.names}
        return cls._of(chosen, at, bases, columns)

    @classmethod
    def restore(
        cls,
        chosen: TableSelection,
        at: Lsn,
        bases: Mapping[str, tuple[int, str]],
        columns: Mapping[TableName, TableSchema | None],
    ) -> Snapshot:
        """Return the snapshot with these base versions."""
        found = {}
        for name in chosen.names:
            version, position = bases[str(name)]
            found[name] = _same_base(chosen, name, version, Lsn.parse(position))
        return cls._of(chosen, at, found, columns)

    @classmethod
    def _of(
        cls,
        chosen: TableSelection,
        at: Lsn,
        bases: Mapping[TableName, BaseVersion],
        columns: Mapping[TableName, TableSchema | None],
    ) -> Snapshot:
        logged, tables = chosen.tables(), []
        for name, base in bases.items():
            tail = chosen.reader().extent(name, base.position, at)
            schema = columns[name] or logged[name].schema_within(base.position, at) or base.schema
            tables.append(_TableAt(schema, at, base, _path(chosen, name), chosen.log, tail))
        return cls(at, tables)

    def bases(self) -> dict[str, tuple[int, str]]:
        """Return version and position of each table's base version, for an offset."""
        return {str(t.schema.table): (t.base.version, str(t.base.position)) for t in self._tables}

    def schemas(self) -> dict[TableName, TableSchema]:
        """Return the columns of each table."""
        return {table.schema.table: table.schema for table in self._tables}

    def oldest(self) -> Lsn:
        """Return the position after which the log is needed."""
        return Lsn(min(table.base.position for table in self._tables))

    def pieces(self, equal: Mapping[str, set[Any]] = _NO_KEYS, key: pc.Expression | None = None) -> list[Piece]:
        """Divide the tables into pieces; `equal` contains constants that key columns are compared with.

        `key` is a condition on key columns instead. Rows for which it is false may be left out.
        """
        return [
            piece
            for table in self._tables
            for piece in _pieces(table, _key_filter(table.schema, equal) if key is None else key)
        ]


class _FilePiece(Piece):
    """The rows of one base file, with the net change applied."""

    def __init__(self, table: _TableAt, file: BaseFile, key: pc.Expression | None) -> None:
        super().__init__(table.schema.table, file.rows)
        self._table = table
        self._file = file
        self._key = key

    def images(self) -> Iterator[pa.RecordBatch]:
        """Return the rows whose key was not touched, and those that take values from this file."""
        net = self._table.net()
        whole = isinstance(net, KeyedNet) and bool((net.sources >= 0).any())  # a source row may have another key
        rows = read_base_file(self._file, self._table.schema.columns, None if whole else self._key)
        return self._table.images(kept_rows(rows, net))


class _TailPiece(Piece):
    """The rows that are new since the base version."""

    def __init__(self, table: _TableAt) -> None:
        super().__init__(table.schema.table, table.tail.rows)
        self._table = table

    def images(self) -> Iterator[pa.RecordBatch]:
        """Return the new rows, after checking that the base has all rows that supply omitted values."""
        net = self._table.net()
        _require_sources(net, self._table.files())
        return self._table.images(new_rows(net))


class _WholePiece(Piece):
    """A table that cannot be divided."""

    def __init__(self, table: _TableAt, files: Sequence[BaseFile]) -> None:
        super().__init__(table.schema.table, sum(file.rows for file in files))
        self._table = table
        self._files = tuple(files)

    def images(self) -> Iterator[pa.RecordBatch]:
        """Read the whole table."""
        columns = self._table.schema.columns
        rows = (batch for file in self._files for batch in read_base_file(file, columns))
        return self._table.images(live_rows(rows, self._table.net()))


def _pieces(table: _TableAt, key: pc.Expression | None) -> list[Piece]:
    files = table.files()
    if not table.schema.key and table.tail.chunks and not can_split(table.net()):
        return [_WholePiece(table, files)]
    tail: list[Piece] = [_TailPiece(table)] if table.tail.chunks else []
    return [*(_FilePiece(table, file, key) for file in files), *tail]


def _require_sources(net: KeyedNet | KeylessNet, files: Sequence[BaseFile]) -> None:
    """Raise an error unless the base has all rows that supply omitted values; reads only their keys."""
    if not isinstance(net, KeyedNet) or not (net.sources >= 0).any():
        return
    columns = pa.schema([net.schema.columns.field(name) for name in net.schema.key])
    missing = set(net.sources[net.sources >= 0].tolist())
    for batch in (batch for file in files for batch in read_base_file(file, columns)):
        missing.difference_update(net.touched.find(batch.columns).tolist())
    if missing:
        raise missing_base_row(net.schema.table, net.lsn)


def _key_filter(schema: TableSchema, equal: Mapping[str, set[Any]]) -> pc.Expression | None:
    """Return a condition on the key that is equivalent to the constants; None if it cannot skip anything."""
    found = None
    for name in schema.key:
        kind = schema.columns.field(name).type
        values = [value for value in equal.get(name, ()) if value is not None]
        if name in equal and (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind)):
            condition = pc.field(name).isin(pa.array(values, kind))
            found = condition if found is None else found & condition
    return found


def _newest_base(chosen: TableSelection, record: TableRecord | None, name: TableName, at: Lsn) -> BaseVersion:
    logged = chosen.reader().tables().get(name)
    if (
        record is None and logged is not None and logged.error is not None
    ):  # the table was dropped, even if no change followed
        raise logged.error
    base = None if record is None else chosen.catalog.bases.newest(record.source, record.local, at)
    if base is None:
        first = None if record is None else chosen.catalog.bases.first(record.source, record.local)
        raise no_snapshot_at(name, first, at)
    return base


def _same_base(chosen: TableSelection, name: TableName, version: int, position: Lsn) -> BaseVersion:
    base = chosen.catalog.bases.known(chosen.options.source, _record(chosen, name).local, version, position)
    if base is None:
        message = f"the base version of {name} that this query started with no longer exists"
        raise DefiniteError(message, "Start a new query, with a new checkpoint.")
    return base


def _path(chosen: TableSelection, name: TableName) -> str:
    return str(base_path(Path(chosen.options.home), chosen.options.source, _record(chosen, name).local).absolute())


def _record(chosen: TableSelection, name: TableName) -> TableRecord:
    return next(r for r in chosen.catalog.tables(chosen.options.source) if r.upstream == name)
