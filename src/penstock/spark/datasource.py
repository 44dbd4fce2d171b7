"""``format("penstock")``: the tables of a source and their changes, as a stream or as a batch.

::

    spark.readStream.format("penstock").option("home", …).option("source", …).option("table", "public.orders").load()

    options ─▶ TableSelection (log, tables, shape) ─▶ stream reader │ batch reader ─▶ pieces ─▶ tasks ─▶ Arrow batches
                                                 offsets         filters        ├ LogPiece: part of a range of the log
                                                                                └ of a snapshot: a file, or the tail

Planning runs in a Python process beside the driver, which can access the home. Tasks only get their piece, which
contains the address of the log. Spark shows errors as a traceback that ends in the message and the hint.

A batch query on the live table of a sharded source reads the union of its shards' tables::

    shards of the source ─▶ a batch reader each ─▶ pieces ─┬─▶ tasks: rows with `penstock_shard`, and null for columns
      a filter on penstock_shard excludes shards ──────────┘   that a shard does not have yet

Each shard is read at its own position: its latest, or that of the requested time. An error on one shard fails the whole
query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from penstock.catalog.store import SourceRecord
from penstock.changelog.user_rows import OWN_COLUMNS
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.fields import with_fields
from penstock.model import SHARD
from penstock.positions import Lsn, parse_as_of
from penstock.spark.batch_reader import PenstockBatchReader, PushedFilters
from penstock.spark.images import spark_schema
from penstock.spark.input_partitions import EmptyPiece, Piece, read_piece
from penstock.spark.source_options import PenstockOptions, Rows, Shape, TableSelection, open_catalog
from penstock.spark.stream_reader import PenstockStreamReader
from penstock.spark.worker_errors import silence_broken_pipes

__all__ = ["PenstockDataSource"]

silence_broken_pipes()


class PenstockDataSource(DataSource):
    """The data source of captured tables and their changes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the columns of the requested rows."""
        options = self._parsed()
        shards = _shards_of(options)
        _check_sharded(options, shards)
        return spark_schema(_sharded_schema(shards) if shards else TableSelection(options).schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = self._parsed()
        shards = _shards_of(options)
        if shards:
            return _ShardedReader(shards, schema.names)
        return PenstockBatchReader(options, _column_names(schema, options.rows))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        options = self._parsed()
        return PenstockStreamReader(options, _column_names(schema, options.rows))

    def _parsed(self) -> PenstockOptions:
        return PenstockOptions.parse(dict(self.options))


def _column_names(schema: StructType, rows: Rows) -> list[str]:
    """Return the table's own columns among those of a query."""
    if rows is Rows.CHANGES:
        row = schema["after"].dataType
        return row.names if isinstance(row, StructType) else []
    return [name for name in schema.names if rows is Rows.LIVE or name not in OWN_COLUMNS]


# -- sharded sources ---------------------------------------------------------------------------------------------------


def _shards_of(options: PenstockOptions) -> dict[str, PenstockOptions]:
    """Return the options to read each shard with, by shard; empty if the source is not sharded."""
    records = open_catalog(options.home, options.source).parts(options.source)
    found = {r.shard: r for r in records if r.shard is not None and r.part_of == options.source}
    if found:
        _check_as_of(options, next(iter(found.values())))
    return {shard: with_fields(options, source=record.name) for shard, record in found.items()}


def _check_sharded(options: PenstockOptions, shards: Mapping[str, PenstockOptions]) -> None:
    """Raise a `UsageError` for a sharded source, unless the query reads live tables."""
    if shards and options.rows is not Rows.LIVE:
        message = (
            f"rows={options.rows} is not valid for sharded source {options.source}, whose shards have separate logs"
        )
        names = ", ".join(each.source for each in shards.values())
        raise UsageError(message, f"Set the option source to a shard ({names}), or read the tables with rows=live.")


