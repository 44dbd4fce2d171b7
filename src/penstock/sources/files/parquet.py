"""Read Parquet files as Arrow batches with a table's columns."""

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
_HINT = "Fix or remove the file, then run ALTER SOURCES … RETRY TABLE …; to read all files again."


def has_end(path: Path, size: int) -> bool:
    """Return whether a file has its footer; a file that is being written has none."""
    with path.open("rb") as file:
        file.seek(max(0, size - len(_MAGIC)))
        return file.read() == _MAGIC


def parquet_columns(path: Path) -> pa.Schema:
    """Return the columns of a file."""
    with _open(path) as file:
        return plain(file.schema_arrow)


def read_parquet(path: Path, columns: pa.Schema, key: tuple[str, ...], ignore: bool) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file; raise `DefiniteError` if its columns do not match."""
    with _open(path) as file:
        _check_columns(path, plain(file.schema_arrow), columns, ignore)
        wanted = [name for name in columns.names if name in file.schema_arrow.names]
        batches = file.iter_batches(_ROWS, columns=wanted)
        row = 0
        while True:
            try:
                batch = next(batches, None)
                rows = None if batch is None else fitted(batch, columns)
            except (pa.ArrowException, OSError):
                message = (
                    f"could not read file {path.name} after row {row}: the file is damaged, or a value does not fit"
                )
                raise DefiniteError(message, _HINT) from None
            if rows is None:
                return
            _check_key(path, rows, key)
            row += len(rows)
            yield rows


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except pa.ArrowException:
        message = f"could not open file {path.name} as Parquet"
        raise DefiniteError(message, _HINT) from None


def _check_columns(path: Path, found: pa.Schema, columns: pa.Schema, ignore: bool) -> None:
    for field in found:
        at = columns.get_field_index(field.name)
        if at < 0 and not ignore:
            message = f'column "{field.name}" of file {path.name} does not exist in the table'
            raise DefiniteError(
                message,
                "Retry the table to infer its columns again, or create the source with unknown fields = 'ignore'.",
            )
        if at >= 0 and field.type != columns.field(at).type:
            kinds = f"{field.type}, but {columns.field(at).type} in the table"
            message = f'column "{field.name}" of file {path.name} has type {kinds}'
            raise DefiniteError(message, _HINT)


def _check_key(path: Path, rows: pa.RecordBatch, key: tuple[str, ...]) -> None:
    for name in key:
        if rows.column(name).null_count:
            message = f'key column "{name}" is null in file {path.name}'
            raise DefiniteError(message, _HINT)
