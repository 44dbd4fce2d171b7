"""Columns of JSON values as parts of messages (`penstock.formats.binary_encoder`).

Each part writes a text that all rows share, and then the value of the row, or ``null``. The text is everything between
the value of the previous column and this one, so a message is written in one pass over its columns, into its place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.formats.binary_encoder import Part, bytes_and_offsets, copy_bytes
from penstock.formats.jit import Ints, compiled, inner

__all__ = ["Base64", "Integers", "Strings", "Texts"]

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]

_NULL_BYTES = 4
_LETTERS = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
"""The characters that have a short escape, and its second character."""
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


def _escape_table() -> _Bytes:
    r"""Return for each byte 0, the second character of its short escape, or 1: it is written as ``\u00xx``."""
    table = np.zeros(256, np.uint8)
    table[:32] = 1
    for code, letter in _LETTERS.items():
        table[code] = ord(letter)
    return table


_ESCAPES = _escape_table()


class _Column(Part):
    """Values after a text."""

    def __init__(self, before: bytes, values: pa.Array) -> None:
        self._before = np.frombuffer(before, np.uint8)
        self._valid: _Flags = np.ones(0, np.bool_)
        """Empty if no value is null."""
        if values.null_count:
            self._valid = np.array(values.is_valid().to_numpy(zero_copy_only=False))


class Integers(_Column):
    """Signed integers."""

    def __init__(self, before: bytes, values: pa.Array) -> None:
        super().__init__(before, values)
        filled = values.fill_null(0) if values.null_count else values
        self._values = np.array(filled.to_numpy(zero_copy_only=False), np.int64)
        self.sizes = _integer_sizes(len(before), self._values, self._valid)

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write text and number of each row."""
        _write_integers(self._before, self._values, self._valid, starts, out)


class Strings(_Column):
    """Texts that are written as JSON strings, with escapes where they are needed."""

    def __init__(self, before: bytes, values: pa.Array) -> None:
        super().__init__(before, values)
        self._data, self._offsets = bytes_and_offsets(values)
        self.sizes = _string_sizes(len(before), self._data, self._offsets, self._valid, _ESCAPES)

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write text and string of each row."""
        _write_strings(
            self._before, self._data, self._offsets, self._valid, _ESCAPES, _HEXADECIMAL, self.sizes, starts, out
        )


class Base64(_Column):
    """Bytes, as strings in base64 with padding."""

    def __init__(self, before: bytes, values: pa.Array) -> None:
        super().__init__(before, values)
        self._data, self._offsets = bytes_and_offsets(values)
        self.sizes = len(before) + 2 + (np.diff(self._offsets) + 2) // 3 * 4
        _set_null_sizes(self.sizes, self._valid, len(before))

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write text and base64 of each row."""
        _write_base64(self._before, self._data, self._offsets, self._valid, _BASE64, starts, out)


class Texts(_Column):
    """Texts without characters that need an escape: they are JSON, or they are in JSON between quotes."""

    def __init__(self, before: bytes, values: pa.Array, *, quoted: bool = False) -> None:
        super().__init__(before, values)
        self._data, self._offsets = bytes_and_offsets(values)
        self._quoted = quoted
        self.sizes = np.diff(self._offsets) + (len(before) + 2 * quoted)
        _set_null_sizes(self.sizes, self._valid, len(before))

    def write(self, starts: Ints, out: _Bytes) -> None:
        """Write both texts of each row."""
        _write_texts(self._before, self._data, self._offsets, self._valid, self._quoted, starts, out)


def _set_null_sizes(sizes: Ints, valid: _Flags, before: int) -> None:
    if len(valid):
        sizes[~valid] = before + _NULL_BYTES


# -- kernels -----------------------------------------------------------------------------------------------------------


@inner
def _is_null(valid: Any, index: Any) -> Any:
    return len(valid) > 0 and not valid[index]


@inner
def _write_null(out: Any, at: Any) -> None:
    out[at], out[at + 1], out[at + 2], out[at + 3] = 110, 117, 108, 108


@inner
def _magnitude(value: Any) -> Any:
    return np.uint64(0) - np.uint64(value) if value < 0 else np.uint64(value)


@compiled
def _integer_sizes(before: int, values: Ints, valid: _Flags) -> Ints:
    sizes = np.empty(len(values), np.int64)
    for index in range(len(values)):
        if _is_null(valid, index):
            sizes[index] = before + 4
            continue
        rest = _magnitude(values[index])
        size = before + 1 + (values[index] < 0)
        while rest >= np.uint64(10000):
            rest //= np.uint64(10000)
            size += 4
        sizes[index] = size + (rest >= np.uint64(10)) + (rest >= np.uint64(100)) + (rest >= np.uint64(1000))
    return sizes


