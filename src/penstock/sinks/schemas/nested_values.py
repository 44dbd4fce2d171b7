"""Convert the values of nested Arrow arrays: apply a function to all scalars below structs, lists and maps.

Keys of maps have a function of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.formats.binary_encoder import list_items, list_offsets

__all__ = ["Convert", "convert_values", "converted_field", "is_list", "plain_field", "plain_values"]

Convert = Callable[[pa.Array, pa.Field], pa.Array]
"""Returns the converted values of a field that is not nested, or the values themselves."""


def convert_values(values: pa.Array, field: pa.Field, convert: Convert, keys: Convert | None = None) -> pa.Array:
    """Return values with all scalars converted, and keys of maps by `keys`; what does not change is not copied."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        distinct = convert_values(values.dictionary, plain_field(field), convert, keys)
        is_same = distinct is values.dictionary
        return values if is_same else pa.DictionaryArray.from_arrays(values.indices, distinct)
    if pa.types.is_struct(kind):
        return _structs(values, field, convert, keys)
    if pa.types.is_map(kind):
        return _maps(values, field, convert, keys)
    if is_list(kind):
        items = list_items(values, values.values)
        changed = convert_values(items, field.type.value_field, convert, keys)
        if changed is items:
            return values
        inner = field.type.value_field.with_type(changed.type)
        made = pa.large_list(inner)
        return pa.LargeListArray.from_arrays(pa.array(list_offsets(values)), changed, type=made, mask=_mask(values))
    return convert(values, field)


def is_list(kind: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def converted_field(field: pa.Field, convert: Convert, keys: Convert | None = None) -> pa.Field:
    """Return a field with the type of its converted values, without dictionaries."""
    plain = plain_field(field)
    return plain.with_type(convert_values(pa.nulls(0, plain.type), plain, convert, keys).type)


def plain_field(field: pa.Field) -> pa.Field:
    """Return a field whose values are not in dictionaries, at any depth."""
    kind = field.type
    if pa.types.is_dictionary(kind):
        return plain_field(field.with_type(kind.value_type))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([plain_field(one) for one in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(kind.key_field, plain_field(kind.item_field)))
    return field.with_type(pa.list_(plain_field(kind.value_field))) if pa.types.is_list(kind) else field


def plain_values(values: pa.Array) -> pa.Array:
    """Return values of which none are in dictionaries, except inside lists and maps."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return plain_values(values.dictionary.take(values.indices))
    if not pa.types.is_struct(kind) or plain_field(pa.field("", kind)).type == kind:
        return values
    children = [plain_values(values.field(place)) for place in range(kind.num_fields)]
    fields = [field.with_type(child.type) for field, child in zip(kind, children, strict=True)]
    return pa.StructArray.from_arrays(children, fields=fields, mask=_mask(values))


def _structs(values: pa.StructArray, field: pa.Field, convert: Convert, keys: Convert | None) -> pa.StructArray:
    fields = list(field.type)
    children = [values.field(place) for place in range(len(fields))]
    changed = [convert_values(child, one, convert, keys) for child, one in zip(children, fields, strict=True)]
    if all(new is old for new, old in zip(changed, children, strict=True)):
        return values
    typed = [one.with_type(child.type) for one, child in zip(fields, changed, strict=True)]
    return pa.StructArray.from_arrays(changed, fields=typed, mask=_mask(values))


def _maps(values: pa.MapArray, field: pa.Field, convert: Convert, keys: Convert | None) -> pa.MapArray:
    old_keys, items = list_items(values, values.keys), list_items(values, values.items)
    new_keys = old_keys if keys is None else keys(old_keys, field.type.key_field)
    new_items = convert_values(items, field.type.item_field, convert, keys)
    if new_keys is old_keys and new_items is items:
        return values
    made = pa.map_(field.type.key_field.with_type(new_keys.type), field.type.item_field.with_type(new_items.type))
    offsets = pa.array(list_offsets(values).astype("int32"))
    return pa.MapArray.from_arrays(offsets, new_keys, new_items, type=made, mask=_mask(values))


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
