"""``format("penstock")``: the changes of one table, as a stream and as a batch.

::

    spark.readStream.format("penstock").option("home", …).option("source", …).option("table", "public.orders").load()

A row is a change: operation, position, transaction, the row before and after. An offset is the commit end LSN of a
transaction, so a micro-batch always ends between transactions and never within one; and since the log
replays a range as the same bytes, a batch that Spark runs again gives the same rows.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from penstock.catalog.store import Catalog
from penstock.changelog.interface import ChangeLog, Extent, Frontiers, LoggedTable
from penstock.changelog.shapes import changes, changes_schema
from penstock.errors import DefiniteError, TransientError, UsageError
from penstock.layout import catalog_path
from penstock.model import TableName
from penstock.positions import Lsn
from penstock.spark.planner_noise import hush
from penstock.spark.ranges import TASK_BYTES, spark_schema

__all__ = ["PenstockDataSource", "PenstockOptions"]

hush()

_PATIENCE_SECONDS = 0.05


class PenstockOptions(BaseModel):
    """The options of ``format("penstock")``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: str = Field(description="The home of the source, as an absolute path where executors run elsewhere")
    source: str = Field(description="The source's name")
    table: str = Field(description="The upstream table, as schema.table")
    rows: Literal["changes"] = Field("changes", description="The shape of rows: one per change")
    startingposition: str = Field(
        "latest", alias="startingPosition", description="Changes after this LSN, or after now: latest"
    )
    endingposition: str = Field(
        "latest", alias="endingPosition", description="Batch only: changes up to this LSN, or up to now: latest"
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
            return cls.model_validate({names[name.lower()]: value for name, value in given.items()})
        except ValidationError as error:
            first = error.errors()[0]
            message = f"option {first['loc'][0]} of format penstock: {first['msg']}"
            raise UsageError(message, "See the reference of the Spark source.") from error

    def log(self) -> ChangeLog:
        """Return the log to read."""
        path = catalog_path(Path(self.home))
        if not path.exists() or Catalog(path).source(self.source) is None:
            message = f"there is no source {self.source} in {self.home}"
            raise UsageError(message, "See `penstock status` for its sources.")
        return Catalog(path).log(self.source)

    def table_name(self) -> TableName:
        """Return the table to read."""
        try:
            return TableName.parse(self.table)
        except ValueError as error:
            raise UsageError(str(error), "Name the upstream table, like public.orders.") from error


class PenstockDataSource(DataSource):
    """The changes of a captured table."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "penstock"

    def schema(self) -> StructType:
        """Return the shape of a change of this table."""
        return spark_schema(changes_schema(_Changes(self._parsed()).table().schema.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a range once."""
        return _BatchReader(self._parsed(), _column_names(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow the table."""
        return _StreamReader(self._parsed(), _column_names(schema))

    def _parsed(self) -> PenstockOptions:
        return PenstockOptions.parse(dict(self.options))


class _Changes:
    """One table's changes in its log."""

    def __init__(self, options: PenstockOptions) -> None:
        self._options = options
        self._log = options.log()
        self._name = options.table_name()

    def table(self) -> LoggedTable:
        with closing(self._log.reader()) as reader:
            tables = reader.tables()
        if self._name not in tables:
            known = ", ".join(sorted(str(name) for name in tables))
            message = f"source {self._options.source} has no table {self._name}"
            raise UsageError(message, f"It has: {known}")
        return tables[self._name]

    def position(self, text: str) -> Lsn:
        """Read a position option, and hold it to what the log can still give."""
        with closing(self._log.reader()) as reader:
            frontiers = reader.frontiers()
        if text == "latest":
            return frontiers.durable
        try:
            lsn = Lsn.parse(text)
        except ValueError as error:
            message = f"{text!r} is not a position"
            raise UsageError(message, "Give an LSN like 16/B374D848, or latest.") from error
        if lsn < frontiers.valid:
            message = f"the log begins at {frontiers.valid}, after {lsn}"
            raise UsageError(message, "Name that position or a later one.")
        return lsn

    def newest(self, start: Lsn, seen: Lsn) -> tuple[Lsn, Lsn]:
        """Wait a moment for something after `seen`; return where changes after `start` end, and what was seen.

        Transactions that do not touch this table start no batch. One with a definite error is told when all before
        it has been given.
        """
        with closing(self._log.reader()) as reader:
            durable = reader.wait(seen, _PATIENCE_SECONDS).durable
            error = self.table().error
            upto = durable if error is None else Lsn(min(durable, error.lsn - 1))
            if upto > start and reader.extent(self._name, start, upto).chunks:
                return upto, durable
        if error is not None and durable >= error.lsn:
            raise error
        return start, durable

    def partitions(self, after: Lsn, upto: Lsn) -> list[_Piece]:
        self._refuse_past_error(upto)
        with closing(self._log.reader()) as reader:
            _refuse_outside(reader.frontiers(), self.table().valid, after, upto)
            extent = reader.extent(self._name, after, upto)
        return [_Piece(part) for part in extent.divided(TASK_BYTES)]

    def read(self, piece: _Piece, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield changes with the columns that the table had when the query began."""
        columns = next(s.columns for s in reversed(self.table().schemas) if s.columns.names == list(names))
        with closing(self._log.reader()) as reader:
            for batch in reader.read(piece.extent, columns):
                yield changes(batch)

    def _refuse_past_error(self, upto: Lsn) -> None:
        error = self.table().error
        if error is not None and upto >= error.lsn:
            raise error


def _refuse_outside(frontiers: Frontiers, valid: Lsn, after: Lsn, upto: Lsn) -> None:
    """Refuse a range that the log cannot give whole: of another source of this name, or not written yet."""
    if after < valid:
        message = f"the log begins at {valid}: changes after {after} are not in it"
        raise DefiniteError(message, "Start anew: with another checkpoint, and from a position that the log has.")
    if upto > max(frontiers.durable, after):
        message = f"the log ends at {frontiers.durable}: changes up to {upto} are not in it yet"
        raise TransientError(message, "Try again later, or end at a position that the log has.")


def _column_names(schema: StructType) -> list[str]:
    row = schema["after"].dataType
    return row.names if isinstance(row, StructType) else []


class _Piece(InputPartition):
    """A group of chunks of a range."""

    def __init__(self, extent: Extent) -> None:
        super().__init__(None)
        self.extent = extent


class _BatchReader(DataSourceReader):
    def __init__(self, options: PenstockOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        source = _Changes(self._options)
        after, upto = (source.position(at) for at in (self._options.startingposition, self._options.endingposition))
        nothing = _Piece(Extent(self._options.table_name(), after, upto))
        return source.partitions(after, upto) or [nothing]  # without any, Spark invents one

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Piece):
            raise TypeError(partition)
        return _Changes(self._options).read(partition, self._columns)


class _StreamReader(DataSourceStreamReader):
    def __init__(self, options: PenstockOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._start: str | None = None
        self._seen = Lsn.ZERO

    def initialOffset(self) -> dict[str, Any]:
        # Spark asks twice; the answer must be the same.
        if self._start is None:
            self._start = str(_Changes(self._options).position(self._options.startingposition))
        return {"lsn": self._start}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Wait a moment for a later transaction: a new change then starts a batch at once."""
        newest, self._seen = _Changes(self._options).newest(Lsn.parse(start["lsn"]), self._seen)
        return {"lsn": str(newest)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return _Changes(self._options).partitions(Lsn.parse(start["lsn"]), Lsn.parse(end["lsn"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, _Piece):
            raise TypeError(partition)
        return _Changes(self._options).read(partition, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing hangs on this: the position is in Spark's checkpoint."""
