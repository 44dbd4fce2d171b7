"""point, line, lseg, box, path, polygon, circle → string, as Postgres prints them.

Binary is doubles; path is preceded by a byte (whether it is closed) and the number of points, polygon by the number.

::

    point (x,y)    line {A,B,C}    circle <(x,y),r>    lseg [(x,y),(x,y)]    box (x,y),(x,y)
    polygon ((x,y),…)    path ((x,y),…) if it is closed, else [(x,y),…]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes, variable_width
from penstock.sources.postgres.types.floating_point import put_double
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, start, uint
from penstock.sources.postgres.types.nested import int32_at
from penstock.sources.postgres.types.text_output import check_text_size

__all__ = ["BOX", "CIRCLE", "LINE", "LSEG", "PATH", "POINT", "POLYGON"]

_REASONS = ("malformed geometric value",)
_POINT, _LINE, _LSEG, _BOX, _PATH, _POLYGON, _CIRCLE = range(7)
_WIDTH = np.array([16, 24, 32, 32, 0, 0, 24], np.int64)
_OPEN, _CLOSE = np.frombuffer(b" {[ ((<", np.uint8).copy(), np.frombuffer(b" }] ))>", np.uint8).copy()


@inlined
def _points(buf: Bytes, at: int, size: int, kind: int) -> tuple[int, int, int]:
    """Return the offset of the doubles, their number (-1 if malformed), and the brackets that enclose them."""
    if kind != _PATH and kind != _POLYGON:
        return 0, (size >> 3 if size == _WIDTH[kind] else -1), kind
    head = 5 if kind == _PATH else 4
    if size < head or (kind == _PATH and buf[at] > 1):
        return 0, -1, 0
    count = int32_at(buf, at + head - 4)
    if count < 0 or size - head != 16 * count:
        return 0, -1, 0
    return head, 2 * count, _LSEG if kind == _PATH and buf[at] == 0 else _POLYGON


@inlined
def _put_doubles(data: Bytes, end: Any, buf: Bytes, at: int, count: int, pairs: bool) -> Any:
    for k in range(count):
        first = pairs and k & 1 == 0 and k + 1 < count
        if k:
            data[end] = 44
            end += 1
        if first:
            data[end] = 40
            end += 1
        end = put_double(data, end, uint(buf, at + 8 * k, 8))
        if pairs and k & 1:
            data[end] = 41
            end += 1
    return end


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, I32, U8))
def _print(buf: Bytes, off: Ints, length: Ints, kind: int, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        head, count, brackets = _points(buf, at, length[r], kind)
        if count < 0:
            return blame(r, 0)
        enclosed = brackets != _POINT and brackets != _BOX
        if enclosed:
            data[end] = _OPEN[brackets]
            end += 1
        end = _put_doubles(data, end, buf, at + head, count, kind != _LINE)
        if enclosed:
            data[end] = _CLOSE[brackets]
            end += 1
    offsets[length.size] = end
    return FINE


def _codec(kind: int) -> ColumnCodec:
    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return gather_bytes(pa.string(), buf, off, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        offsets = np.empty(length.size + 1, np.int32)
        room = 4 * int(np.maximum(length, 0).sum(dtype=np.int64))  # 24 bytes, comma and brackets for 8 of a double
        data = np.empty(check_text_size(room, length), np.uint8)
        BadValueError.check(_print(buf, off, length, kind, offsets, data), _REASONS)
        return variable_width(pa.string(), offsets, data, length)

    return ColumnCodec(pa.string(), text, binary)


POINT, LINE, LSEG, BOX, PATH, POLYGON, CIRCLE = (_codec(kind) for kind in range(7))
