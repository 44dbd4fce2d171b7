"""Protobuf files of Arrow fields: one message for a record, in proto3.

| Arrow | Protobuf |
|---|---|
| BOOLEAN, FLOAT, DOUBLE, STRING, BINARY | bool, float, double, string, bytes |
| SMALLINT, INT; BIGINT | int32; int64 |
| DECIMAL | string: all digits |
| DATE, TIMESTAMP_NTZ | string: ``2026-11-17``, ``2026-11-17T09:30:00.123456`` |
| TIMESTAMP | google.protobuf.Timestamp |
| STRUCT | a message |
| ARRAY | repeated; an array in an array or map is a message with the repeated field ``items`` |
| MAP | map |
| a nullable field | optional |

Fields are numbered in the order of columns. Columns are only added at the end, so numbers never change. Protobuf has no
null in place of an array or a map: it is written as an empty one. An array or a map with null inside cannot be written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.sinks.schemas.connect import connect_metadata, physical_field, physical_values, unsupported_type
from penstock.sinks.schemas.nested_values import convert_values, converted_field, is_list, plain_values
from penstock.sinks.schemas.record_names import distinct_names, record_name, valid_full_name, valid_name

__all__ = ["message_name", "proto_text", "protobuf_values"]

_PLAIN = {
    pa.bool_(): "bool",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32()), "int32"),
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    **dict.fromkeys((pa.string(), pa.large_string()), "string"),
    **dict.fromkeys((pa.binary(), pa.large_binary()), "bytes"),
}
_TIMESTAMP = "google.protobuf.Timestamp"
_ITEMS = "items"


def message_name(record: pa.Field) -> str:
    """Return the full name of the message of a record."""
    return valid_full_name(connect_metadata(record).name or record.name)


def proto_text(record: pa.Field) -> str:
    """Return the file with the message of a record; it is the first one, and messages of its fields are inside it."""
    field = _wrapped(converted_field(physical_field(record), _as_text))
    package, _, simple = message_name(record).rpartition(".")
    body = "\n".join(_message(field, simple, ""))
    needed = 'import "google/protobuf/timestamp.proto";\n\n' if _TIMESTAMP in body else ""
    named = f"package {package};\n\n" if package else ""
    return f'syntax = "proto3";\n\n{named}{needed}{body}\n'


def _message(field: pa.Field, name: str, indent: str) -> Iterator[str]:
    if not field.type.num_fields:
        raise unsupported_type(field, "a Protobuf message")
    names = distinct_names((one.name for one in field.type), _json_name, "the Protobuf message")
    yield f"{indent}message {name} {{"
    taken = {name, *names.values()}
    defined: dict[str, pa.DataType] = {}
    for number, one in enumerate(field.type, 1):
        inner, kind = _nested(one), ""
        if inner is not None:
            kind = _free_name(
                record_name(inner) or record_name(one) or _camel_case(names[one.name]), inner, defined, taken
            )
            if kind not in defined:
                defined[kind] = inner.type
                yield from _message(inner, kind, f"{indent}  ")
        yield f"{indent}  {_declaration(one, kind)} {names[one.name]} = {number};"
    yield f"{indent}}}"


def _free_name(name: str, field: pa.Field, defined: Mapping[str, pa.DataType], taken: set[str]) -> str:
    """Return the name of a nested message: of the one with the same type, or one that nothing else has."""
    free = valid_name(name)
    while free in taken or not defined.get(free, field.type).equals(field.type):
        free += "_"
    return free


def _nested(field: pa.Field) -> pa.Field | None:
    """Return the structs of a field, of its items, or of its values."""
    kind = field.type
    if is_list(kind):
        field = kind.value_field
    elif pa.types.is_map(kind):
        field = kind.item_field
    return field if pa.types.is_struct(field.type) else None


def _declaration(field: pa.Field, message: str) -> str:
    kind = field.type
    if is_list(kind):
        return f"repeated {_type(kind.value_field, message)}"
    if pa.types.is_map(kind):
        return f"map<{_type(kind.key_field, '')}, {_type(kind.item_field, message)}>"
    is_message = pa.types.is_struct(kind) or pa.types.is_timestamp(kind)
    return f"{'optional ' if field.nullable and not is_message else ''}{_type(field, message)}"


def _type(field: pa.Field, message: str) -> str:
    if pa.types.is_struct(field.type):
        return message
    if pa.types.is_timestamp(field.type):
        return _TIMESTAMP
    if field.type not in _PLAIN:
        raise unsupported_type(field, "a Protobuf message")
    return _PLAIN[field.type]


def _camel_case(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Message"


def _json_name(name: str) -> str:
    """Return the name of a field in JSON, which must be distinct too."""
    valid = valid_name(name)
    return valid[:1] + _camel_case(f"_{valid}")[1:] if valid[:1] != "_" else _camel_case(valid)


# -- values ------------------------------------------------------------------------------------------------------------


def protobuf_values(values: pa.Array, record: pa.Field) -> pa.Array:
    """Return values with the column types of the message."""
    physical = physical_values(plain_values(values), record)
    field = record.with_type(physical.type)
    return _wrapped_values(convert_values(physical, field, _as_text))


def _as_text(values: pa.Array, _field: pa.Field) -> pa.Array:
    kind = values.type
    if pa.types.is_decimal128(kind):
        return _digits(values)
    if pa.types.is_date32(kind):
        return values.cast(pa.string())
    if pa.types.is_timestamp(kind):
        micros = values.cast(pa.timestamp("us", kind.tz))
        return micros if kind.tz else pc.replace_substring(micros.cast(pa.string()), " ", "T", max_replacements=1)
    return values


def _digits(values: pa.Decimal128Array) -> pa.StringArray:
    """Return decimals as text; Arrow writes those near zero with an exponent."""
    scale = values.type.scale
    whole = pa.Array.from_buffers(pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset)
    signed = whole.cast(pa.string())
    if scale <= 0:
        return values.cast(pa.decimal128(38, 0)).cast(pa.string())
    digits = pc.utf8_lpad(pc.utf8_ltrim(signed, "-"), scale + 1, "0")
    sign = pc.if_else(pc.starts_with(signed, "-"), "-", "")
    parts = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale, None)
    return pc.binary_join_element_wise(sign, parts[0], ".", parts[1], "")


def _wrapped(field: pa.Field) -> pa.Field:
    """Return a field in which arrays that are items or values are messages with the array as their only field."""
    return field.with_type(_wrapped_values(pa.nulls(0, field.type)).type)


def _wrapped_values(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind):
        children = [_wrapped_values(values.field(place)) for place in range(kind.num_fields)]
        fields = [one.with_type(child.type) for one, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
    if pa.types.is_map(kind):
        filled = _without_nulls(values)
        if filled.items.null_count:
            message = "a map has null as a value, which Protobuf cannot represent"
            raise DefiniteError(message, "Exclude the column, or use another format.")
        items = _message_of_list(_wrapped_values(filled.items))
        made = pa.map_(kind.key_field, kind.item_field.with_type(items.type))
        return pa.MapArray.from_arrays(filled.offsets, filled.keys, items, type=made)
    if is_list(kind):
        filled = _without_nulls(values)
        items = _message_of_list(_wrapped_values(filled.values))
        made = pa.list_(kind.value_field.with_type(items.type))
        return pa.ListArray.from_arrays(filled.offsets.cast(pa.int32()), items, type=made)
    return values


def _message_of_list(items: pa.Array) -> pa.Array:
    if not is_list(items.type) and not pa.types.is_map(items.type):
        return items
    return pa.StructArray.from_arrays([items], fields=[pa.field(_ITEMS, items.type)])


def _without_nulls(values: pa.Array) -> pa.Array:
    return pc.fill_null(values, pa.scalar([], values.type)) if values.null_count else values
