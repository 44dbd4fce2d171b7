"""The format of ``COPY … (FORMAT binary)``: a kernel that splits its messages into columns."""

from __future__ import annotations

import numpy as np
from numba import types

from penstock.kernel_cache import cached_njit

__all__ = ["COUNT", "HEADER", "split_rows"]

HEADER = 4
"""The bytes before a message, and before a value: its length."""
COUNT = 2
"""The bytes of the number of columns in a row."""
_SIGNATURE = np.frombuffer(b"PGCOPY\n\xff\r\n\0", np.uint8)

_U8 = types.Array(types.uint8, 1, "C")
_I32 = types.Array(types.int32, 2, "C")


@cached_njit(types.UniTuple(types.int64, 2)(_U8, types.int64, types.int64, _I32, _I32), nogil=True)
def split_rows(buf, at, end, off, length):  # type: ignore[no-untyped-def]
    """Split whole COPY messages into columns; return rows and end offset, or -1 and the offset of the malformed row."""
    columns, most = off.shape
    r = 0
    while at < end and r < most:
        p = at + HEADER
        if p > end:
            return np.int64(-1), at
        e = p + (
            np.int64(buf[at]) | np.int64(buf[at + 1]) << 8 | np.int64(buf[at + 2]) << 16 | np.int64(buf[at + 3]) << 24
        )
        if e > end:
            return np.int64(-1), at
        if e - p >= 19 and buf[p] == 80 and buf[p + 1] == 71:  # the header before the first row; a row begins with 0
            for i in range(11):
                if buf[p + i] != _SIGNATURE[i]:
                    return np.int64(-1), at
            p += 19
        if p == e:
            at = e
            continue
        if p + 2 > e:
            return np.int64(-1), at
        count = (np.int64(buf[p]) << 8) | np.int64(buf[p + 1])
        p += 2
        if count == 65535 and p == e:  # the trailer
            at = e
            continue
        if count != columns:
            return np.int64(-1), at
        for c in range(columns):
            if p + 4 > e:
                return np.int64(-1), at
            size = (
                (np.int64(buf[p]) << 24)
                | (np.int64(buf[p + 1]) << 16)
                | (np.int64(buf[p + 2]) << 8)
                | np.int64(buf[p + 3])
            )
            p += 4
            off[c, r] = p
            if size == 4294967295:
                length[c, r] = -1
                continue
            if size > e - p:
                return np.int64(-1), at
            length[c, r] = size
            p += size
        if p != e:
            return np.int64(-1), at
        r += 1
        at = e
    return np.int64(r), at
