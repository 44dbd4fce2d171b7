"""Types of columns that gain fields at the end of a struct."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

__all__ = ["added_paths", "grown_type"]


def grown_type(ours: pa.DataType, theirs: pa.DataType, path: str, obstacles: list[str]) -> pa.DataType:
    """Return our type with the fields that theirs adds; what differs otherwise is noted as an obstacle."""
    if pa.types.is_struct(ours) and pa.types.is_struct(theirs):
        return _struct(ours, theirs, path, obstacles)
    if pa.types.is_list(ours) and pa.types.is_list(theirs):
        return pa.list_(pa.field("element", grown_type(ours.value_type, theirs.value_type, f"{path}[]", obstacles)))
    if pa.types.is_map(ours) and pa.types.is_map(theirs):
        value = grown_type(ours.item_type, theirs.item_type, f"{path}.value", obstacles)
        return pa.map_(ours.key_field, pa.field("value", value))
    if ours != theirs:
        obstacles.append(f'field "{path}": {theirs} in the newer schema, {ours} in the reader\'s')
    return ours


def added_paths(before: pa.DataType, after: pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the fields that a grown type has beyond the earlier one."""
    if pa.types.is_struct(before):
        known = {field.name: field.type for field in before}
        for field in after:
            below = f"{path}.{field.name}" if path else field.name
            if field.name in known:
                yield from added_paths(known[field.name], field.type, below)
            else:
                yield below
    elif pa.types.is_list(before):
        yield from added_paths(before.value_type, after.value_type, f"{path}[]")
    elif pa.types.is_map(before):
        yield from added_paths(before.item_type, after.item_type, f"{path}.value")


def _struct(ours: pa.StructType, theirs: pa.StructType, path: str, obstacles: list[str]) -> pa.StructType:
    others = {field.name: field.type for field in theirs}
    fields = []
    for field in ours:
        below = f"{path}.{field.name}" if path else field.name
        other = others.pop(field.name, field.type)
        fields.append(pa.field(field.name, grown_type(field.type, other, below, obstacles)))
    return pa.struct([*fields, *(pa.field(name, kind) for name, kind in others.items())])
