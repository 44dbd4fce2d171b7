"""The files of a base table at one Delta version, read by Python tasks without a JVM.

::

    driver:     BaseFiles.at(path, version) ──▶ BaseFile, BaseFile, …      small values, sent to tasks
    executors:  read_base_file(file, columns) ──▶ Arrow batches            row groups streamed, deleted rows left out

delta-rs reads the Delta log: the files, row counts, deleted rows and columns. Arrow reads the files, and returns the
same values as Spark:

- **Deletion vectors** are row numbers within a file. A `BaseFile` carries them as a compressed bitmap, and rows are
  numbered while they are streamed, so skipped row groups count too.
- **Names.** A table with column mapping has other names in its files; the log maps them, also for nested fields.
- **Types** are the requested ones. Spark writes timestamps as INT96, which Arrow would read as nanoseconds, too narrow
  for the years 1 or 9999: they are read as microseconds. A lossy cast fails.
- **Columns that a file lacks** were added later. Their value is null if the version has the column; otherwise it
  is the value that upstream gave to older rows (`missing_value`), which is not in the base table yet.

**Conversion to the requested Arrow types.** A file may have other names than the table (column mapping), also inside
structs, and equivalent types: timestamps without their zone, lists and maps with other names of inner fields. Values
are decomposed into plain columns and reassembled; buffers are shared wherever nothing differs.

**Bounds** of a column in a row group come from the Parquet footer, as Python values. Values that Python cannot
represent have no bounds, and a row group without bounds is never skipped: a timestamp or a date outside the years 1 to
9999, which other writers may have written, or an invalid text.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.errors import DefiniteError
from penstock.model import missing_value

__all__ = ["BaseFile", "BaseFiles", "cast_values", "known_bounds", "physical_name", "read_base_file"]

_BATCH_ROWS = 1 << 16
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class BaseFile:
    """One Parquet file of a version of a base table."""

    path: str
    """The path from delta-rs: URI-escaped; absolute, or with the scheme of its store."""
    rows: int
    """The number of rows, without deleted ones."""
    size: int
    """The size in bytes."""
    schema: pa.Schema
    """The columns of the version; their metadata contains their names in the file."""
    kept: bytes | None = None
    """Which rows are not deleted, as a compressed bitmap; None for all."""

    def kept_rows(self) -> npt.NDArray[np.bool_] | None:
        """Return for each row of the file, up to the last deleted one, whether it is kept."""
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
            message = f"could not read version {version} of the base table at {path}: {error}"
            raise DefiniteError(message, "Run the query again to read the newest version.") from error
        uris = {_name(uri): uri for uri in table.file_uris()}
        columns = (added.column(name).to_pylist() for name in ("path", "num_records", "size_bytes"))
        files = [
            _base_file(uris[_name(path)], rows, size, schema, kept.get(_name(path)))
            for path, rows, size in zip(*columns, strict=True)
        ]
        return cls(version, tuple(files))

    @property
    def rows(self) -> int:
        """The number of rows of the version."""
        return sum(file.rows for file in self.files)


def read_base_file(file: BaseFile, columns: pa.Schema, where: ds.Expression | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `file` with these columns, in file order.

    Row groups that, by their statistics, contain no row for which `where` is true are skipped; others are returned
    whole. A caller that fills omitted values from base rows must not pass `where`: after a key change, a row may
    satisfy a condition that its base row does not.
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
        message = f"file {file.path} does not exist: its version of the base table was vacuumed"
        raise DefiniteError(message, "Run the query again to read the newest version.") from error
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
    """Return which of some rows are kept; the vector ends at the last deleted row, or shortly after it."""
    mask = kept[first : first + rows]
    return np.pad(mask, (0, rows - len(mask)), constant_values=True)


def _names_in_file(parquet: pq.ParquetFile, file: BaseFile, columns: pa.Schema) -> list[str]:
    """Return the names of the columns in the file; if it has none of them, any column, to count rows."""
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
    return cast_values(batch.column(name), known.type, wanted.type)


# -- skipping -------------------------------------------------------------------------------------------------------


def _row_groups(parquet: pq.ParquetFile, file: BaseFile, where: ds.Expression | None) -> list[int]:
    """Return the row groups that may contain rows for which `where` is true.

    Arrow decides this for one fragment per row group, each with its statistics as a guarantee. Arrow could read the
    statistics itself, but by the names in the file, which differ from those in `where`.
    """
    groups = range(parquet.num_row_groups)
    if where is None:
        return list(groups)
    form, system = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = [
        form.make_fragment(str(group), system, _guarantee(parquet.metadata.row_group(group), file.schema))
        for group in groups
    ]
    dataset = ds.FileSystemDataset(fragments, file.schema.remove_metadata(), form, system)
    return [int(fragment.path) for fragment in dataset.get_fragments(where)]


def _guarantee(group: pq.RowGroupMetaData, schema: pa.Schema) -> ds.Expression:
    names = {physical_name(field): field for field in schema}
    holds = ds.scalar(True)
    for number in range(group.num_columns):
        chunk = group.column(number)
        field = names.get(chunk.path_in_schema)
        if field is not None and chunk.is_stats_set and not pa.types.is_floating(field.type):  # bounds ignore NaN
            holds = holds & _range(field, chunk.statistics)
    return holds


def _range(field: pa.Field, statistics: pq.Statistics) -> ds.Expression:
    bounds = known_bounds(statistics)
    if bounds is None:
        return ds.scalar(True)
    least, most = (pa.scalar(value, field.type) for value in bounds)
    between = (ds.field(field.name) >= least) & (ds.field(field.name) <= most)
    return between if statistics.null_count == 0 else between | ds.field(field.name).is_null()


_PHYSICAL = b"delta.columnMapping.physicalName"


def physical_name(field: pa.Field) -> str:
    """Return the name of a column, or of a field of a struct, in files."""
    name = (field.metadata or {}).get(_PHYSICAL)
    return field.name if name is None else bytes(name).decode()


def cast_values(values: pa.Array, known: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Convert values of a file, whose type in the Delta log is `known`, to the type `wanted`."""
    if pa.types.is_struct(wanted):
        return _struct(values, known, wanted)
    if pa.types.is_map(wanted):
        return _map(values, known, wanted)
    if pa.types.is_list(wanted):
        return _list(values, known, wanted)
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(values.type) and wanted.unit == values.type.unit:
        return values.view(wanted)
    return values if values.type == wanted else values.cast(wanted)


