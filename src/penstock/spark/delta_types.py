"""Values as a Parquet file of a Delta table has them, in the Arrow types asked for.

A file may have other names than the table (column mapping), inside of structs too, and types that mean the same:
timestamps without the zone that they are in, lists and maps whose inner fields are called otherwise. All of it is taken
apart down to plain columns and put together anew; buffers are shared wherever nothing differs.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["as_wanted", "physical_name"]

_PHYSICAL = b"delta.columnMapping.physicalName"


def physical_name(field: pa.Field) -> str:
    """Return what a column, or a field of a struct, is called in files."""
    name = (field.metadata or {}).get(_PHYSICAL)
    return field.name if name is None else bytes(name).decode()


def as_wanted(values: pa.Array, known: pa.DataType, wanted: pa.DataType) -> pa.Array:
    """Return values of a file, of a type that the Delta log calls `known`, as `wanted`."""
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
        as_wanted(there[physical_name(old)], old.type, new.type)
        if old is not None and physical_name(old) in there
        else pa.nulls(len(values), new.type)
        for old, new in zip(fields, wanted, strict=True)
    ]
    return pa.StructArray.from_arrays(children, fields=list(wanted), mask=values.is_null())


def _list(values: pa.ListArray, known: pa.ListType, wanted: pa.ListType) -> pa.Array:
    offsets, (items,) = _parts(values, values.values)
    items = as_wanted(items, known.value_type, wanted.value_type)
    return pa.ListArray.from_arrays(offsets, items, type=wanted, mask=_nulls(values))


def _map(values: pa.MapArray, known: pa.MapType, wanted: pa.MapType) -> pa.Array:
    offsets, (keys, items) = _parts(values, values.keys, values.items)
    keys = as_wanted(keys, known.key_type, wanted.key_type)
    items = as_wanted(items, known.item_type, wanted.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=wanted, mask=_nulls(values))


def _parts(values: pa.ListArray | pa.MapArray, *children: pa.Array) -> tuple[pa.Array, list[pa.Array]]:
    """Return offsets that begin at 0, and what they are about: the array may be a slice."""
    first, last = values.offsets[0], values.offsets[-1].as_py()
    return pc.subtract(values.offsets, first), [child.slice(first.as_py(), last - first.as_py()) for child in children]


def _nulls(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
