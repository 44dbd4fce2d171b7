"""Shared by nested types.

::

    (buf, off, length) ── a kernel splits values ──▶ (buf', off', length') of the parts ── their codec ──▶ Arrow

The parts of a binary value are slices of it: `buf'` is `buf`. The parts of a text value are unquoted into a separate
buffer, which never needs more bytes than the values themselves. A part is decoded like any column, so parts may be
nested themselves without further code.

A bad part makes its outer row bad. Parts are decoded one after the other, so the first error found need not be that of
the first bad row: `first_bad_row` decodes the rows before it again until none of them is bad.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.sources.postgres.types.codec import BadValueError, Bytes, Decode, Find, Ints, Mask
from penstock.sources.postgres.types.column import check_size
from penstock.sources.postgres.types.kernel import inlined, unrolled

__all__ = ["CHANGED", "copy_quoted", "elements", "first_bad_row", "found_elements", "int32_at", "total_bytes"]

CHANGED = (
    "the type changed upstream since capture began; run ALTER SOURCES … RETRY TABLE to take a new snapshot of the table"
)


@inlined
def int32_at(buf: Bytes, at: int) -> Any:
    """Return the signed 32-bit number at an offset."""
    value = np.int64(buf[at]) << 24 | np.int64(buf[at + 1]) << 16 | np.int64(buf[at + 2]) << 8 | np.int64(buf[at + 3])
    return (value ^ 0x80000000) - 0x80000000


@unrolled
def copy_quoted(buf: Bytes, at: Any, end: int, data: Bytes, to: Any, doubled: bool) -> tuple[Any, Any]:
    """Copy a quoted text, from after its opening quote; return the offsets after the closing quote and after the copy.

    A backslash escapes the next byte, and so does a quote before another one if quotes are `doubled`. The first offset
    is -1 if there is no closing quote.
    """
    while at < end:
        byte = buf[at]
        if byte == 34:
            if not (doubled and at + 1 < end and buf[at + 1] == 34):
                return at + 1, to
            at += 1
        elif byte == 92:
            at += 1
            if at >= end:
                break
        data[to] = buf[at]
        to += 1
        at += 1
    return np.int64(-1), to


def total_bytes(length: Ints) -> int:
    """Return the total size of all values."""
    return check_size(int(np.maximum(length, 0).sum(dtype=np.int64)))


def first_bad_row(decode: Decode) -> Decode:
    """Wrap a decoder so that the `BadValueError` it raises is that of the first bad row."""

    def decode_to_first_bad_row(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        rows, found = length.size, None
        while True:
            try:
                array = decode(buf, off[:rows], length[:rows])
            except BadValueError as bad:
                rows, found = bad.row, bad
            else:
                break
        if found is not None:
            raise found
        return array

    return decode_to_first_bad_row


def found_elements(find: Find | None, buf: Bytes, off: Ints, length: Ints, offsets: Ints, is_text: bool) -> Mask | None:
    """Return which rows have an element that cannot be represented; None if there are no such elements."""
    if find is None:
        return None
    before = np.concatenate([[0], np.cumsum(find(buf, off, length, is_text))])
    return np.asarray(before[offsets[1:]] > before[offsets[:-1]])


def elements(decode: Decode, buf: Bytes, off: Ints, length: Ints, offsets: Ints) -> pa.Array:
    """Decode the elements of lists; `offsets` maps elements to rows."""
    try:
        return decode(buf, off, length)
    except BadValueError as bad:
        row = int(np.searchsorted(offsets[1:], bad.row, side="right"))
        raise BadValueError(row, bad.reason) from bad
