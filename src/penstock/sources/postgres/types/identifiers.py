"""uuid, tid, pg_lsn, pg_snapshot, txid_snapshot → string.

::

    uuid         16 bytes                                               2f1e6d1c-58e3-4c0a-9d3b-0c7a5e6f8a90
    tid          block (32 bits), number in it (16 bits)                (12,3)
    pg_lsn       64 bits, printed as two halves in hex                  16/B374D848
    snapshot     count (32 bits), xmin, xmax, count × xid (64 bits)     10:20:10,14,15

The text of a uuid is the canonical form, 36 characters in lowercase, and is validated digit by digit. Spark has no uuid
type, and the canonical form is unique, so equal values stay equal strings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import check_size, variable_width
from penstock.sources.postgres.types.kernel import (
    FINE,
    I32,
    IN8,
    IN32,
    U8,
    Kernel,
    blame,
    inlined,
    kernel,
    read16,
    start,
    uint,
)
from penstock.sources.postgres.types.text_output import DIGIT, NIBBLE, fixed_room, put_number, text_output_codec

__all__ = ["PG_LSN", "SNAPSHOT", "TID", "UUID"]

_UUID = ("malformed uuid",)


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _check_uuid(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
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
def _print_uuid(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
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


def _decode_uuid(fill: Kernel, buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets = np.empty(length.size + 1, np.int32)
    data = np.empty(check_size(length.size * 36), np.uint8)
    BadValueError.check(fill(buf, off, length, offsets, data), _UUID)
    return variable_width(pa.string(), offsets, data, length)


def _uuid_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode_uuid(_check_uuid, buf, off, length)


def _uuid_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    return _decode_uuid(_print_uuid, buf, off, length)


UUID = ColumnCodec(pa.string(), _uuid_text, _uuid_binary)


# -- tid, pg_lsn, snapshots --------------------------------------------------------------------------------------------

_TID = ("malformed tid",)
_LSN = ("malformed pg_lsn",)
_SNAPSHOT = ("malformed snapshot",)
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8).copy()


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_tid(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 6:
            return blame(r, 0)
        at = start(off, r)
        data[end] = 40
        end = put_number(data, end + 1, uint(buf, at, 4))
        data[end] = 44
        end = put_number(data, end + 1, np.uint64(read16(buf, at + 4)))
        data[end] = 41
        end += 1
    offsets[length.size] = end
    return FINE


@inlined
def _put_half(data: Bytes, end: Any, half: Any) -> Any:
    shift = 28
    while shift and half >> np.uint64(shift) == np.uint64(0):
        shift -= 4
    while shift >= 0:
        data[end] = _HEX[(half >> np.uint64(shift)) & np.uint64(15)]
        end += 1
        shift -= 4
    return end


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_lsn(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        if length[r] != 8:
            return blame(r, 0)
        at = start(off, r)
        end = _put_half(data, end, uint(buf, at, 4))
        data[end] = 47
        end = _put_half(data, end + 1, uint(buf, at + 4, 4))
    offsets[length.size] = end
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, U8))
def _print_snapshot(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        if length[r] < 20 or length[r] != 20 + 8 * np.int64(uint(buf, at, 4)):
            return blame(r, 0)
        end = put_number(data, end, uint(buf, at + 4, 8))
        data[end] = 58
        end = put_number(data, end + 1, uint(buf, at + 12, 8))
        data[end] = 58
        end += 1
        for xid in range(at + 20, at + length[r], 8):
            if xid > at + 20:
                data[end] = 44
                end += 1
            end = put_number(data, end, uint(buf, xid, 8))
    offsets[length.size] = end
    return FINE


def _snapshot_room(_buf: Bytes, _off: Ints, length: Ints) -> int:
    return 3 * int(np.maximum(length, 0).sum(dtype=np.int64))


TID = text_output_codec(_print_tid, fixed_room(18), _TID)
PG_LSN = text_output_codec(_print_lsn, fixed_room(17), _LSN)
SNAPSHOT = text_output_codec(_print_snapshot, _snapshot_room, _SNAPSHOT)
