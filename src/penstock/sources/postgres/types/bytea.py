r"""bytea → binary; bit, bit varying → string of 0 and 1.

The binary form of bytea is the bytes themselves. Text is `\x` and two hex digits per byte; a value in the old escape
format is rejected, because sessions set `bytea_output = hex`.

The binary form of a bit string is the number of bits (32 bits), then the bits from the left; the last byte is padded
with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import check_size, gather_bytes, variable_width
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, kernel, start, uint
from penstock.sources.postgres.types.text_output import NIBBLE, put_hex, text_output_codec

__all__ = ["BIT_STRING", "BYTEA", "BYTEA_TEXT"]

_BYTEA_REASONS = ("malformed bytea", "bytea in escape format; SET bytea_output = 'hex' for the session")


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
    BadValueError.check(verdict, _BYTEA_REASONS)
    data = np.empty(check_size(~verdict), np.uint8)
    BadValueError.check(_unhex(buf, off, length, offsets, data), _BYTEA_REASONS)
    return variable_width(pa.binary(), offsets, data, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return gather_bytes(pa.binary(), buf, off, length)


BYTEA = ColumnCodec(pa.binary(), _text, _binary)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_hex(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        data[end] = 92
        data[end + 1] = 120
        end += 2
        for k in range(length[r]):
            end = put_hex(data, end, buf[at + k])
    offsets[length.size] = end
    return FINE


def _hex_room(_buf: Bytes, _off: Ints, length: Ints) -> int:
    return 2 * int((np.maximum(length, 0) + np.int64(1)).sum(dtype=np.int64))


BYTEA_TEXT = text_output_codec(_print_hex, _hex_room, _BYTEA_REASONS)


# -- bit, bit varying --------------------------------------------------------------------------------------------------

_BIT_REASONS = ("malformed bit string",)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_bits(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
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


def _bits_room(_buf: Bytes, _off: Ints, length: Ints) -> int:
    return 8 * int(np.maximum(length, 0).sum(dtype=np.int64))


BIT_STRING = text_output_codec(_print_bits, _bits_room, _BIT_REASONS)
