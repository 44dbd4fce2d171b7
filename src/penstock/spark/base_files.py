"""The files of a base table at one Delta version, read by Python tasks: no JVM.

::

    driver:     BaseFiles.at(path, version) ──▶ BaseFile, BaseFile, …      small values, sent to tasks
    executors:  read_base_file(file, columns) ──▶ Arrow batches            row groups streamed, deleted rows left out

The Delta log is read by delta-rs: which files, how many rows, which of them are deleted, what columns. A file is read
by Arrow, with the values that Spark would read:

- **Deletion vectors** are row numbers of a file. A `BaseFile` carries them as bits, compressed, and rows are numbered
  as they stream by; so a skipped row group still counts.
- **Names.** A table with column mapping has other names in its files; the log says which, for nested fields too.
- **Types** are those asked for. Spark writes timestamps as INT96, which Arrow would take for nanoseconds, too few for
  the year 1 or 9999: they are read as microseconds. A cast that would lose anything fails.
- **Columns that a file does not have** came later. Null is what rows hold in them where the version has the column;
  else the value that upstream gave its older rows (`missing_value`), as nobody has written it yet.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.errors import DefiniteError
from penstock.model import missing_value
from penstock.spark.delta_types import as_wanted, physical_name

__all__ = ["BaseFile", "BaseFiles", "read_base_file"]

_BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class BaseFile:
    """One Parquet file of a version of a base table."""

    path: str
    """As delta-rs gives it: escaped as in URIs; absolute, or with the scheme of its store."""
    rows: int
    """How many rows it holds, without those that are deleted."""
    size: int
    """Its bytes."""
    schema: pa.Schema
    """The columns of the version; their metadata tells what they are called in the file."""
    kept: bytes | None = None
    """Which rows are not deleted: a bit each, compressed; None: all of them."""

    def kept_rows(self) -> npt.NDArray[np.bool_] | None:
        """Return for each row of the file, up to the last one that is deleted, whether it is kept."""
        if self.kept is None:
            return None
        return np.unpackbits(np.frombuffer(zlib.decompress(self.kept), np.uint8)).astype(np.bool_)


@dataclass(frozen=True)
class BaseFiles:
    """All files of a base table at one version."""

    version: int
    files: tuple[BaseFile, ...]

    @classmethod
    def at(cls, path: str, version: int) -> Self:
        """Read the Delta log up to `version`."""
        try:
            table = DeltaTable(path, version=version)
            schema, added = pa.schema(table.schema().to_arrow()), pa.table(table.get_add_actions())
            kept = _kept_by_name(table)
        except DeltaError as error:
            message = f"the base table at {path} has no version {version} that can be read: {error}"
            raise DefiniteError(message, "Start the query again: it then reads the newest version.") from error
        uris = {_name(uri): uri for uri in table.file_uris()}
        columns = (added.column(name).to_pylist() for name in ("path", "num_records", "size_bytes"))
        files = [
            _base_file(uris[_name(path)], rows, size, schema, kept.get(_name(path)))
            for path, rows, size in zip(*columns, strict=True)
        ]
        return cls(version, tuple(files))

    @property
    def rows(self) -> int:
        """How many rows the version has."""
        return sum(file.rows for file in self.files)


def read_base_file(file: BaseFile, columns: pa.Schema, where: ds.Expression | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `file` with these columns, in its order.

    Row groups that hold no row for which `where` is true are skipped, as far as their statistics tell; others are
    given whole. Whoever fills left-out values from base rows needs all of them: a key that changed may come to meet a
    condition which the base row does not.
    """
    with _opened(file) as parquet:
        kept, first = file.kept_rows(), 0
        chosen = set(_row_groups(parquet, file, where))
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if group in chosen:
                yield from _read_group(parquet, group, first, kept, file, columns)
            first += rows


# -- describing -----------------------------------------------------------------------------------------------------


def _name(path: str) -> str:
    """Return the last part of a path or URI, which is unique: Delta puts a UUID into it."""
    return unquote(path.rpartition("/")[2])


def _kept_by_name(table: DeltaTable) -> dict[str, npt.NDArray[np.bool_]]:
    vectors = pa.table(table.deletion_vectors())
    found = {}
    for path, kept in zip(vectors.column("filepath"), vectors.column("selection_vector"), strict=True):
        found[_name(path.as_py())] = kept.values.to_numpy(zero_copy_only=False)
    return found


