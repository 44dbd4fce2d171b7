"""bit, bit varying → string of 0 and 1.

Binary is the number of bits (32 bits), then the bits from the left; the last byte is padded with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types as nb

from penstock.sources.postgres.types.codec import Bytes, Ints
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, kernel, start, uint
from penstock.sources.postgres.types.text_output import text_output_codec

__all__ = ["BIT_STRING"]

_REASONS = ("malformed bit string",)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        if length[r] < 4:
            return blame(r, 0)
        bits = np.int64(uint(buf, at, 4))
        if (bits + 7) >> 3 != length[r] - 4:
            return blame(r, 0)
        at += 4
        for k in range(bits):
            data[end + k] = 48 + ((buf[at + (k >> 3)] >> (7 - (k & 7))) & 1)
        if bits & 7 and buf[at + (bits >> 3)] & (0xFF >> (bits & 7)):
            return blame(r, 0)
        end += bits
    offsets[length.size] = end
    return FINE


def _room(_buf: Bytes, _off: Ints, length: Ints) -> int:
    return 8 * int(np.maximum(length, 0).sum(dtype=np.int64))


BIT_STRING = text_output_codec(_print, _room, _REASONS)
