"""Column types of Protobuf fields, and the well-known types.

| Protobuf | column |
|---|---|
| int32, sint32, sfixed32 | INT |
| int64, sint64, sfixed64, uint32, fixed32 | BIGINT |
| uint64, fixed64 | DECIMAL(20,0) |
| bool, float, double, string, bytes | BOOLEAN, FLOAT, DOUBLE, STRING, BINARY |
| enum | STRING: the name, or the number if it has no name |
| message | STRUCT; a message without fields is BOOLEAN: whether it is present |
| repeated, map | ARRAY, MAP |
| google.protobuf.Timestamp | TIMESTAMP |
| google.protobuf.Int64Value and the other wrappers | the value, or null |

A field without presence (proto3, neither optional nor in a oneof) is never null: a missing field is zero or empty. All
other fields are null if missing; of a oneof at most one is not null. Recursive messages and groups are not supported.

The well-known types are defined here: every schema may import them, and no registry stores them.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoFile, ProtoMessage
from penstock.formats.protobuf.proto_parser import parse_proto

__all__ = ["field_kind", "is_map", "protobuf_columns", "type_of", "well_known_types"]

_PLAIN = {
    ops.INT32: pa.int32(),
    ops.SINT32: pa.int32(),
    ops.SFIXED32: pa.int32(),
    ops.INT64: pa.int64(),
    ops.SINT64: pa.int64(),
    ops.SFIXED64: pa.int64(),
    ops.UINT32: pa.int64(),
    ops.FIXED32: pa.int64(),
    ops.UINT64: pa.decimal128(20, 0),
    ops.FIXED64: pa.decimal128(20, 0),
    ops.BOOL: pa.bool_(),
    ops.FLOAT: pa.float32(),
    ops.DOUBLE: pa.float64(),
    ops.STRING: pa.string(),
    ops.BYTES: pa.binary(),
    ops.ENUM: pa.string(),
    ops.EMPTY: pa.bool_(),
    ops.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def protobuf_columns(pool: Pool, message: ProtoMessage) -> pa.StructType:
    """Return the columns of a message."""
    return _struct(pool, message, ())


def type_of(pool: Pool, field: ProtoField, scope: str) -> str:
    """Return the full name of a field's message or enum."""
    return pool.resolve(field.type_name, scope)


def field_kind(pool: Pool, field: ProtoField, scope: str) -> int:
    """Return the type as which a field is decoded."""
    if field.kind not in (ops.MESSAGE, ops.GROUP, ops.ENUM):
        return field.kind
    if field.kind == ops.GROUP:
        message = f"Protobuf message {scope} has a group, {field.name!r}, which is not supported"
        raise DefiniteError(message, "Use FORMAT BYTES, or replace the group with a message.")
    name = type_of(pool, field, scope)
    if name in pool.enums:
        return ops.ENUM
    if name == _TIMESTAMP_NAME:
        return ops.TIMESTAMP
    if name in _WRAPPERS:
        return ops.WRAPPED
    return ops.MESSAGE if pool.message(name).fields else ops.EMPTY


def is_map(pool: Pool, field: ProtoField, scope: str) -> bool:
    """Return whether a field is a map: repeated entries."""
    return field.repeated and field.kind == ops.MESSAGE and _names_entry(pool, type_of(pool, field, scope))


def _names_entry(pool: Pool, name: str) -> bool:
    return name in pool.messages and pool.messages[name].map_entry


def _struct(pool: Pool, message: ProtoMessage, above: tuple[str, ...]) -> pa.StructType:
    if message.name in above:
        what = f"Protobuf message {message.name} is recursive, which columns do not support"
        raise DefiniteError(what, "Use FORMAT BYTES, or specify a descriptor without the recursive field.")
    if not message.fields:
        what = f"Protobuf message {message.name} has no fields, but a table requires at least one column"
        raise DefiniteError(what, "Specify a message with fields.")
    within = (*above, message.name)
    return pa.struct([pa.field(one.name, _column(pool, one, message.name, within)) for one in message.fields])


def _column(pool: Pool, field: ProtoField, scope: str, above: tuple[str, ...]) -> pa.DataType:
    if is_map(pool, field, scope):
        entry = pool.message(type_of(pool, field, scope))
        key, value = (_single(pool, one, entry.name, above) for one in _pair(entry))
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
    kind = _single(pool, field, scope, above)
    return pa.list_(pa.field("element", kind)) if field.repeated else kind


def _pair(entry: ProtoMessage) -> list[ProtoField]:
    return sorted(entry.fields, key=lambda one: one.number)


def _single(pool: Pool, field: ProtoField, scope: str, above: tuple[str, ...]) -> pa.DataType:
    kind = field_kind(pool, field, scope)
    if kind == ops.MESSAGE:
        return _struct(pool, pool.message(type_of(pool, field, scope)), above)
    if kind == ops.WRAPPED:
        [inner] = pool.message(type_of(pool, field, scope)).fields
        return _PLAIN[inner.kind]
    return _PLAIN[kind]


# -- well-known types --------------------------------------------------------------------------------------------------

_WRAPPED = {
    "DoubleValue": "double",
    "FloatValue": "float",
    "Int64Value": "int64",
    "UInt64Value": "uint64",
    "Int32Value": "int32",
    "UInt32Value": "uint32",
    "BoolValue": "bool",
    "StringValue": "string",
    "BytesValue": "bytes",
}
_OTHERS = """
syntax = "proto3";
package google.protobuf;
message Timestamp { int64 seconds = 1; int32 nanos = 2; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message Any { string type_url = 1; bytes value = 2; }
message Empty { }
message FieldMask { repeated string paths = 1; }
message Struct { map<string, Value> fields = 1; }
message Value {
  oneof kind {
    NullValue null_value = 1; double number_value = 2; string string_value = 3; bool bool_value = 4;
    Struct struct_value = 5; ListValue list_value = 6;
  }
}
enum NullValue { NULL_VALUE = 0; }
message ListValue { repeated Value values = 1; }
"""

_TIMESTAMP_NAME = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(f"google.protobuf.{name}" for name in _WRAPPED)


def well_known_types() -> ProtoFile:
    """Return the well-known types as one file."""
    wrappers = "\n".join(f"message {name} {{ {kind} value = 1; }}" for name, kind in _WRAPPED.items())
    return parse_proto(_OTHERS + wrappers)
