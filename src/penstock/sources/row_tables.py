"""Tables of polling sources: Arrow schemas whose types every later stage supports.

The data of a source may have other Arrow types. `plain` maps a schema to supported types, and `fitted` casts batches to
that schema: exactly, or with an error.
"""

from __future__ import annotations

import base64
from collections import Counter
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.model import TableName, TableSchema, is_reserved
from penstock.sources.produced_table import ProducedTable

__all__ = ["RowTable", "fitted", "plain"]

_WIDENED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
_SUPPORTED = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32()),
}
_DIGITS = 38


class RowTable(ProducedTable):
    """A table with its columns and its key; a table without a key is append-only."""

    key: tuple[str, ...] = ()
    columns: str
    """An Arrow schema, serialized."""

    @classmethod
    def of(cls, name: TableName, columns: pa.Schema, key: tuple[str, ...] = ()) -> Self:
        """Return a table with `plain` columns; raise `DefiniteError` for invalid columns or an invalid key."""
        _check_names(name, columns, key)
        kept = pa.schema([pa.field(field.name, field.type) for field in columns])
        return cls(name=name, key=key, columns=base64.b64encode(kept.serialize().to_pybytes()).decode("ascii"))

    def table_schema(self) -> TableSchema:
        """Return the columns and the key."""
        return TableSchema(self.name, pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.columns))), self.key)


def plain(columns: pa.Schema) -> pa.Schema:
    """Return the schema with supported types; raise `DefiniteError` for a type that no table supports."""
    return pa.schema([pa.field(field.name, _plain_type(field.type, field.name)) for field in columns])


def fitted(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows cast to these columns, with null for missing ones; raise `pa.ArrowInvalid` for a lossy cast."""
    arrays = []
    for field in columns:
        at = rows.schema.get_field_index(field.name)
        arrays.append(pa.nulls(len(rows), field.type) if at < 0 else pc.cast(rows.column(at), field.type, safe=True))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _plain_type(found: pa.DataType, column: str) -> pa.DataType:
    if found in _SUPPORTED:
        return found
    if found in _WIDENED:
        return _WIDENED[found]
    if pa.types.is_timestamp(found):
        return pa.timestamp("us", "UTC" if found.tz else None)
    if pa.types.is_decimal(found) and found.precision <= _DIGITS and 0 <= found.scale <= found.precision:
        return pa.decimal128(found.precision, found.scale)
    if pa.types.is_fixed_size_binary(found):
        return pa.binary()
    return _plain_nested(found, column)


def _plain_nested(found: pa.DataType, column: str) -> pa.DataType:
    if pa.types.is_dictionary(found):
        return _plain_type(found.value_type, column)
    if pa.types.is_map(found):
        return pa.map_(_plain_type(found.key_type, column), _plain_type(found.item_type, column))
    if pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found):
        return pa.list_(_plain_type(found.value_type, column))
    if pa.types.is_struct(found) and found.num_fields:
        return pa.struct([pa.field(field.name, _plain_type(field.type, column)) for field in found])
    message = f'column "{column}" has the unsupported type {found}'
    raise DefiniteError(message, "Remove the column, or write it with another type.")


def _check_names(table: TableName, columns: pa.Schema, key: tuple[str, ...]) -> None:
    """Raise `DefiniteError` for reserved names, names that differ only in case, and an invalid key."""
    hint = "Rename the column in the data."
    if not len(columns):
        message = f"table {table} has no columns"
        raise DefiniteError(message, "A table requires at least one column.")
    for name, count in Counter(name.lower() for name in columns.names).items():
        if count > 1:
            message = f'table {table} has {count} columns "{name}" that differ only in case'
            raise DefiniteError(message, hint)
        if is_reserved(name):
            message = f'table {table} has a column with the reserved name "{name}"'
            raise DefiniteError(message, hint)
    for name in key:
        if name not in columns.names:
            message = f'key column "{name}" does not exist in table {table}'
            raise DefiniteError(message, f"The columns are {', '.join(columns.names)}.")
        if pa.types.is_nested(columns.field(name).type):
            message = f'column "{name}" of table {table} cannot be part of the key: its type is nested'
            raise DefiniteError(message, "Use columns of scalar types.")