def _base_file(
    path: str, rows: int | None, size: int, schema: pa.Schema, kept: npt.NDArray[np.bool_] | None
) -> BaseFile:
    if rows is None:  # written without statistics
        with _opened(BaseFile(path, 0, size, schema)) as parquet:
            rows = parquet.metadata.num_rows
    if kept is None:
        return BaseFile(path, rows, size, schema)
    deleted = int((~kept).sum())
    return BaseFile(path, rows - deleted, size, schema, zlib.compress(np.packbits(kept).tobytes(), 1))


# -- reading --------------------------------------------------------------------------------------------------------


def _opened(file: BaseFile) -> pq.ParquetFile:
    try:
        source = _open_input(file.path)
    except FileNotFoundError as error:
        message = f"{file.path} is gone: its version of the base table has been vacuumed"
        raise DefiniteError(message, "Start the query again: it then reads the newest version.") from error
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES, pre_buffer=False)


def _open_input(path: str) -> pa.NativeFile:
    if "://" not in path:
        return pyarrow.fs.LocalFileSystem().open_input_file(unquote(path))
    system, inner = pyarrow.fs.FileSystem.from_uri(path)
    return system.open_input_file(inner)


def _read_group(
    parquet: pq.ParquetFile,
    group: int,
    first: int,
    kept: npt.NDArray[np.bool_] | None,
    file: BaseFile,
    columns: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    names = _names_in_file(parquet, file, columns)
    for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
        there = batch
        if kept is not None:
            there = batch.filter(pa.array(_mask(kept, first, len(batch))))
        first += len(batch)
        if len(there):
            arrays = [_column(there, file.schema, field) for field in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


def _mask(kept: npt.NDArray[np.bool_], first: int, rows: int) -> npt.NDArray[np.bool_]:
    """Return which of some rows are kept; the vector ends with the last deleted row, or not long after it."""
    mask = kept[first : first + rows]
    return np.pad(mask, (0, rows - len(mask)), constant_values=True)


def _names_in_file(parquet: pq.ParquetFile, file: BaseFile, columns: pa.Schema) -> list[str]:
    """Return what the columns are called in the file; if it has none of them, some column: it tells the rows."""
    there = parquet.schema_arrow.names
    wanted = [physical_name(file.schema.field(name)) for name in columns.names if name in file.schema.names]
    return [name for name in wanted if name in there] or there[:1]


def _column(batch: pa.RecordBatch, schema: pa.Schema, wanted: pa.Field) -> pa.Array:
    if wanted.name not in schema.names:
        return pa.repeat(missing_value(wanted)[0], len(batch))
    known = schema.field(wanted.name)
    name = physical_name(known)
    if name not in batch.schema.names:
        return pa.nulls(len(batch), wanted.type)
    return as_wanted(batch.column(name), known.type, wanted.type)


# -- skipping -------------------------------------------------------------------------------------------------------


def _row_groups(parquet: pq.ParquetFile, file: BaseFile, where: ds.Expression | None) -> list[int]:
    """Return the row groups that may hold rows for which `where` is true.

    Arrow decides that, of one fragment per row group, each of which guarantees what its statistics say. It would read
    the statistics itself, but by the names in the file, which are not those of `where`.
    """
    groups = range(parquet.num_row_groups)
    if where is None:
        return list(groups)
    form, system = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = [
        form.make_fragment(str(group), system, _guarantee(parquet.metadata.row_group(group), file.schema))
        for group in groups
    ]
    told = ds.FileSystemDataset(fragments, file.schema.remove_metadata(), form, system)
    return [int(fragment.path) for fragment in told.get_fragments(where)]


def _guarantee(group: pq.RowGroupMetaData, schema: pa.Schema) -> ds.Expression:
    names = {physical_name(field): field for field in schema}
    holds = ds.scalar(True)
    for number in range(group.num_columns):
        chunk = group.column(number)
        field = names.get(chunk.path_in_schema)
        if field is not None and chunk.is_stats_set and not pa.types.is_floating(field.type):  # NaN is in none
            holds = holds & _range(field, chunk.statistics)
    return holds


def _range(field: pa.Field, statistics: pq.Statistics) -> ds.Expression:
    if not statistics.has_min_max:
        return ds.scalar(True)
    least, most = (pa.scalar(value, field.type) for value in (statistics.min, statistics.max))
    between = (ds.field(field.name) >= least) & (ds.field(field.name) <= most)
    return between if statistics.null_count == 0 else between | ds.field(field.name).is_null()
