r"""Arrays → list; int2vector, oidvector → list.

::

    text      {1,NULL,"a \"quoted\" one"}     delimited by commas (box arrays by semicolons)
    binary    dimensions, flags, element type; per dimension size and lower bound; per element size and bytes

An empty array is an empty list, and null elements stay null. A list has neither several dimensions nor a lower bound
other than 1: such values are rejected. The two vector types are printed as numbers separated by spaces, and count
from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import KEEP_TEXT, BadValueError, Bytes, ColumnCodec, Ints, Mask
from penstock.sources.postgres.types.column import lists
from penstock.sources.postgres.types.kernel import (
    FINE,
    I32,
    IN8,
    IN32,
    STRICT,
    U8,
    Kernel,
    blame,
    inlined,
    kernel,
    start,
)
from penstock.sources.postgres.types.nested import (
    CHANGED,
    copy_quoted,
    elements,
    first_bad_row,
    found_elements,
    int32_at,
    total_bytes,
)

__all__ = ["array", "vector"]

_Elements = tuple[Bytes, Ints, Ints, Ints]
"""The elements of a column of arrays: `buf`, `off`, `length`, and the offsets that map elements to rows."""

_MALFORMED, _DIMENSIONS, _BOUND, _ELEMENT = range(4)
_REASONS = (
    "malformed array",
    f"array of several dimensions, which a list cannot hold{KEEP_TEXT}",
    f"array that does not begin at 1, which a list cannot hold{KEEP_TEXT}",
    CHANGED,
)

_SPECIAL = np.zeros(256, np.bool_)
"""Bytes that are not allowed in an unquoted element."""
_SPECIAL[list(b'"\\{}')] = True


@inlined
def _is_null(buf: Bytes, at: int) -> Any:
    """Return whether the four bytes are NULL, in either case."""
    return buf[at] | 32 == 110 and buf[at + 1] | 32 == 117 and buf[at + 2] | 32 == 108 and buf[at + 3] | 32 == 108


@kernel(nb.int64(IN8, IN32, IN32, nb.uint8, U8, I32, U8, I32, I32))
def _split_text(
    buf: Bytes,
    off: Ints,
    length: Ints,
    comma: int,
    found: Bytes,
    offsets: Ints,
    data: Bytes,
    to_off: Ints,
    to_length: Ints,
) -> int:
    n: Any = np.int64(0)
    to: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r] - 1  # the closing brace
        if length[r] < 2 or buf[at] != 123 or buf[end] != 125:
            is_array = length[r] > 1 and buf[at] == 91 and buf[end] == 125
            if not is_array or not found.size:
                return blame(r, _BOUND if is_array else _MALFORMED)
            found[r] = 1
            continue
        at += 1
        if at == end:
            continue
        if buf[at] == 123:
            if not found.size:
                return blame(r, _DIMENSIONS)
            found[r] = 1
            continue
        while True:
            first = to
            null = False
            if at < end and buf[at] == 34:
                at, to = copy_quoted(buf, at + 1, end, data, to, False)
            else:
                # An inline loop, not a function: this is the hot path.
                while at < end and buf[at] != comma and not _SPECIAL[buf[at]]:
                    data[to] = buf[at]
                    to += 1
                    at += 1
                null = to - first == 4 and _is_null(data, first)
                if to == first:
                    at = np.int64(-1)
            if at < 0 or (at < end and buf[at] != comma):
                return blame(r, _MALFORMED)
            to_off[n] = first
            to_length[n] = -1 if null else to - first
            n += 1
            if at == end:
                break
            at += 1
    offsets[length.size] = n
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, U8, I32, U8, I32, I32))
def _split_vector(
    buf: Bytes, off: Ints, length: Ints, _found: Bytes, offsets: Ints, _data: Bytes, to_off: Ints, to_length: Ints
) -> int:
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] <= 0:
            continue
        at = start(off, r)
        end = at + length[r]
        while True:
            first = at
            while at < end and buf[at] != 32:
                at += 1
            if at == first:
                return blame(r, _MALFORMED)
            to_off[n] = first
            to_length[n] = at - first
            n += 1
            if at == end:
                break
            at += 1
    offsets[length.size] = n
    return FINE


@inlined
def _header(buf: Bytes, at: int, size: int, bound: int, element: int) -> tuple[Any, int]:
    """Return the declared number of elements, and the reason why the array is bad (or FINE)."""
    if size < 12:
        return np.int64(0), _MALFORMED
    dimensions = int32_at(buf, at)
    if int32_at(buf, at + 8) & 0xFFFFFFFF != element:
        return np.int64(0), _ELEMENT
    if dimensions == 0:
        return np.int64(0), FINE if size == 12 else _MALFORMED
    if dimensions < 0 or dimensions > 6 or size < 12 + 8 * dimensions:
        return np.int64(0), _MALFORMED
    if dimensions > 1:
        return np.int64(0), _DIMENSIONS
    count = int32_at(buf, at + 12)
    if count < 0 or 4 * count > size - 20:
        return np.int64(0), _MALFORMED
    return count, FINE if int32_at(buf, at + 16) == bound else _BOUND


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, nb.int64, U8, I32, I32, I32))
def _split_binary(
    buf: Bytes,
    off: Ints,
    length: Ints,
    bound: int,
    element: int,
    found: Bytes,
    offsets: Ints,
    to_off: Ints,
    to_length: Ints,
) -> int:
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        count, reason = _header(buf, at, end - at, bound, element)
        if reason != FINE:
            if not found.size or (reason != _DIMENSIONS and reason != _BOUND):
                return blame(r, reason)
            found[r] = 1
            continue
        at += 20 if end - at > 12 else 12
        for _ in range(count):
            if end - at < 4:
                return blame(r, _MALFORMED)
            size = int32_at(buf, at)
            at += 4
            if size < -1 or size > end - at:
                return blame(r, _MALFORMED)
            to_off[n] = at
            to_length[n] = size
            n += 1
            at += max(size, 0)
        if at != end:
            return blame(r, _MALFORMED)
    offsets[length.size] = n
    return FINE


def _codec(oid: int, element: ColumnCodec, split_text: Kernel, options: tuple[int, ...], bound: int) -> ColumnCodec:
    arrow = pa.list_(element.arrow)

    def split_texts(buf: Bytes, off: Ints, length: Ints, found: Bytes) -> _Elements:
        size = total_bytes(length)
        offsets, data = np.zeros(length.size + 1, np.int32), np.empty(size, np.uint8)
        to_off, to_length = (
            np.empty(size // 2 + 1 + length.size, np.int32),
            np.empty(size // 2 + 1 + length.size, np.int32),
        )
        BadValueError.check(split_text(buf, off, length, *options, found, offsets, data, to_off, to_length), _REASONS)
        n, source = offsets[-1], data if split_text is _split_text else buf
        return source, to_off[:n], to_length[:n], offsets

    def split_binaries(buf: Bytes, off: Ints, length: Ints, found: Bytes) -> _Elements:
        size = total_bytes(length) // 4 + 1
        offsets = np.zeros(length.size + 1, np.int32)
        to_off, to_length = np.empty(size, np.int32), np.empty(size, np.int32)
        BadValueError.check(_split_binary(buf, off, length, bound, oid, found, offsets, to_off, to_length), _REASONS)
        n = offsets[-1]
        return buf, to_off[:n], to_length[:n], offsets

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        found = split_texts(buf, off, length, STRICT)
        return lists(arrow, found[-1], elements(element.text, *found), length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        found = split_binaries(buf, off, length, STRICT)
        return lists(arrow, found[-1], elements(element.binary, *found), length)

    def unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
        marks = np.zeros(length.size, np.uint8)
        parts = (split_texts if is_text else split_binaries)(buf, off, length, marks)
        of_elements = found_elements(element.unrepresentable, *parts, is_text)
        found = marks.view(np.bool_)
        return found if of_elements is None else found | of_elements

    return ColumnCodec(arrow, first_bad_row(text), first_bad_row(binary), element.wants_text, unrepresentable)


def array(oid: int, element: ColumnCodec, delimiter: str = ",") -> ColumnCodec:
    """Return the codec of arrays whose elements have this type OID and codec."""
    return _codec(oid, element, _split_text, (ord(delimiter),), 1)


def vector(oid: int, element: ColumnCodec) -> ColumnCodec:
    """Return the codec of int2vector and oidvector."""
    return _codec(oid, element, _split_vector, (), 0)
