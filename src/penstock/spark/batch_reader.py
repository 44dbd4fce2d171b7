"""Reading tables with ``spark.read``: a range of their changes, or the tables themselves at one position.

Filters that Spark offers are used to read less, and Spark applies them all the same: position and table leave out parts
of the log, the key of a live table leaves out parts of its files.
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
from penstock.spark.pieces import Nothing, Piece, log_pieces, read_piece
from penstock.spark.snapshot import Snapshot
from penstock.spark.source_options import EARLIEST, LATEST, Chosen, PenstockOptions, Rows

__all__ = ["PenstockBatchReader", "Pushed"]

_LEASE_SECONDS = 600.0
_STREAM_ONLY = ("max_rows", "max_bytes", "reader")


class PenstockBatchReader(DataSourceReader):
    """Plans a batch query beside the driver, and reads it in tasks."""

    def __init__(self, options: PenstockOptions, columns: Sequence[str], pushed: Pushed | None = None) -> None:
        """Read with filters that Spark offers to this reader, or that were offered before."""
        _refuse_stream_options(options)
        self._options = options
        self._columns = list(columns)
        self._shape = Chosen(options).shape
        self._pushed = pushed or Pushed()
        self.pushFilters = self._pushed  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        """Choose the position, hold it for a while, and divide the work."""
        chosen = Chosen(self._options)
        upto = chosen.upto()
        chosen.refuse_past(upto)
        pieces = self._table(chosen, upto) if self._reads_tables() else self._range(chosen, upto)
        return pieces or [Nothing()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in a task."""
        return read_piece(partition, self._shape)

    def _reads_tables(self) -> bool:
        """Whether the tables themselves are asked for, and not a range of what happened to them."""
        start = self._options.starting_position
        return self._options.rows is Rows.LIVE or start is None or start == EARLIEST

    def _table(self, chosen: Chosen, upto: Lsn) -> list[Piece]:
        snapshot = Snapshot.choose(chosen, upto, chosen.columns(self._columns))
        self._hold(chosen, snapshot.oldest())
        key = self._pushed.equal if self._options.rows is Rows.LIVE else {}
        return snapshot.pieces(key)

    def _range(self, chosen: Chosen, upto: Lsn) -> list[Piece]:
        after = chosen.position(self._options.starting_position or EARLIEST)
        self._hold(chosen, after)
        columns = chosen.columns(self._columns)
        return [
            piece
            for name in self._pushed.tables(chosen.names)
            for low, high in self._pushed.ranges(after, upto)
            for piece in log_pieces(chosen.log, chosen.reader().extent(name, low, high), columns[name])
        ]

    def _hold(self, chosen: Chosen, after: Lsn) -> None:
        """Keep what is read in the log for a while; a longer query then depends on what the source retains."""
        chosen.reader().pin(f"batch {uuid.uuid4().hex[:12]}", after, _LEASE_SECONDS)


class Pushed:
    """Takes the filters that Spark offers, and remembers which columns are compared with constants.

    Spark refuses a source that takes filters where the setting for it is off, and tells one by its method. This one
    works either way, so it does not look like such a method.
    """

    __func__ = DataSourceReader.pushFilters

    def __init__(self) -> None:
        self.equal: dict[str, set[Any]] = {}

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        """Return all of them: Spark is to apply them, too."""
        for given in filters:
            if isinstance(given, EqualTo | In) and len(given.attribute) == 1:
                values = set(given.value) if isinstance(given, In) else {given.value}
                (name,) = given.attribute
                self.equal[name] = self.equal.get(name, values) & values
        return filters

    def tables(self, names: Sequence[TableName]) -> list[TableName]:
        """Return those tables whose rows can be wanted."""
        wanted = self.equal.get("_table")
        return [name for name in names if wanted is None or str(name) in wanted]

    def ranges(self, after: Lsn, upto: Lsn) -> list[tuple[Lsn, Lsn]]:
        """Return the ranges within (after, upto] in which changes can be wanted."""
        wanted = self.equal.get("_lsn")
        if wanted is None:
            return [(after, upto)]
        positions = sorted(lsn for lsn in map(_lsn, wanted) if lsn is not None and after < lsn <= upto)
        return [(Lsn(lsn - 1), lsn) for lsn in positions]


def _lsn(text: Any) -> Lsn | None:
    """Read a position as rows show it; what is written otherwise equals none of them."""
    try:
        found = Lsn.parse(text)
    except (ValueError, AttributeError):
        return None
    return found if str(found) == text else None


def _refuse_stream_options(options: PenstockOptions) -> None:
    fields: Mapping[str, Any] = PenstockOptions.model_fields
    for name in _STREAM_ONLY:
        if getattr(options, name) is not None:
            message = f"a batch has no option {fields[name].alias or name}"
            raise UsageError(message, "Leave it out, or read a stream (spark.readStream).")
    ranged = {
        "startingPosition": options.starting_position is not None,
        "endingPosition": options.ending_position != LATEST,
    }
    for name, given in ranged.items():
        if given and options.rows is Rows.LIVE:
            message = f"a live table has no {name}"
            raise UsageError(message, "Leave it out. The position or time at which the table is read is asOf.")
