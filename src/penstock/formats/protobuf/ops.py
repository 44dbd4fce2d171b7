"""Constants of a Protobuf plan: field types as descriptors number them, and our own; cardinality; presence; layout."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.jit import constant
from penstock.formats.memory import WORD

__all__ = [
    "BOOL",
    "BYTES",
    "CARDINALITY",
    "CHILD",
    "COLUMN",
    "DOUBLE",
    "EGROUP",
    "EMPTY",
    "ENUM",
    "EXPLICIT",
    "FIELD",
    "FIXED32",
    "FIXED64",
    "FLOAT",
    "GROUP",
    "I32",
    "I64",
    "IMPLICIT",
    "INT32",
    "INT64",
    "KIND",
    "KINDS",
    "LEN",
    "MAP",
    "MAX_DEPTH",
    "MESSAGE",
    "NAME",
    "NAMES",
    "ONEOF",
    "PRESENCE",
    "REPEATED",
    "REQUIRED",
    "SFIXED32",
    "SFIXED64",
    "SGROUP",
    "SINGLE",
    "SINT32",
    "SINT64",
    "STRING",
    "TAG",
    "TIMESTAMP",
    "TIMESTAMP_EXACT",
    "UINT32",
    "UINT64",
    "VALUES",
    "VARINT",
    "WRAPPED",
    "Plan",
    "wire_type",
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
# Messages that do not become a struct.
WRAPPED = 20  # the one field within it
TIMESTAMP = 21  # microseconds; nanoseconds are truncated
TIMESTAMP_EXACT = 22  # microseconds; nanoseconds are an error
EMPTY = 23  # a message without fields: whether it is present

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

# Cardinality.
SINGLE = 0
REPEATED = 1
MAP = 2

# Presence: the meaning of a missing field.
IMPLICIT = 0  # its default value: zero, empty
EXPLICIT = 1  # null
REQUIRED = 2  # an error

MAX_DEPTH = 100

FIELD = 72
"""Size of a field in the plan, in bytes: the numbers below."""
TAG, KIND, COLUMN, CARDINALITY, PRESENCE, CHILD, NAMES, VALUES, ONEOF = (
    constant(place) for place in range(0, FIELD, WORD)
)
"""Field number and wire type, as in a tag; type; column; cardinality; presence; message, or first name; number of
names; the column of its values (for a repeated field, of the items); the number of its ``oneof`` in the message, or 0.
"""
NAME = 24
"""Size of an enum name in the plan, in bytes."""


class Plan(NamedTuple):
    """How to decode messages of one or several descriptors, by address."""

    messages: int
    """A row per message: its first field and its number of fields."""
    fields: int
    """A row per field."""
    names: int
    """A row per enum name: its number, and its offset and size in the constants."""
    constants: int


VARINT, I64, LEN, SGROUP, EGROUP, I32 = range(6)
"""Wire types, which determine the size of a value."""


def wire_type(kind: int) -> int:
    """Return the wire type of a field type; repeated numbers may also be packed, as bytes."""
    if kind in (DOUBLE, FIXED64, SFIXED64):
        return I64
    if kind in (FLOAT, FIXED32, SFIXED32):
        return I32
    return LEN if kind in (STRING, BYTES, MESSAGE) or kind > SINT64 else VARINT
