"""Types whose Arrow form is the text that Postgres prints: the text form as it is, the binary form printed by a kernel.

Text is copied and not checked: nothing is parsed, so nothing can be lost. A printing kernel checks all that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValue, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gathered, variable_width
from penstock.sources.postgres.types.hexadecimal import DIGIT
from penstock.sources.postgres.types.kernel import Kernel, inlined

__all__ = ["TOO_LONG", "Room", "as_printed", "each", "printable", "put_hex", "put_number", "put_two"]

TOO_LONG = f"values whose text takes more than 2 GB{KEEP_TEXT}"
_MOST = 2**31 - 1

Room: TypeAlias = Callable[[Bytes, Ints, Ints], int]
"""How many bytes the printed values need at most."""


@inlined
def put_number(data: Bytes, end: int, value: Any) -> Any:
    """Write an unsigned number in decimal; return the place behind it."""
    size = 1
    rest = value // np.uint64(10)
    while rest:
        size += 1
        rest //= np.uint64(10)
    for k in range(size - 1, -1, -1):
        data[end + k] = 48 + value % np.uint64(10)
        value //= np.uint64(10)
    return end + size


@inlined
def put_two(data: Bytes, end: int, value: int) -> Any:
    """Write a number below 100 as two digits; return the place behind them."""
    data[end] = 48 + value // 10
    data[end + 1] = 48 + value % 10
    return end + 2


@inlined
def put_hex(data: Bytes, end: int, value: int) -> Any:
    """Write a byte as two hex digits; return the place behind them."""
    data[end] = DIGIT[(value >> 4) & 15]
    data[end + 1] = DIGIT[value & 15]
    return end + 2


def printable(needed: int, length: Ints) -> int:
    """`needed` if 32-bit offsets reach it; else the largest value is to blame."""
    if needed > _MOST:
        raise BadValue(int(np.argmax(length)), TOO_LONG)
    return needed


def each(width: int) -> Room:
    """So many bytes for every value."""

    def room(_buf: Bytes, _off: Ints, length: Ints) -> int:
        return length.size * width

    return room


def as_printed(print_all: Kernel, room: Room, reasons: Sequence[str]) -> ColumnCodec:
    """The codec of a type that stays text; `print_all(buf, off, length, offsets, data)` prints its binary form."""

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return gathered(pa.string(), buf, off, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        offsets = np.empty(length.size + 1, np.int32)
        data = np.empty(printable(room(buf, off, length), length), np.uint8)
        BadValue.check(print_all(buf, off, length, offsets, data), reasons)
        return variable_width(pa.string(), offsets, data, length)

    return ColumnCodec(pa.string(), text, binary)
