"""vector, of the extension pgvector → array<float32>.

::

    text      [1,2.5,-3e-08]
    binary    number of dimensions and 0 (16 bits each), then the dimensions, each like a `real`

A vector has at least one dimension, and no NULL, NaN or infinity in it. Its modifier only limits the number of
dimensions. Like all types of extensions, it is identified by its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import lists
from penstock.sources.postgres.types.floating_point import REAL
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, blame, kernel, start
from penstock.sources.postgres.types.nested import elements, first_bad_row, total_bytes

__all__ = ["VECTOR"]

_REASONS = ("malformed vector",)
_ARROW = pa.list_(REAL.arrow)
_LEAST_DIMENSION = 2
"""The bytes of the smallest dimension: a digit with its separator as text; in binary form it takes four."""


@kernel(nb.int64(IN8, IN32, IN32, I32, I32, I32))
def _split_text(buf: Bytes, off: Ints, length: Ints, offsets: Ints, to_off: Ints, to_length: Ints) -> int:
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r] - 1
        if length[r] < 3 or buf[at] != 91 or buf[end] != 93:
            return blame(r, 0)
        at += 1
        while True:
            first = at
            while at < end and buf[at] != 44:
                at += 1
            if at == first:
                return blame(r, 0)
            to_off[n] = first
            to_length[n] = at - first
            n += 1
            if at == end:
                break
            at += 1
    offsets[length.size] = n
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, I32, I32))
def _split_binary(buf: Bytes, off: Ints, length: Ints, offsets: Ints, to_off: Ints, to_length: Ints) -> int:
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        if length[r] < 8:
            return blame(r, 0)
        count = np.int64(buf[at]) << 8 | np.int64(buf[at + 1])
        if buf[at + 2] or buf[at + 3] or length[r] != 4 + 4 * count:
            return blame(r, 0)
        for d in range(count):
            to_off[n] = at + 4 + 4 * d
            to_length[n] = 4
            n += 1
    offsets[length.size] = n
    return FINE


def _decode(buf: Bytes, off: Ints, length: Ints, split: Any, decode: Any) -> pa.Array:
    offsets = np.zeros(length.size + 1, np.int32)
    most = total_bytes(length) // _LEAST_DIMENSION + 1
    to_off, to_length = np.empty(most, np.int32), np.empty(most, np.int32)
    BadValueError.check(split(buf, off, length, offsets, to_off, to_length), _REASONS)
    n = int(offsets[-1])
    return lists(_ARROW, offsets, elements(decode, buf, to_off[:n], to_length[:n], offsets), length)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(buf, off, length, _split_text, REAL.text)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(buf, off, length, _split_binary, REAL.binary)


VECTOR = ColumnCodec(_ARROW, first_bad_row(_text), first_bad_row(_binary))
