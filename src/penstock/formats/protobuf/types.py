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

The well-known types come from Google's library: every schema may import them, and no registry stores them.
"""

from __future__ import annotations

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from penstock.errors import DefiniteError
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoField, ProtoFile, ProtoMessage, convert_file

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

_TIMESTAMP_NAME = "google.protobuf.Timestamp"
_WRAPPERS = frozenset(one.full_name for one in wrappers_pb2.DESCRIPTOR.message_types_by_name.values())
_WELL_KNOWN = (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)


def well_known_types() -> list[ProtoFile]:
    """Return the files of the well-known types."""
    serialized = (one.DESCRIPTOR.serialized_pb for one in _WELL_KNOWN)
    return [convert_file(descriptor_pb2.FileDescriptorProto.FromString(one)) for one in serialized]
