"""The type "char" (one byte; the quotes belong to its name) → string.

The binary form is the raw byte, which from 0x80 on is not valid UTF-8. Text is what `charout` prints: nothing for the
byte 0, the character itself for ASCII, and a backslash with three octal digits for the rest. Both forms become that
text. High bytes that a server before 16 prints raw raise `BadValueError`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import check_size, gather_bytes, variable_width
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, kernel

__all__ = ["INTERNAL_CHAR"]

_REASONS = (
    'malformed "char"',
    '"char" above 0x7f sent as a raw byte; change the column to bytea, or use Postgres 16 or later',
)


@kernel(nb.int64(IN8, IN32, IN32))
def _printed(buf: Bytes, off: Ints, length: Ints) -> int:
    for r in range(length.size):
        at = off[r]
        if length[r] <= 0:
            continue
        if length[r] == 1:
            if buf[at] >= 0x80:
                return blame(r, 1)
        elif length[r] != 4 or buf[at] != 92:
            return blame(r, 0)
        else:
            for k in range(1, 4):
                if buf[at + k] < 48 or buf[at + k] > 55:
                    return blame(r, 0)
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end = 0
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 1:
            return blame(r, 0)
        byte = buf[off[r]]
        if byte >= 0x80:
            data[end] = 92
            data[end + 1] = 48 + (byte >> 6)
            data[end + 2] = 48 + ((byte >> 3) & 7)
            data[end + 3] = 48 + (byte & 7)
            end += 4
        elif byte:
            data[end] = byte
            end += 1
    offsets[length.size] = end
    return FINE


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    BadValueError.check(_printed(buf, off, length), _REASONS)
    return gather_bytes(pa.string(), buf, off, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    data = np.empty(check_size(length.size * 4), np.uint8)
    BadValueError.check(_print(buf, off, length, offsets, data), _REASONS)
    return variable_width(pa.string(), offsets, data, length)


INTERNAL_CHAR = ColumnCodec(pa.string(), _text, _binary)
