"""Numbers of a Protobuf plan: kinds of fields as descriptors number them, ours beyond these; how often; presence."""

from __future__ import annotations

__all__ = [
    "BOOL",
    "BYTES",
    "DOUBLE",
    "EMPTY",
    "ENUM",
    "EXPLICIT",
    "FIXED32",
    "FIXED64",
    "FLOAT",
    "GROUP",
    "IMPLICIT",
    "INT32",
    "INT64",
    "KINDS",
    "MAP",
    "MESSAGE",
    "MOST_DEPTH",
    "REPEATED",
    "REQUIRED",
    "SFIXED32",
    "SFIXED64",
    "SINGLE",
    "SINT32",
    "SINT64",
    "STRING",
    "TIMESTAMP",
    "TIMESTAMP_EXACT",
    "UINT32",
    "UINT64",
    "WRAPPED",
]

# FieldDescriptorProto.Type
DOUBLE = 1
FLOAT = 2
INT64 = 3
UINT64 = 4
INT32 = 5
FIXED64 = 6
FIXED32 = 7
BOOL = 8
STRING = 9
GROUP = 10
MESSAGE = 11
BYTES = 12
UINT32 = 13
ENUM = 14
SFIXED32 = 15
SFIXED64 = 16
SINT32 = 17
SINT64 = 18
# Messages that become something else than a struct.
WRAPPED = 20  # the one field within it
TIMESTAMP = 21  # microseconds; nanoseconds are cut off
TIMESTAMP_EXACT = 22  # microseconds; nanoseconds are refused
EMPTY = 23  # a message without fields: whether it is there

KINDS = {
    "double": DOUBLE,
    "float": FLOAT,
    "int64": INT64,
    "uint64": UINT64,
    "int32": INT32,
    "fixed64": FIXED64,
    "fixed32": FIXED32,
    "bool": BOOL,
    "string": STRING,
    "bytes": BYTES,
    "uint32": UINT32,
    "sfixed32": SFIXED32,
    "sfixed64": SFIXED64,
    "sint32": SINT32,
    "sint64": SINT64,
}

# How often a field may come.
SINGLE = 0
REPEATED = 1
MAP = 2

# What it means that it did not.
IMPLICIT = 0  # its default value: zero, empty
EXPLICIT = 1  # null
REQUIRED = 2  # a problem

MOST_DEPTH = 100
