"""Opcodes and table layout of an Avro plan: constants that `plan` writes and `kernel` reads."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.jit import constant
from penstock.formats.memory import WORD

__all__ = [
    "ARRAY",
    "AS_IS",
    "BOOLEAN",
    "BYTES",
    "COLUMN",
    "CONSTANT",
    "DECIMAL",
    "DECIMAL_FIXED",
    "DOUBLE",
    "ENUM",
    "EXACT_DOUBLE",
    "EXACT_FLOAT",
    "FIRST",
    "FIXED",
    "FLOAT",
    "FLOAT_TO_DOUBLE",
    "INT",
    "LONG",
    "MAP",
    "MAX_DEPTH",
    "MAX_EMPTY_ITEMS",
    "MEMBER",
    "NODE",
    "NULL",
    "OP",
    "RECORD",
    "REJECTED",
    "SECOND",
    "STRING",
    "THIRD",
    "TIMES_1000",
    "UNION",
    "Plan",
]


class Plan(NamedTuple):
    """How to decode messages of one or several writer schemas, by address."""

    nodes: int
    """A row per node: its opcode, its column, and three operands."""
    links: int
    """Lists of nodes, columns and offsets of symbols that nodes refer to."""
    constants: int
    """Default values in Avro's encoding, and names of symbols."""
    end: int
    """The end of the constants."""


NODE = 64
"""Size of a node in the table, in bytes: the numbers below, and padding."""
OP, COLUMN, FIRST, SECOND, THIRD = (constant(WORD * place) for place in range(5))

# The comments list the three operands of each opcode.
NULL = 0
RECORD = 1  # first link, count of links
UNION = 2  # first link, count of links
ARRAY = 3  # item, minimum size of an item, -
MAP = 4  # value, minimum size of a pair, key
MEMBER = 5  # first link (columns of the other members), count of links, the value's node
CONSTANT = 6  # offset in the constants, node
REJECTED = 7  # message
# Values that contain no others.
BOOLEAN = 10
INT = 11  # conversion
LONG = 12  # conversion
FLOAT = 13  # conversion
DOUBLE = 14
STRING = 15
BYTES = 16
FIXED = 17  # -, -, width
ENUM = 18  # first link (pairs of offset and size), count of symbols
DECIMAL = 19  # precision, scale
DECIMAL_FIXED = 20  # precision, scale, width

# Conversions.
AS_IS = 0
TIMES_1000 = 1
EXACT_DOUBLE = 2
EXACT_FLOAT = 3
FLOAT_TO_DOUBLE = 4

MAX_DEPTH = 100
MAX_EMPTY_ITEMS = 1 << 20
"""Limit for an array of values that take no bytes, because such an array can claim any count."""