def _check_as_of(options: PenstockOptions, first: SourceRecord) -> None:
    if options.as_of is not None and isinstance(parse_as_of(options.as_of), Lsn):
        message = (
            f"asOf={options.as_of} is not valid for sharded source {options.source}: a position belongs to one shard"
        )
        raise UsageError(message, f"Set asOf to a time, or the option source to a shard, for example {first.name}.")


def _sharded_schema(shards: Mapping[str, PenstockOptions]) -> pa.Schema:
    """Return the columns of the table: the shard of a row, and all columns that any shard has."""
    fields = {SHARD: pa.field(SHARD, pa.string(), nullable=False)}
    for shard, options in shards.items():
        with _errors_on(shard):
            found = _columns(options)
        for field in found:
            known = next((name for name in fields if name.lower() == field.name.lower()), None)
            if known is None:
                fields[field.name] = field
            elif known != field.name or fields[known].type != field.type or known == SHARD:
                message = f"column {field.name} of {options.table} differs between shard {shard} and other shards"
                raise DefiniteError(
                    message,
                    "Make the column the same on all shards and retry the table, or query each shard by source name.",
                )
    return pa.schema(list(fields.values()))


class _ShardedReader(DataSourceReader):
    """Plans the query of each shard, and reads their pieces."""

    def __init__(self, shards: Mapping[str, PenstockOptions], columns: Sequence[str]) -> None:
        self._schema = _sharded_schema(shards)
        self._names = [name for name in columns if name != SHARD]
        self._pushed = PushedFilters()
        self.pushFilters = self._pushed  # type: ignore[method-assign]
        self._shards = dict(shards)

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the shards that the filters do not exclude into tasks."""
        wanted = self._pushed.equal.get(SHARD)
        chosen = {s: options for s, options in self._shards.items() if wanted is None or s in wanted}
        pieces = [piece for shard, options in chosen.items() for piece in self._pieces(shard, options)]
        return pieces or [EmptyPiece()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one piece, in a task."""
        return read_piece(partition, Shape(Rows.LIVE, several=False))

    def _pieces(self, shard: str, options: PenstockOptions) -> list[_ShardPiece]:
        schema = pa.schema([self._schema.field(name) for name in (SHARD, *self._names)])
        with _errors_on(shard):
            found = PenstockBatchReader(options, self._columns_of(options), self._pushed).partitions()
        return [_ShardPiece(shard, piece, schema) for piece in found if isinstance(piece, Piece)]

    def _columns_of(self, options: PenstockOptions) -> list[str]:
        """Return the columns of a shard that are among the columns that the query started with."""
        (table,) = TableSelection(options).tables().values()
        versions = [_columns(options), *(schema.columns for schema in reversed(table.schemas))]
        return next(list(columns.names) for columns in versions if set(columns.names) <= set(self._names))


class _ShardPiece(Piece):
    """A part of one shard."""

    def __init__(self, shard: str, piece: Piece, schema: pa.Schema) -> None:
        super().__init__(piece.table, piece.rows)
        self._shard = shard
        self._piece = piece
        self._schema = schema

    def images(self) -> Iterator[pa.RecordBatch]:
        """Read the piece as images of its shard."""
        return self._piece.images()

    def read(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        """Read the piece with the column of its shard."""
        return (self._with_shard(rows) for rows in self._piece.read(shape))

    def _with_shard(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        shard = pa.repeat(pa.scalar(self._shard), len(rows))
        known = {SHARD: shard, **dict(zip(rows.schema.names, rows.columns, strict=True))}
        columns = [known[f.name] if f.name in known else pa.nulls(len(rows), f.type) for f in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _columns(options: PenstockOptions) -> pa.Schema:
    return TableSelection(options).schema()


@contextmanager
def _errors_on(shard: str) -> Iterator[None]:
    """Add the shard to the message of an error."""
    try:
        yield
    except UsageError:
        raise
    except PenstockError as error:
        kind = TransientError if isinstance(error, TransientError) else DefiniteError
        message = f"on shard {shard}, {error.message}"
        raise kind(message, error.hint) from error
