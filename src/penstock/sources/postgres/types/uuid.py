"""uuid → string, 36 characters in lowercase.

Text is the canonical form and is validated digit by digit; binary is 16 bytes, formatted by the kernel. Spark has no
uuid type, and the canonical form is unique, so equal values stay equal strings.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import check_size, variable_width
from penstock.sources.postgres.types.hexadecimal import DIGIT, NIBBLE
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, Kernel, blame, kernel, start

__all__ = ["UUID"]

_REASONS = ("malformed uuid",)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _check_canonical(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end = 0
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 36:
            return blame(r, 0)
        at = start(off, r)
        wrong = (buf[at + 8] ^ 45) | (buf[at + 13] ^ 45) | (buf[at + 18] ^ 45) | (buf[at + 23] ^ 45)
        for k in range(36):
            if k == 8 or k == 13 or k == 18 or k == 23:
                data[end + k] = 45
            else:
                nibble = NIBBLE[buf[at + k]]
                wrong |= nibble & 0xF0
                data[end + k] = DIGIT[nibble & 15]
        if wrong:
            return blame(r, 0)
        end += 36
    offsets[length.size] = end
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _format(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end = 0
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 16:
            return blame(r, 0)
        at = start(off, r)
        for k in range(16):
            if k == 4 or k == 6 or k == 8 or k == 10:
                data[end] = 45
                end += 1
            byte = buf[at + k]
            data[end] = DIGIT[byte >> 4]
            data[end + 1] = DIGIT[byte & 15]
            end += 2
    offsets[length.size] = end
    return FINE


def _decode(fill: Kernel, buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    data = np.empty(check_size(length.size * 36), np.uint8)
    BadValueError.check(fill(buf, off, length, offsets, data), _REASONS)
    return variable_width(pa.string(), offsets, data, length)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(_check_canonical, buf, off, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(_format, buf, off, length)


UUID = ColumnCodec(pa.string(), _text, _binary)