def _struct(values: pa.StructArray, known: pa.StructType, wanted: pa.StructType) -> pa.Array:
    there = {field.name: child for field, child in zip(values.type, values.flatten(), strict=True)}
    fields = [known.field(field.name) if known.get_field_index(field.name) >= 0 else None for field in wanted]
    children = [
        cast_values(there[physical_name(old)], old.type, new.type)
        if old is not None and physical_name(old) in there
        else pa.nulls(len(values), new.type)
        for old, new in zip(fields, wanted, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null())


def _list(values: pa.ListArray, known: pa.ListType, wanted: pa.ListType) -> pa.Array:
    offsets, (items,) = _parts(values, values.values)
    items = cast_values(items, known.value_type, wanted.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=wanted, mask=_nulls(values))


def _map(values: pa.MapArray, known: pa.MapType, wanted: pa.MapType) -> pa.Array:
    offsets, (keys, items) = _parts(values, values.keys, values.items)
    keys = cast_values(keys, known.key_type, wanted.key_type)
    items = cast_values(items, known.item_type, wanted.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_nulls(values))


def _parts(values: pa.ListArray | pa.MapArray, *children: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """Return offsets that start at 0, and the children they refer to: the array may be a slice."""
    first, last = values.offsets[0], values.offsets[-1].as_py()
    return pc.subtract(values.offsets, first), [child.slice(first.as_py(), last - first.as_py()) for child in children]


def _nulls(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None


def known_bounds(statistics: pq.Statistics) -> tuple[Any, Any] | None:
    """Return the minimum and maximum; None if the footer has none, or if Python cannot represent them."""
    if not statistics.has_min_max:
        return None
    try:
        return statistics.min, statistics.max
    except (OverflowError, ValueError):
        return None
