"""Types whose Arrow form is the text that Postgres prints: text is copied, the binary form is printed by a kernel.

Text is copied and not checked: nothing is parsed, so nothing can be lost. A printing kernel checks everything it reads,
and writes numbers in decimal and bytes in hex with the functions and tables of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes, variable_width
from penstock.sources.postgres.types.kernel import inlined

__all__ = [
    "DIGIT",
    "NIBBLE",
    "TOO_LONG",
    "Print",
    "Room",
    "check_text_size",
    "fixed_room",
    "put_hex",
    "put_number",
    "put_two_digits",
    "text_output_codec",
]

NIBBLE = np.full(256, 0xFF, np.uint8)
"""The value of a hex digit of either case; 0xFF for any other byte."""
NIBBLE[list(b"0123456789abcdef")] = range(16)
NIBBLE[list(b"ABCDEF")] = range(10, 16)

DIGIT = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
"""The lowercase digit of a value below 16."""

TOO_LONG = f"values whose text takes more than 2 GB{KEEP_TEXT}"
_MOST = 2**31 - 1

Room: TypeAlias = Callable[[Bytes, Ints, Ints], int]
"""Return the maximum number of bytes of the printed values."""
Print: TypeAlias = Callable[[Bytes, Ints, Ints, Ints, Bytes], int]
"""Print binary values: `(buf, off, length, offsets, data)`; return the verdict of a kernel."""


@inlined
def put_number(data: Bytes, end: int, value: Any) -> Any:
    """Write an unsigned number in decimal; return the offset after it."""
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
def put_two_digits(data: Bytes, end: int, value: int) -> Any:
    """Write a number below 100 as two digits; return the offset after them."""
    data[end] = 48 + value // 10
    data[end + 1] = 48 + value % 10
    return end + 2


@inlined
def put_hex(data: Bytes, end: int, value: int) -> Any:
    """Write a byte as two hex digits; return the offset after them."""
    data[end] = DIGIT[(value >> 4) & 15]
    data[end + 1] = DIGIT[value & 15]
    return end + 2


def check_text_size(needed: int, length: Ints) -> int:
    """Return `needed` if it fits 32-bit offsets; otherwise blame the largest value."""
    if needed > _MOST:
        raise BadValueError(int(np.argmax(length)), TOO_LONG)
    return needed


def fixed_room(width: int) -> Room:
    """Return a `Room` of so many bytes per value."""

    def room(_buf: Bytes, _off: Ints, length: Ints) -> int:
        return length.size * width

    return room


def text_output_codec(print_all: Print, room: Room, reasons: Sequence[str]) -> ColumnCodec:
    """Return the codec of a type stored as text."""

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return gather_bytes(pa.string(), buf, off, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        offsets = np.empty(length.size + 1, np.int32)
        data = np.empty(check_text_size(room(buf, off, length), length), np.uint8)
        BadValueError.check(print_all(buf, off, length, offsets, data), reasons)
        return variable_width(pa.string(), offsets, data, length)

    return ColumnCodec(pa.string(), text, binary)
