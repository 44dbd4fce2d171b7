"""Tables of the kinds that make rows themselves: their columns are Arrow's, of types that hold everywhere downstream.

What a kind finds outside may have other types. `plain` says which columns become of them, and `fitted` turns batches
into these: exactly, or not at all.
"""

from __future__ import annotations

import base64
from collections import Counter
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.model import RESERVED, TableName, TableSchema
from penstock.sources.interface import ProducedTable

__all__ = ["RowTable", "fitted", "plain"]

_WIDER = {
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
_SAME = {
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.binary(), pa.date32()),
}
_DIGITS = 38


class RowTable(ProducedTable):
    """A table by its columns and its key; without a key, rows are only ever added."""

    key: tuple[str, ...] = ()
    columns: str
    """An Arrow schema, serialised."""

    @classmethod
    def of(cls, name: TableName, columns: pa.Schema, key: tuple[str, ...] = ()) -> Self:
        """Make it of `plain` columns; refuse what no table here can be."""
        _check_names(name, columns, key)
        kept = pa.schema([pa.field(field.name, field.type) for field in columns])
        return cls(name=name, key=key, columns=base64.b64encode(kept.serialize().to_pybytes()).decode("ascii"))

    def table_schema(self) -> TableSchema:
        """Return columns and key."""
        return TableSchema(self.name, pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.columns))), self.key)


def plain(columns: pa.Schema) -> pa.Schema:
    """Return the columns that these become; a column that none here can hold is a `DefiniteError`."""
    return pa.schema([pa.field(field.name, _plain_type(field.type, field.name)) for field in columns])


def fitted(rows: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Return rows with exactly these columns: those that are missing are null; `pa.ArrowInvalid` where one loses."""
    arrays = []
    for field in columns:
        at = rows.schema.get_field_index(field.name)
        arrays.append(pa.nulls(len(rows), field.type) if at < 0 else pc.cast(rows.column(at), field.type, safe=True))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _plain_type(found: pa.DataType, column: str) -> pa.DataType:
    if found in _SAME:
        return found
    if found in _WIDER:
        return _WIDER[found]
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
    message = f"the column {column} has the type {found}, which no table here holds"
    raise DefiniteError(message, "Leave it out, or write it as another type.")


def _check_names(table: TableName, columns: pa.Schema, key: tuple[str, ...]) -> None:
    """Names of columns are the same in any case, and none is ours."""
    hint = "Name them otherwise where they are made."
    if not len(columns):
        message = f"{table} would have no columns"
        raise DefiniteError(message, "There has to be at least one.")
    for name, count in Counter(name.lower() for name in columns.names).items():
        if count > 1:
            message = f"{table} has {count} columns {name}, which differ by their case at most"
            raise DefiniteError(message, hint)
        if name in RESERVED:
            message = f"{table} has a column {name}, which is a name of ours"
            raise DefiniteError(message, hint)
    for name in key:
        if name not in columns.names:
            message = f"{table} has no column {name}, which is to be in its key"
            raise DefiniteError(message, f"Its columns are: {', '.join(columns.names)}.")
        if pa.types.is_nested(columns.field(name).type):
            message = f"the column {name} of {table} cannot be in its key: it is made of others"
            raise DefiniteError(message, "Choose columns of plain values.")
