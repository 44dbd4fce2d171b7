"""What types made of other types share.

::

    (buf, off, length) ── a kernel splits values ──▶ (buf', off', length') of its parts ── their codec ──▶ Arrow

The parts of a binary value are slices of it: `buf'` is `buf`. The parts of a text value stand unquoted in a buffer of
their own, which never needs more bytes than the values themselves. A part is decoded like any column, so nesting needs
nothing more: parts may be nested themselves.

A part that is bad makes its outer row bad. Parts are decoded one kind after the other, so the first error found need
not be that of the first bad row: `earliest` decodes the rows before it again until none of them is bad.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.sources.postgres.types.codec import BadValue, Bytes, Decode, Ints
from penstock.sources.postgres.types.column import fits
from penstock.sources.postgres.types.kernel import inlined, unrolled

__all__ = ["CHANGED", "earliest", "elements", "quoted", "room", "size_at"]

CHANGED = (
    "the type has changed upstream since its capture began; run ALTER SOURCES … RETRY TABLE to copy the table anew"
)


@inlined
def size_at(buf: Bytes, at: int) -> Any:
    """The signed 32-bit number that stands here."""
    value = np.int64(buf[at]) << 24 | np.int64(buf[at + 1]) << 16 | np.int64(buf[at + 2]) << 8 | np.int64(buf[at + 3])
    return (value ^ 0x80000000) - 0x80000000


@unrolled
def quoted(buf: Bytes, at: Any, end: int, data: Bytes, to: Any, doubled: bool) -> tuple[Any, Any]:
    """Copy what stands in quotes, from behind the opening one; return the places behind the closing one and the copy.

    A backslash takes the next byte as it is, and so does a quote before another one where quotes are `doubled`. The
    first place is -1 if no quote closes it.
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


def room(length: Ints) -> int:
    """The bytes of all values together."""
    return fits(int(np.maximum(length, 0).sum(dtype=np.int64)))


def earliest(decode: Decode) -> Decode:
    """The same, but the `BadValue` that it raises is that of the first bad row."""

    def decode_earliest(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        rows, found = length.size, None
        while True:
            try:
                array = decode(buf, off[:rows], length[:rows])
            except BadValue as bad:
                rows, found = bad.row, bad
            else:
                break
        if found is not None:
            raise found
        return array

    return decode_earliest


def elements(decode: Decode, buf: Bytes, off: Ints, length: Ints, offsets: Ints) -> pa.Array:
    """Decode the elements of lists; `offsets` says which row an element belongs to."""
    try:
        return decode(buf, off, length)
    except BadValue as bad:
        row = int(np.searchsorted(offsets[1:], bad.row, side="right"))
        raise BadValue(row, bad.reason) from bad
