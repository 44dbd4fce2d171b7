"""The shards of a sharded source as one: live tables and changes with the column `penstock_shard`, in batch and stream.

::

    shards of the source ─▶ a reader each ─▶ pieces ─┬─▶ tasks: rows with `penstock_shard`, and null for columns that a
      a filter on penstock_shard excludes shards ────┘   shard does not have yet

Each shard has positions of its own. A batch query reads each shard at its latest position, or at that of a time; an LSN
is rejected, because it belongs to one shard. An offset of a streaming query has the offset of each shard, and a
micro-batch has whole transactions of each: those of one shard in commit order, without an order between shards. A shard
that was added after the query had started is read from its present rows on. An error on one shard fails the whole
query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from penstock.catalog.store import SourceRecord
from penstock.errors import DefiniteError, PenstockError, TransientError, UsageError
from penstock.fields import with_fields
from penstock.model import SHARD
from penstock.positions import Lsn, parse_as_of
from penstock.spark.batch_reader import PenstockBatchReader, PushedFilters
from penstock.spark.input_partitions import EmptyPiece, Piece, read_piece
from penstock.spark.source_options import (
    EARLIEST,
    LATEST,
    PenstockOptions,
    Rows,
    Shape,
    TableSelection,
    open_catalog,
    parse_position,
)
from penstock.spark.stream_reader import StreamPlanner, check_stream_options

__all__ = ["ShardedBatchReader", "ShardedStreamReader", "sharded_schema", "shards_of"]

_Offset = dict[str, Any]


def shards_of(options: PenstockOptions) -> dict[str, PenstockOptions]:
    """Return the options to read each shard with, by shard; empty if the source is not sharded."""
    records = open_catalog(options.home, options.source).parts(options.source)
    found = {r.shard: r for r in records if r.shard is not None and r.part_of == options.source}
    if found:
        _check_positions(options, next(iter(found.values())))
    return {shard: with_fields(options, source=record.name) for shard, record in found.items()}


def _check_positions(options: PenstockOptions, first: SourceRecord) -> None:
    """Raise `UsageError` for an LSN, which belongs to one shard."""
    given = {
        "asOf": None if options.as_of is None else parse_as_of(options.as_of),
        "startingPosition": None
        if options.starting_position in (None, EARLIEST)
        else parse_position(options.starting_position or LATEST),
        "endingPosition": parse_position(options.ending_position),
    }
    for name, position in given.items():
        if isinstance(position, Lsn):
            message = (
                f"{name}={position} is not valid for sharded source {options.source}: a position belongs to one shard"
            )
            hint = f"Set {name} to a time, or the option source to a shard, for example {first.name}."
            raise UsageError(message, hint)


def sharded_schema(shards: Mapping[str, PenstockOptions]) -> pa.Schema:
    """Return the columns of the query: the shard of a row, and those of a table with all columns that a shard has."""
    shape = _shape(shards)
    columns = pa.schema([]) if shape.several else _all_columns(shards)
    return pa.schema([pa.field(SHARD, pa.string(), nullable=False), *shape.schema(columns)])


def _shape(shards: Mapping[str, PenstockOptions]) -> Shape:
    return TableSelection(next(iter(shards.values()))).shape


def _all_columns(shards: Mapping[str, PenstockOptions]) -> pa.Schema:
    fields: dict[str, pa.Field] = {}
    for shard, options in shards.items():
        with _errors_on(shard):
            found = TableSelection(options).table_columns()
        for field in found:
            known = next((other for other in fields.values() if other.name.lower() == field.name.lower()), None)
            if known is None and field.name.lower() != SHARD:
                fields[field.name] = field
            elif known is None or known.name != field.name or known.type != field.type:
                message = f"column {field.name} of {options.table} differs between shard {shard} and other shards"
                raise DefiniteError(
                    message,
                    "Make the column the same on all shards and retry the table, or query each shard by source name.",
                )
    return pa.schema(list(fields.values()))


def _columns_of(options: PenstockOptions, names: Sequence[str]) -> list[str]:
    """Return the columns of a shard that are among the columns that the query started with."""
    chosen = TableSelection(options)
    if chosen.shape.several:
        return []
    (table,) = chosen.tables().values()
    versions = [chosen.table_columns(), *(schema.columns for schema in reversed(table.schemas))]
    return next(list(columns.names) for columns in versions if set(columns.names) <= set(names))


class ShardedBatchReader(DataSourceReader):
    """Plans the query of each shard, and reads their pieces."""

    def __init__(self, shards: Mapping[str, PenstockOptions], columns: Sequence[str]) -> None:
        self._schema, self._shape = sharded_schema(shards), _shape(shards)
        self._names = list(columns)
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
        return read_piece(partition, self._shape)

    def _pieces(self, shard: str, options: PenstockOptions) -> list[_ShardPiece]:
        schema = _started_with(self._schema, self._shape, self._names)
        with _errors_on(shard):
            found = PenstockBatchReader(options, _columns_of(options, self._names), self._pushed).partitions()
        return [_ShardPiece(shard, piece, schema) for piece in found if isinstance(piece, Piece)]


class ShardedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of each shard, and reads their pieces."""

    def __init__(self, shards: Mapping[str, PenstockOptions], columns: Sequence[str]) -> None:
        for options in shards.values():
            check_stream_options(options)
        self._shards = dict(shards)
        self._shape = _shape(shards)
        self._schema = _started_with(sharded_schema(shards), self._shape, columns)
        self._names = list(columns)
        self._driver: dict[str, StreamPlanner] | None = None

    def initialOffset(self) -> _Offset:
        """Return the offset of a query without a checkpoint; always the same."""
        return {shard: planner.initial() for shard, planner in self._planners().items()}

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """Return the end of the next micro-batch; a limit of rows is divided among the shards."""
        if isinstance(limit, ReadMaxRows):
            limit = ReadMaxRows(max(1, limit.max_rows // len(self._shards)))
        found = {}
        for shard, planner in self._planners().items():
            with _errors_on(shard):
                found[shard] = planner.end(_begun(start, shard), limit)
        return found

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """Divide a micro-batch into tasks."""
        pieces: list[Piece] = []
        for shard, planner in self._planners().items():
            if shard in end:
                with _errors_on(shard):
                    found = planner.pieces(_begun(start, shard), end[shard])
                pieces += [_ShardPiece(shard, piece, self._schema) for piece in found]
        return pieces or [EmptyPiece()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one piece, in a task."""
        return read_piece(partition, self._shape)

    def commit(self, end: _Offset) -> None:
        """Release the logs before the next batch."""
        for shard, planner in self._planners().items():
            if shard in end and "start" not in end[shard]:
                planner.commit(end[shard])

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the positions at which the query ends."""
        for planner in self._planners().values():
            planner.stop_at_end_of_log()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        return next(iter(self._planners().values())).default_limit()

    def reportLatestOffset(self) -> _Offset | None:
        """Return the ends of the logs, for the progress report of the query."""
        return {shard: planner.latest() for shard, planner in self._planners().items()}

    def stop(self) -> None:
        """Release the leases."""
        for planner in self._planners().values():
            planner.release()

    def _planners(self) -> dict[str, StreamPlanner]:
        """Return the planners, created on first use; tasks never use them."""
        if self._driver is None:
            self._driver = {
                shard: StreamPlanner(TableSelection(options), _columns_of(options, self._names))
                for shard, options in self._shards.items()
            }
        return self._driver


def _begun(offset: _Offset, shard: str) -> _Offset:
    """Return the offset of a shard; one that was added later starts with its rows."""
    found: _Offset = offset.get(shard, {"start": EARLIEST})
    return found


def _started_with(schema: pa.Schema, shape: Shape, names: Sequence[str]) -> pa.Schema:
    """Return the columns of a query, without those that were added to its table after it had started."""
    if shape.several:
        return schema
    if shape.rows is Rows.CHANGES:
        row = schema.field("after").type
        columns = pa.schema([row.field(name) for name in names])
    else:
        columns = pa.schema([schema.field(name) for name in names])
    return pa.schema([schema.field(SHARD), *shape.schema(columns)])


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
        columns = [
            _widened(known[f.name], f.type) if f.name in known else pa.nulls(len(rows), f.type) for f in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _widened(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return rows, ``before`` or ``after``, with null in the columns that their shard does not have yet."""
    if values.type == kind or not pa.types.is_struct(kind):
        return values
    own = {field.name for field in values.type}
    columns = [pc.struct_field(values, f.name) if f.name in own else pa.nulls(len(values), f.type) for f in kind]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=values.is_null())


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
