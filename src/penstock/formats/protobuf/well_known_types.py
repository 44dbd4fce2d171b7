"""Protobuf's well-known types, which every schema may import and no registry stores."""

from __future__ import annotations

from penstock.formats.protobuf.descriptor import ProtoFile
from penstock.formats.protobuf.proto_parser import parse_proto

__all__ = ["TIMESTAMP_NAME", "WRAPPERS", "well_known_types"]

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

TIMESTAMP_NAME = "google.protobuf.Timestamp"
WRAPPERS = frozenset(f"google.protobuf.{name}" for name in _WRAPPED)


def well_known_types() -> ProtoFile:
    """Return the well-known types as one file."""
    wrappers = "\n".join(f"message {name} {{ {kind} value = 1; }}" for name, kind in _WRAPPED.items())
    return parse_proto(_OTHERS + wrappers)
