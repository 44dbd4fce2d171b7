"""Encode rows as Avro, a column at a time: the counterpart of `decoder`, for the column types of `types`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.formats.avro.schema import AvroType
from penstock.formats.avro.types import members
from penstock.formats.binary_encoder import (
    ByteStrings,
    FixedWidth,
    Indexed,
    Part,
    Present,
    Repeated,
    Sequences,
    Varints,
    dictionary_parts,
    encode_messages,
    list_items,
    list_offsets,
    zigzag,
)
from penstock.formats.decimal_bytes import decimal_bytes, fixed_decimal_bytes
from penstock.formats.jit import Ints

__all__ = ["encode_avro"]

_MILLIS = ("timestamp-millis", "local-timestamp-millis")


def encode_avro(schema: AvroType, values: pa.Array, header: bytes = b"") -> pa.LargeBinaryArray:
    """Return the values as messages with this schema, each after a header.

    The values have the column type of the schema (see `types`); null where the schema does not allow it raises
    `DefiniteError`.
    """
    return encode_messages(values, lambda block: _part(schema, block, ""), header)


def _part(schema: AvroType, values: pa.Array, path: str) -> Part:
    if pa.types.is_dictionary(values.type):
        return _dictionary(schema, values, path)
    if schema.kind == "union":
        return _union(schema, values, path)
    if values.null_count:
        message = f"column {path or 'value'!r} is null, but its Avro type {schema} does not allow null"
        raise DefiniteError(message, "Register a schema in which the field is a union with null.")
    match schema.kind:
        case "record":
            parts = [
                _part(one.type, values.field(place), f"{path}.{one.name}" if path else one.name)
                for place, one in enumerate(schema.fields)
            ]
            return Sequences(parts, len(values))
        case "array":
            return _blocks(values, _part(schema.inner, list_items(values, values.values), f"{path}[]"))
        case "map":
            keys = _lengths_and_bytes(list_items(values, values.keys))
            entries = _part(schema.inner, list_items(values, values.items), f"{path}.value")
            return _blocks(values, Sequences([keys, entries], len(entries.sizes)))
    return _scalars(schema, values)


def _dictionary(schema: AvroType, values: pa.DictionaryArray, path: str) -> Part:
    """Encode each value of a dictionary once; it is copied for the rows that have it."""
    distinct, indexes = dictionary_parts(values)
    return Indexed(encode_messages(distinct, lambda block: _part(schema, block, path)), indexes)


def _scalars(schema: AvroType, values: pa.Array) -> Part:
    if schema.logical == "decimal" and pa.types.is_decimal(values.type):
        if schema.kind == "fixed":
            return ByteStrings(fixed_decimal_bytes(values, schema.size))
        return _lengths_and_bytes(decimal_bytes(values))
    match schema.kind:
        case "null":
            return Sequences([], len(values))
        case "boolean":
            return FixedWidth(values.to_numpy(zero_copy_only=False).astype(np.uint8))
        case "float" | "double":
            width = "<f4" if schema.kind == "float" else "<f8"
            return FixedWidth(values.to_numpy(zero_copy_only=False).astype(width))
        case "string" | "bytes":
            return _lengths_and_bytes(values)
        case "fixed":
            return ByteStrings(_of_size(schema, values))
        case "enum":
            return Varints(zigzag(_symbols(schema, values)))
    return Varints(zigzag(_numbers(schema, values)))


def _numbers(schema: AvroType, values: pa.Array) -> Ints:
    if pa.types.is_timestamp(values.type):
        numbers: Ints = values.cast(pa.int64()).to_numpy()
        return numbers // 1000 if schema.logical in _MILLIS else numbers
    plain = values.cast(pa.int32()) if pa.types.is_date32(values.type) else values
    return np.asarray(plain.to_numpy(zero_copy_only=False), np.int64)


def _union(schema: AvroType, values: pa.Array, path: str) -> Part:
    """Write the number of the branch, then its value. Members of a union with several are the fields of a struct."""
    found = members(schema)
    columns = [values] if len(found) == 1 else [values.field(place) for place in range(len(found))]
    branches = np.full(len(values), _null_branch(schema), np.int64)
    parts: list[Part] = []
    outer = values.is_valid().to_numpy(zero_copy_only=False)
    for member, column in zip(found, columns, strict=True):
        rows = np.flatnonzero(outer & column.is_valid().to_numpy(zero_copy_only=False))
        branches[rows] = schema.branches.index(member)
        parts.append(Present(_part(member, column.take(pa.array(rows)), path), rows, len(values)))
    if np.any(branches < 0):
        message = f"column {path or 'value'!r} is null, but its Avro type does not allow null"
        raise DefiniteError(message, "Register a schema in which the field is a union with null.")
    return Sequences([Varints(zigzag(branches)), *parts], len(values))


def _null_branch(schema: AvroType) -> int:
    kinds = [branch.kind for branch in schema.branches]
    return kinds.index("null") if "null" in kinds else -1


def _blocks(lists: pa.Array, items: Part) -> Part:
    """Write lists as one block each: the number of items, the items, and a zero. An empty list is the zero alone."""
    offsets = list_offsets(lists)
    counts = np.diff(offsets)
    filled = np.flatnonzero(counts)
    count = Present(Varints(zigzag(counts[filled])), filled, len(counts))
    return Sequences([count, Repeated(items, offsets), Varints(np.zeros(len(counts), np.int64))], len(counts))


def _lengths_and_bytes(values: pa.Array) -> Part:
    content = ByteStrings(values)
    return Sequences([Varints(zigzag(content.sizes)), content], len(values))


def _of_size(schema: AvroType, values: pa.Array) -> pa.Array:
    if pc.any(pc.not_equal(pc.binary_length(values), schema.size)).as_py():
        message = f"a value does not have the {schema.size} bytes of Avro type {schema}"
        raise DefiniteError(message, "Register a schema with type bytes.")
    return values


def _symbols(schema: AvroType, values: pa.Array) -> Ints:
    found = pc.index_in(values, pa.array(schema.symbols, values.type))
    if found.null_count:
        message = f"a value is not a symbol of Avro type {schema}"
        raise DefiniteError(message, "Register a schema with these symbols, or with type string.")
    numbers: Ints = found.cast(pa.int64()).to_numpy()
    return numbers
