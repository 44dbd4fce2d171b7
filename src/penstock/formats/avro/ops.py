"""What nodes of an Avro plan do, and where its tables are: numbers that `plan` writes and `kernel` reads."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.compiling import constant
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
    "MEMBER",
    "MOST_DEPTH",
    "MOST_EMPTY_ITEMS",
    "NODE",
    "NULL",
    "OP",
    "RECORD",
    "REFUSED",
    "SECOND",
    "STRING",
    "THIRD",
    "TIMES_1000",
    "UNION",
    "Plan",
]


class Plan(NamedTuple):
    """How to read messages of one or several writer schemas, by address."""

    nodes: int
    """A row per node: its op, its column, and three numbers of the op's own."""
    links: int
    """Lists of nodes, columns and places of symbols, to which nodes point."""
    constants: int
    """Default values in Avro's encoding, and names of symbols."""
    end: int
    """Where the constants end."""


NODE = 64
"""How many bytes a node has in the table: those of the numbers below, and some that are not used."""
OP, COLUMN, FIRST, SECOND, THIRD = (constant(WORD * place) for place in range(5))

# Each line names what stands in the three numbers of a node.
NULL = 0
RECORD = 1  # first link, count of links
UNION = 2  # first link, count of links
ARRAY = 3  # item, least bytes of an item, -
MAP = 4  # value, least bytes of a pair, key
MEMBER = 5  # first link (columns of the other members), count of links, the value's node
CONSTANT = 6  # place in the constants, node
REFUSED = 7  # message
# From here on: values that hold no others.
BOOLEAN = 10
INT = 11  # conversion
LONG = 12  # conversion
FLOAT = 13  # conversion
DOUBLE = 14
STRING = 15
BYTES = 16
FIXED = 17  # -, -, width
ENUM = 18  # first link (pairs of place and size), count of symbols
DECIMAL = 19  # precision, scale
DECIMAL_FIXED = 20  # precision, scale, width

# Conversions.
AS_IS = 0
TIMES_1000 = 1
EXACT_DOUBLE = 2
EXACT_FLOAT = 3
FLOAT_TO_DOUBLE = 4

MOST_DEPTH = 100
MOST_EMPTY_ITEMS = 1 << 20
"""An array of values that take no bytes can claim any count: this is the most that is believed."""