@compiled
def _write_integers(before: _Bytes, values: Ints, valid: _Flags, starts: Ints, out: _Bytes) -> None:
    digits = np.empty(20, np.uint8)
    for index in range(len(values)):
        at = copy_bytes(before, 0, len(before), out, starts[index])
        if _is_null(valid, index):
            _write_null(out, at)
            continue
        if values[index] < 0:
            out[at] = 45
            at += 1
        rest, count = _magnitude(values[index]), 0
        while True:
            quotient = rest // np.uint64(10)
            digits[count] = np.uint8(48) + np.uint8(rest - quotient * np.uint64(10))
            rest = quotient
            count += 1
            if rest == np.uint64(0):
                break
        for place in range(count):
            out[at + place] = digits[count - 1 - place]


@compiled
def _string_sizes(before: int, data: _Bytes, offsets: Ints, valid: _Flags, escapes: _Bytes) -> Ints:
    sizes = np.empty(len(offsets) - 1, np.int64)
    for index in range(len(offsets) - 1):
        if _is_null(valid, index):
            sizes[index] = before + 4
            continue
        place, end, special = np.uint64(offsets[index]), np.uint64(offsets[index + 1]), False
        while place < end:
            value = data[place]
            special |= (value < 32) | (value == 34) | (value == 92)
            place += np.uint64(1)
        size = before + 2 + offsets[index + 1] - offsets[index]
        if special:
            place = np.uint64(offsets[index])
            while place < end:
                escape = escapes[data[place]]
                size += (escape != 0) + 4 * (escape == 1)
                place += np.uint64(1)
        sizes[index] = size
    return sizes


@compiled
def _write_strings(
    before: _Bytes,
    data: _Bytes,
    offsets: Ints,
    valid: _Flags,
    escapes: _Bytes,
    hexadecimal: _Bytes,
    sizes: Ints,
    starts: Ints,
    out: _Bytes,
) -> None:
    for index in range(len(offsets) - 1):
        at = copy_bytes(before, 0, len(before), out, starts[index])
        if _is_null(valid, index):
            _write_null(out, at)
            continue
        out[at] = 34
        if sizes[index] == len(before) + 2 + offsets[index + 1] - offsets[index]:
            at = copy_bytes(data, offsets[index], offsets[index + 1], out, at + 1)
        else:
            at = _write_escaped(data, offsets[index], offsets[index + 1], escapes, hexadecimal, out, at + 1)
        out[at] = 34


@inner
def _write_escaped(data: Any, begin: Any, end: Any, escapes: Any, hexadecimal: Any, out: Any, start: Any) -> Any:
    """Write characters, with escapes; return the place after them."""
    place, stop, at = np.uint64(begin), np.uint64(end), np.uint64(start)
    while place < stop:
        value = data[place]
        escape = escapes[value]
        if escape == 0:
            out[at] = value
            at += np.uint64(1)
        elif escape != 1:
            out[at] = 92
            out[at + np.uint64(1)] = escape
            at += np.uint64(2)
        else:
            at = np.uint64(_write_control_character(value, hexadecimal, out, np.int64(at)))
        place += np.uint64(1)
    return np.int64(at)


@inner
def _write_control_character(value: Any, hexadecimal: Any, out: Any, at: Any) -> Any:
    out[at], out[at + 1], out[at + 2], out[at + 3] = 92, 117, 48, 48
    out[at + 4], out[at + 5] = hexadecimal[value >> 4], hexadecimal[value & 15]
    return at + 6


@compiled
def _write_base64(
    before: _Bytes, data: _Bytes, offsets: Ints, valid: _Flags, alphabet: _Bytes, starts: Ints, out: _Bytes
) -> None:
    for index in range(len(offsets) - 1):
        at = copy_bytes(before, 0, len(before), out, starts[index])
        if _is_null(valid, index):
            _write_null(out, at)
            continue
        out[at] = 34
        at += 1
        place, end = offsets[index], offsets[index + 1]
        while place < end:
            left = end - place
            group = np.uint32(data[place]) << np.uint32(16)
            if left > 1:
                group |= np.uint32(data[place + 1]) << np.uint32(8)
            if left > 2:
                group |= np.uint32(data[place + 2])
            out[at] = alphabet[(group >> np.uint32(18)) & np.uint32(63)]
            out[at + 1] = alphabet[(group >> np.uint32(12)) & np.uint32(63)]
            out[at + 2] = alphabet[(group >> np.uint32(6)) & np.uint32(63)] if left > 1 else 61
            out[at + 3] = alphabet[group & np.uint32(63)] if left > 2 else 61
            at += 4
            place += 3
        out[at] = 34


@compiled
def _write_texts(
    before: _Bytes, data: _Bytes, offsets: Ints, valid: _Flags, quoted: bool, starts: Ints, out: _Bytes
) -> None:
    for index in range(len(offsets) - 1):
        at = copy_bytes(before, 0, len(before), out, starts[index])
        if _is_null(valid, index):
            _write_null(out, at)
            continue
        if quoted:
            out[at] = 34
            at += 1
        at = copy_bytes(data, offsets[index], offsets[index + 1], out, at)
        if quoted:
            out[at] = 34
