"""boolean → bool.

Text is `t` or `f`; binary is one byte, 1 or 0. Anything else is malformed. The kernel writes Arrow's packed bits.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import fixed_width
from penstock.sources.postgres.types.kernel import FINE, IN8, IN32, U8, blame, kernel

__all__ = ["BOOLEAN"]

_REASONS = ("malformed boolean",)


@kernel(nb.int64(IN8, IN32, IN32, nb.uint8, nb.uint8, U8))
def _bits(buf: Bytes, off: Ints, length: Ints, true: int, false: int, out: Bytes) -> int:
    n = length.size
    for byte in range(out.size):
        bits = 0
        for k in range(min(8, n - (byte << 3))):
            r = (byte << 3) + k
            if length[r] >= 0:
                if length[r] != 1 or (buf[off[r]] != true and buf[off[r]] != false):
                    return blame(r, 0)
                bits |= (1 if buf[off[r]] == true else 0) << k
        out[byte] = bits
    return FINE


def _decode(buf: Bytes, off: Ints, length: Ints, true: int, false: int) -> pa.Array:
    out = np.empty((length.size + 7) >> 3, np.uint8)
    BadValueError.check(_bits(buf, off, length, true, false, out), _REASONS)
    return fixed_width(pa.bool_(), out, length)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(buf, off, length, ord("t"), ord("f"))


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode(buf, off, length, 1, 0)


BOOLEAN = ColumnCodec(pa.bool_(), _text, _binary)
