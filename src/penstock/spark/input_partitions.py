"""Input partitions: what one Spark task reads of a query, as a self-contained value sent to an executor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.changelog.interface import ChangeLog, Extent
from penstock.model import TableName, TableSchema
from penstock.spark.images import TASK_BYTES
from penstock.spark.source_options import Shape

__all__ = ["CombinedPiece", "EmptyPiece", "LogPiece", "Piece", "log_pieces", "read_piece"]


class Piece(InputPartition):
    """A part of the rows that a query reads, from one table."""

    def __init__(self, table: TableName, rows: int) -> None:
        super().__init__(None)
        self.table = table
        self.rows = rows
        """The approximate number of rows."""

    @abstractmethod
    def images(self) -> Iterator[pa.RecordBatch]:
        """Read the piece as images."""

    def read(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        """Read the piece in the requested shape."""
        for images in self.images():
            yield shape.of(images, self.table)


class EmptyPiece(Piece):
    """No rows. Without any partition, Spark would create one itself."""

    def __init__(self) -> None:
        super().__init__(TableName("", ""), 0)

    def images(self) -> Iterator[pa.RecordBatch]:
        """Read nothing."""
        yield from ()


class LogPiece(Piece):
    """A part of a range of the log."""

    def __init__(self, log: ChangeLog, extent: Extent, schema: TableSchema | None) -> None:
        super().__init__(extent.table, extent.rows)
        self._log = log
        self._extent = extent
        self._columns = None if schema is None else schema.columns

    def images(self) -> Iterator[pa.RecordBatch]:
        """Read the images from the log."""
        with closing(self._log.reader()) as reader:
            yield from reader.read(self._extent, self._columns)


class CombinedPiece(Piece):
    """Several pieces, read one after the other."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces[0].table, sum(piece.rows for piece in pieces))
        self._pieces = tuple(pieces)

    def images(self) -> Iterator[pa.RecordBatch]:
        """Read the images of all pieces."""
        for piece in self._pieces:
            yield from piece.images()

    def read(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        """Read the rows of all pieces, each with its table."""
        for piece in self._pieces:
            yield from piece.read(shape)


def log_pieces(log: ChangeLog, extent: Extent, schema: TableSchema | None) -> list[Piece]:
    """Divide a range into pieces of about one task's size."""
    return [LogPiece(log, part, schema) for part in extent.divided(TASK_BYTES)]


def read_piece(piece: InputPartition, shape: Shape) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece in the requested shape."""
    if not isinstance(piece, Piece):
        raise TypeError(piece)
    return piece.read(shape)
