"""The live table of a source that is made of shards, with ``spark.read``: the tables of its shards, told apart.

::

    shards of the source ─▶ a batch reader each ─▶ pieces ─┬─▶ tasks: rows with `penstock_shard` and, where a shard does
      a filter on penstock_shard leaves some out ──────────┘   not have a column yet, null

Each shard is read at its own position: the last that it has, or that of the moment that was asked for. An error of one
is that of the whole query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from penstock.catalog.store import SourceRecord
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.fields import with_fields
from penstock.model import SHARD
from penstock.positions import Lsn, parse_as_of
from penstock.spark.batch_reader import PenstockBatchReader, Pushed
from penstock.spark.pieces import Nothing, Piece, read_piece
from penstock.spark.source_options import Chosen, PenstockOptions, Rows, Shape, open_catalog

__all__ = ["ShardedReader", "refuse_shards", "sharded_schema", "shards_of"]


def shards_of(options: PenstockOptions) -> dict[str, PenstockOptions]:
    """Return the options with which each shard is read, by what tells it apart; none where there are no shards."""
    records = open_catalog(options.home, options.source).parts(options.source)
    found = {r.shard: r for r in records if r.shard is not None and r.part_of == options.source}
    if found:
        _refuse_position(options, next(iter(found.values())))
    return {shard: with_fields(options, source=record.name) for shard, record in found.items()}


def refuse_shards(options: PenstockOptions, shards: Mapping[str, PenstockOptions]) -> None:
    """Refuse what can be asked of one log only."""
    if shards and options.rows is not Rows.LIVE:
        message = (
            f"source {options.source} is made of shards, each with a log of its own: rows={options.rows} reads one"
        )
        names = ", ".join(each.source for each in shards.values())
        raise UsageError(message, f"Name a shard as the source: {names}. For the tables themselves: rows=live.")


def _refuse_position(options: PenstockOptions, first: SourceRecord) -> None:
    if options.as_of is not None and isinstance(parse_as_of(options.as_of), Lsn):
        message = f"source {options.source} is made of shards, and {options.as_of} is a position in one of them"
        raise UsageError(message, f"Give a time, or name a shard as the source: {first.name}")


def sharded_schema(shards: Mapping[str, PenstockOptions]) -> pa.Schema:
    """Return the columns of the table: which shard a row is of, and all that any of them has."""
    fields = {SHARD: pa.field(SHARD, pa.string(), nullable=False)}
    for shard, options in shards.items():
        with _on(shard):
            found = _columns(options)
        for field in found:
            known = next((name for name in fields if name.lower() == field.name.lower()), None)
            if known is None:
                fields[field.name] = field
            elif known != field.name or fields[known].type != field.type or known == SHARD:
                message = f"column {field.name} of {options.table} is not the same on shard {shard} as on others"
                raise DefiniteError(message, "Make the shards alike upstream and retry the table, or read each alone.")
    return pa.schema(list(fields.values()))


class ShardedReader(DataSourceReader):
    """Plans the query of each shard, and reads their pieces."""

    def __init__(self, shards: Mapping[str, PenstockOptions], columns: Sequence[str]) -> None:
        self._schema = sharded_schema(shards)
        self._names = [name for name in columns if name != SHARD]
        self._pushed = Pushed()
        self.pushFilters = self._pushed  # type: ignore[method-assign]
        self._shards = dict(shards)

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the work of those shards whose rows can be wanted."""
        wanted = self._pushed.equal.get(SHARD)
        chosen = {s: options for s, options in self._shards.items() if wanted is None or s in wanted}
        pieces = [piece for shard, options in chosen.items() for piece in self._pieces(shard, options)]
        return pieces or [Nothing()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in a task."""
        return read_piece(partition, Shape(Rows.LIVE, several=False))

    def _pieces(self, shard: str, options: PenstockOptions) -> list[_ShardPiece]:
        schema = pa.schema([self._schema.field(name) for name in (SHARD, *self._names)])
        with _on(shard):
            found = PenstockBatchReader(options, self._columns_of(options), self._pushed).partitions()
        return [_ShardPiece(shard, piece, schema) for piece in found if isinstance(piece, Piece)]

    def _columns_of(self, options: PenstockOptions) -> list[str]:
        """Return those columns that a shard has of the ones that the query began with."""
        (table,) = Chosen(options).tables().values()
        versions = [_columns(options), *(schema.columns for schema in reversed(table.schemas))]
        return next(list(columns.names) for columns in versions if set(columns.names) <= set(self._names))


class _ShardPiece(Piece):
    """Part of one shard."""

    def __init__(self, shard: str, piece: Piece, schema: pa.Schema) -> None:
        super().__init__(piece.table, piece.rows)
        self._shard = shard
        self._piece = piece
        self._schema = schema

    def images(self) -> Iterator[pa.RecordBatch]:
        """Read it, as images of its shard."""
        return self._piece.images()

    def read(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        """Read it, with which shard it is of."""
        return (self._told_apart(rows) for rows in self._piece.read(shape))

    def _told_apart(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        shard = pa.repeat(pa.scalar(self._shard), len(rows))
        known = {SHARD: shard, **dict(zip(rows.schema.names, rows.columns, strict=True))}
        columns = [known[f.name] if f.name in known else pa.nulls(len(rows), f.type) for f in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _columns(options: PenstockOptions) -> pa.Schema:
    return Chosen(options).schema()


@contextmanager
def _on(shard: str) -> Iterator[None]:
    """Tell an error with the shard in which it is."""
    try:
        yield
    except UsageError:
        raise
    except PenstockError as error:
        kind = TransientError if isinstance(error, TransientError) else DefiniteError
        message = f"on shard {shard}, {error.message}"
        raise kind(message, error.hint) from error
