"""Numbers of a Protobuf plan: kinds of fields as descriptors number them, ours beyond these; how often; presence."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.compiling import constant
from penstock.formats.memory import WORD

__all__ = [
    "BEGIN",
    "BOOL",
    "BYTES",
    "COLUMN",
    "DOUBLE",
    "EIGHT",
    "EMPTY",
    "END",
    "ENUM",
    "EXPLICIT",
    "FIELD",
    "FIXED32",
    "FIXED64",
    "FLOAT",
    "FOUR",
    "GROUP",
    "IMPLICIT",
    "INSIDE",
    "INT32",
    "INT64",
    "KIND",
    "KINDS",
    "MAP",
    "MESSAGE",
    "MOST_DEPTH",
    "NAME",
    "NAMES",
    "OFTEN",
    "PRESENCE",
    "REPEATED",
    "REQUIRED",
    "SFIXED32",
    "SFIXED64",
    "SINGLE",
    "SINT32",
    "SINT64",
    "SIZED",
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

FIELD = 64
"""How many bytes a field has in the plan: those of the numbers below."""
TAG, KIND, COLUMN, OFTEN, PRESENCE, INSIDE, NAMES, VALUES = (constant(place) for place in range(0, FIELD, WORD))
"""Number and wire type as in a tag; kind; column; how often; presence; message, or first name; count of names; the
column of its values (if it is repeated, of the items)."""
NAME = 24
"""How many bytes a name of an enumeration has in the plan."""


class Plan(NamedTuple):
    """How to read messages of one or several descriptors, by address."""

    messages: int
    """A row per message: its first field and how many it has."""
    fields: int
    """A row per field."""
    names: int
    """A row per name of an enumeration: its number, and its place and size in the constants."""
    constants: int


VARINT, EIGHT, SIZED, BEGIN, END, FOUR = range(6)
"""Wire types: how long a value is."""


def wire_type(kind: int) -> int:
    """Return the wire type of a kind; repeated numbers may also come packed, as bytes."""
    if kind in (DOUBLE, FIXED64, SFIXED64):
        return EIGHT
    if kind in (FLOAT, FIXED32, SFIXED32):
        return FOUR
    return SIZED if kind in (STRING, BYTES, MESSAGE) or kind > SINT64 else VARINT
