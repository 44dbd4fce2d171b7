"""Parquet files as Arrow batches of a table's columns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import DefiniteError
from penstock.sources.row_tables import fitted, plain

__all__ = ["has_end", "parquet_columns", "read_parquet"]

_MAGIC = b"PAR1"
_ROWS = 1 << 16
_REMEDY = "Mend or remove the file, then capture the table anew."


def has_end(path: Path, size: int) -> bool:
    """Say whether a file has its last bytes: one that is being written has not."""
    with path.open("rb") as file:
        file.seek(max(0, size - len(_MAGIC)))
        return file.read() == _MAGIC


def parquet_columns(path: Path) -> pa.Schema:
    """Return the columns of a file."""
    with _open(path) as file:
        return plain(file.schema_arrow)


def read_parquet(path: Path, columns: pa.Schema, key: tuple[str, ...], ignore: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; refuse one whose columns are others."""
    with _open(path) as file:
        _check_columns(path, plain(file.schema_arrow), columns, ignore)
        asked = [name for name in columns.names if name in file.schema_arrow.names]
        batches = file.iter_batches(_ROWS, columns=asked)
        row = 0
        while True:
            try:
                batch = next(batches, None)
                rows = None if batch is None else fitted(batch, columns)
            except (pa.ArrowException, OSError):
                message = f"the file {path.name} cannot be read behind row {row}, or holds a value that does not fit"
                raise DefiniteError(message, _REMEDY) from None
            if rows is None:
                return
            _check_key(path, rows, key)
            row += len(rows)
            yield rows


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowException:
        message = f"{path.name} is not a Parquet file that can be read"
        raise DefiniteError(message, _REMEDY) from None


def _check_columns(path: Path, found: pa.Schema, columns: pa.Schema, ignore: bool) -> None:
    for field in found:
        at = columns.get_field_index(field.name)
        if at < 0 and not ignore:
            message = f"the file {path.name} has a column {field.name}, which the table has not"
            raise DefiniteError(message, "Capture the table anew, or ignore such columns: unknown fields = 'ignore'.")
        if at >= 0 and field.type != columns.field(at).type:
            kinds = f"{field.type}, and {columns.field(at).type} in the table"
            message = f"the column {field.name} is {kinds}, in the file {path.name}"
            raise DefiniteError(message, _REMEDY)


def _check_key(path: Path, rows: pa.RecordBatch, key: tuple[str, ...]) -> None:
    for name in key:
        if rows.column(name).null_count:
            message = f"the file {path.name} has a row without a value of {name}, which is in the key"
            raise DefiniteError(message, _REMEDY)
