r"""bytea → binary.

Binary is the bytes themselves. Text is `\x` and two hex digits per byte; a value in the old escape format is rejected,
because sessions set `bytea_output = hex`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import check_size, gather_bytes, variable_width
from penstock.sources.postgres.types.hexadecimal import NIBBLE
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, kernel, start

__all__ = ["BYTEA"]

_REASONS = ("malformed bytea", "bytea in escape format; SET bytea_output = 'hex' for the session")


@kernel(nb.int64(IN8, IN32, IN32, I32))
def _offsets(buf: Bytes, off: Ints, length: Ints, offsets: Ints) -> Any:
    # Any negative verdict means success: the complement of this one is the number of bytes.
    total: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = total
        if length[r] < 0:
            continue
        if length[r] < 2 or buf[off[r]] != 92 or buf[off[r] + 1] != 120:
            return blame(r, 1)
        if length[r] & 1:
            return blame(r, 0)
        total += (length[r] - 2) >> 1
    offsets[length.size] = total
    return ~total


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _unhex(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    for r in range(length.size):
        at = start(off, r) + 2
        seen = np.uint8(0)
        for to in range(offsets[r], offsets[r + 1]):
            high = NIBBLE[buf[at]]
            low = NIBBLE[buf[at + 1]]
            seen |= high | low
            data[to] = (high << 4) | (low & 15)
            at += 2
        if seen > 15:
            return blame(r, 0)
    return FINE


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    verdict = _offsets(buf, off, length, offsets)
    BadValueError.check(verdict, _REASONS)
    data = np.empty(check_size(~verdict), np.uint8)
    BadValueError.check(_unhex(buf, off, length, offsets, data), _REASONS)
    return variable_width(pa.binary(), offsets, data, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.binary(), buf, off, length)


BYTEA = ColumnCodec(pa.binary(), _text, _binary)
