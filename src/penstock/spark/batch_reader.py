"""Batch queries with ``spark.read``: a range of changes, or the tables themselves at one position.

Filters that Spark pushes down reduce the amount of data read, and Spark applies them again: filters on position and
table exclude parts of the log, filters on the key of a live table exclude parts of its files.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, Filter, In, InputPartition

from penstock.errors import UsageError
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.spark.input_partitions import EmptyPiece, Piece, log_pieces, read_piece
from penstock.spark.source_options import EARLIEST, LATEST, PenstockOptions, Rows, TableSelection
from penstock.spark.table_snapshot import Snapshot

__all__ = ["PenstockBatchReader", "PushedFilters"]

_LEASE_SECONDS = 600.0
_STREAM_ONLY = ("max_rows", "max_bytes", "reader")


class PenstockBatchReader(DataSourceReader):
    """Plans a batch query beside the driver, and reads it in tasks."""

    def __init__(self, options: PenstockOptions, columns: Sequence[str], pushed: PushedFilters | None = None) -> None:
        """Create a reader with the filters that Spark will push down, or with ones pushed down before."""
        _check_batch_options(options)
        self._options = options
        self._columns = list(columns)
        self._shape = TableSelection(options).shape
        self._pushed = pushed or PushedFilters()
        self.pushFilters = self._pushed  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """Choose the position, take a lease on the log, and divide the query into tasks."""
        chosen = TableSelection(self._options)
        upto = chosen.upto()
        chosen.check_readable(upto)
        pieces = self._table(chosen, upto) if self._reads_tables() else self._range(chosen, upto)
        return pieces or [EmptyPiece()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one piece, in a task."""
        return read_piece(partition, self._shape)

    def _reads_tables(self) -> bool:
        """Return whether the query reads the tables themselves rather than a range of their changes."""
        start = self._options.starting_position
        return self._options.rows is Rows.LIVE or start is None or start == EARLIEST

    def _table(self, chosen: TableSelection, upto: Lsn) -> list[Piece]:
        snapshot = Snapshot.choose(chosen, upto, chosen.columns(self._columns))
        self._take_lease(chosen, snapshot.oldest())
        key = self._pushed.equal if self._options.rows is Rows.LIVE else {}
        return snapshot.pieces(key)

    def _range(self, chosen: TableSelection, upto: Lsn) -> list[Piece]:
        after = chosen.position(self._options.starting_position or EARLIEST)
        self._take_lease(chosen, after)
        columns = chosen.columns(self._columns)
        return [
            piece
            for name in self._pushed.tables(chosen.names)
            for low, high in self._pushed.ranges(after, upto)
            for piece in log_pieces(chosen.log, chosen.reader().extent(name, low, high), columns[name])
        ]

    def _take_lease(self, chosen: TableSelection, after: Lsn) -> None:
        """Take a lease on the log; a longer query depends on the retention of the source."""
        chosen.reader().set_lease(f"batch {uuid.uuid4().hex[:12]}", after, _LEASE_SECONDS)


class PushedFilters:
    """Collects the filters that Spark pushes down, as columns compared with constants.

    If filter pushdown is disabled, Spark rejects a source that overrides `pushFilters`. This object works with either
    setting, because it does not look like an overriding method.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self) -> None:
        self.equal: dict[str, set[Any]] = {}

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Return all filters, so that Spark applies them too."""
        for given in filters:
            if isinstance(given, EqualTo | In) and len(given.attribute) == 1:
                values = set(given.value) if isinstance(given, In) else {given.value}
                (name,) = given.attribute
                self.equal[name] = self.equal.get(name, values) & values
        return filters

    def tables(self, names: Sequence[TableName]) -> list[TableName]:
        """Return the tables that the filters do not exclude."""
        wanted = self.equal.get("_table")
        return [name for name in names if wanted is None or str(name) in wanted]

    def ranges(self, after: Lsn, upto: Lsn) -> list[tuple[Lsn, Lsn]]:
        """Return the ranges within (after, upto] that the filters do not exclude."""
        wanted = self.equal.get("_lsn")
        if wanted is None:
            return [(after, upto)]
        positions = sorted(lsn for lsn in map(_lsn, wanted) if lsn is not None and after < lsn <= upto)
        return [(Lsn(lsn - 1), lsn) for lsn in positions]


def _lsn(text: Any) -> Lsn | None:
    """Parse a position in the canonical form that rows contain; None for any other text."""
    try:
        found = Lsn.parse(text)
    except (ValueError, AttributeError):
        return None
    return found if str(found) == text else None


def _check_batch_options(options: PenstockOptions) -> None:
    fields: Mapping[str, Any] = PenstockOptions.model_fields
    for name in _STREAM_ONLY:
        if getattr(options, name) is not None:
            message = f"option {fields[name].alias or name} is not valid for a batch query"
            raise UsageError(message, "Remove the option, or read a stream (spark.readStream).")
    ranged = {
        "startingPosition": options.starting_position is not None,
        "endingPosition": options.ending_position != LATEST,
    }
    for name, given in ranged.items():
        if given and options.rows is Rows.LIVE:
            message = f"option {name} is not valid with rows=live"
            raise UsageError(message, "Remove the option. To read the table at a position or time, set asOf.")
