"""The tables of a sink in the catalog, and their rows at a position: see `penstock.sinks.delivery`.

Rows come from base tables and the log, read here, without Spark's JVM.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.catalog.states import TableState
from penstock.catalog.store import Catalog, TableRecord
from penstock.errors import DefiniteError
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sinks.delivery import SinkTables
from penstock.spark.input_partitions import Piece
from penstock.spark.source_options import PenstockOptions, TableSelection
from penstock.spark.table_snapshot import Snapshot
from penstock.tables.arrow.complete import complete_images
from penstock.tables.arrow.distinct_rows import Distinct

__all__ = ["CatalogTables"]

_REFRESH_SECONDS = 0.5


class CatalogTables(SinkTables):
    """One table of a source, or all of them; used by one thread."""

    def __init__(self, home: Path, catalog: Catalog, source: str, local: str | None) -> None:
        self._home, self._catalog, self._source, self._local = home, catalog, source, local
        self._records: dict[TableName, TableRecord] = {}
        self._read_at = 0.0

    def states(self) -> Mapping[TableName, bool | DefiniteError]:
        """Return the tables, as the catalog had them at most half a second ago."""
        if time.monotonic() > self._read_at + _REFRESH_SECONDS:
            found = [r for r in self._catalog.tables(self._source) if self._local in (None, r.local)]
            self._records = {r.upstream: r for r in found if r.state is not TableState.DROPPING}
            self._read_at = time.monotonic()
        if self._local is not None and not self._records:
            message = f"table {self._source}.{self._local} is no longer captured"
            raise DefiniteError(message, "Drop the sink, or add the table to the source again.")
        return {name: _state(record) for name, record in self._records.items()}

    def base(self, table: TableName, at: Lsn) -> tuple[int, Lsn] | None:
        """Return the newest base that the catalog has."""
        base = self._catalog.bases.newest(self._source, self._records[table].local, at)
        return None if base is None else (base.version, base.position)

    def rows(self, table: TableName, at: Lsn, version: int, base: Lsn) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """Read the base version, with the log after it."""
        schema, pieces = self.pieces(table, at, version, base)
        return schema, (images for piece in pieces for images in piece.images())

    def pieces(self, table: TableName, at: Lsn, version: int, base: Lsn) -> tuple[TableSchema, list[Piece]]:
        """Return the same in pieces, which any process can read."""
        with self._selected(table) as selected:
            snapshot = Snapshot.restore(selected, at, {str(table): (version, str(base))}, {table: None})
            return snapshot.schemas()[table], snapshot.pieces()

    def current_rows(self, schema: TableSchema, at: Lsn) -> Iterator[pa.RecordBatch]:
        """Read the newest base version, with the log after it."""
        with self._selected(schema.table) as selected:
            for piece in Snapshot.choose(selected, at, {schema.table: schema}).pieces():
                for images in piece.images():
                    yield pa.RecordBatch.from_struct_array(images.column("row"))

    def complete(self, images: pa.RecordBatch, schema: TableSchema, after: Lsn) -> pa.RecordBatch:
        """Fill in values from the table at the position."""
        return complete_images(images, schema, partial(self._with_keys, schema, after))

    def _with_keys(self, schema: TableSchema, at: Lsn, keys: pa.Table) -> pa.Table:
        """Return the rows at a position that have one of these keys."""
        wanted, _ = Distinct.of([keys.column(name).combine_chunks() for name in schema.key], keys=True)
        found = []
        with self._selected(schema.table) as selected:
            pieces = Snapshot.choose(selected, at, {schema.table: schema}).pieces(key=_among(keys, schema))
            for images in (images for piece in pieces for images in piece.images()):
                rows = pa.RecordBatch.from_struct_array(images.column("row"))
                there = wanted.find([rows.column(name) for name in schema.key]) >= 0
                found.append(rows.filter(pa.array(there)))
        return pa.Table.from_batches(found, schema.columns) if found else schema.columns.empty_table()

    @contextmanager
    def _selected(self, table: TableName) -> Iterator[TableSelection]:
        options = PenstockOptions.parse({"home": str(self._home), "source": self._source, "table": str(table)})
        selected = TableSelection(options, [table])
        with closing(selected.reader()):
            yield selected


def _state(record: TableRecord) -> bool | DefiniteError:
    if record.state is TableState.FAILED:
        message = f"{record.upstream} has failed: {record.error}"
        return DefiniteError(message, record.hint or "Run `penstock status` to see its state.")
    return record.state is TableState.LIVE


def _among(keys: pa.Table, schema: TableSchema) -> pc.Expression | None:
    """Return a condition on the key that skips files without any of these keys; None if it cannot skip anything."""
    found = None
    for name in schema.key:
        kind = schema.columns.field(name).type
        if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind):
            condition = pc.field(name).isin(keys.column(name).combine_chunks())
            found = condition if found is None else found & condition
    return found
