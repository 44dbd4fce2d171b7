r"""hstore → map<string, string>.

::

    text      "key"=>"value", "other"=>NULL      a backslash escapes the next byte
    binary    number of pairs; per pair size and bytes of the key, size (-1 for NULL) and bytes of the value

It belongs to an extension: its OID differs between databases, so it is identified by its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints
from penstock.sources.postgres.types.column import gather_bytes, lists, structs
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, start, unrolled
from penstock.sources.postgres.types.nested import copy_quoted, first_bad_row, int32_at, total_bytes

__all__ = ["HSTORE"]

_REASONS = ("malformed hstore",)
_GRID = nb.int32[:, ::1]
_ARROW = pa.map_(pa.string(), pa.string())
_ENTRY = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())])
_LEAST_PAIR = 6
_LEAST_PAIR_SENT = 8


@inlined
def _arrow_at(buf: Bytes, at: int, end: int) -> Any:
    """Return the offset after `=>`, or -1."""
    return at + 2 if end - at > 2 and buf[at] == 61 and buf[at + 1] == 62 else np.int64(-1)


@unrolled
def _value(buf: Bytes, at: Any, end: int, data: Bytes, to: Any) -> tuple[Any, Any, bool]:
    """Copy a value; return the offsets after it (-1 if malformed) and after the copy, and whether it is NULL."""
    if buf[at] == 34:
        at, to = copy_quoted(buf, at + 1, end, data, to, False)
        return at, to, False
    null = end - at >= 4 and buf[at] == 78 and buf[at + 1] == 85 and buf[at + 2] == 76 and buf[at + 3] == 76
    return (at + 4 if null else np.int64(-1)), to, True


@kernel(nb.int64(IN8, IN32, IN32, I32, U8, _GRID, _GRID))
def _split_text(buf: Bytes, off: Ints, length: Ints, offsets: Ints, data: Bytes, to_off: Any, to_length: Any) -> int:
    n: Any = np.int64(0)
    to: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] <= 0:
            continue
        at = start(off, r)
        end = at + length[r]
        while True:
            if at >= end or buf[at] != 34:
                return blame(r, 0)
            to_off[0, n] = to
            at, to = copy_quoted(buf, at + 1, end, data, to, False)
            to_length[0, n] = to - to_off[0, n]
            at = _arrow_at(buf, at, end) if at >= 0 else at
            if at < 0:
                return blame(r, 0)
            to_off[1, n] = to
            at, to, null = _value(buf, at, end, data, to)
            to_length[1, n] = -1 if null else to - to_off[1, n]
            if at < 0:
                return blame(r, 0)
            n += 1
            if at == end:
                break
            if end - at < 2 or buf[at] != 44 or buf[at + 1] != 32:
                return blame(r, 0)
            at += 2
    offsets[length.size] = n
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, _GRID, _GRID))
def _split_binary(buf: Bytes, off: Ints, length: Ints, offsets: Ints, to_off: Any, to_length: Any) -> int:
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        if length[r] < 4:
            return blame(r, 0)
        count = int32_at(buf, at)
        at += 4
        if count < 0 or _LEAST_PAIR_SENT * count > end - at:
            return blame(r, 0)
        for _ in range(count):
            for part in range(2):
                if end - at < 4:
                    return blame(r, 0)
                size = int32_at(buf, at)
                at += 4
                if size < -part or size > end - at:
                    return blame(r, 0)
                to_off[part, n] = at
                to_length[part, n] = size
                at += max(size, 0)
            n += 1
        if at != end:
            return blame(r, 0)
    offsets[length.size] = n
    return FINE


def _map(buf: Bytes, to_off: Any, to_length: Any, offsets: Ints, length: Ints) -> pa.Array:
    n = offsets[-1]
    keys = to_length[0, :n]
    parts = [gather_bytes(pa.string(), buf, to_off[part, :n], to_length[part, :n]) for part in range(2)]
    return lists(_ARROW, offsets, structs(_ENTRY, parts, keys), length)


def _grids(length: Ints, least: int) -> tuple[Any, Any, Any]:
    shape = (2, total_bytes(length) // least + 1)
    return np.zeros(length.size + 1, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int32)


def _text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets, to_off, to_length = _grids(length, _LEAST_PAIR)
    data = np.empty(total_bytes(length), np.uint8)
    BadValueError.check(_split_text(buf, off, length, offsets, data, to_off, to_length), _REASONS)
    return _map(data, to_off, to_length, offsets, length)


def _binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
    offsets, to_off, to_length = _grids(length, _LEAST_PAIR_SENT)
    BadValueError.check(_split_binary(buf, off, length, offsets, to_off, to_length), _REASONS)
    return _map(buf, to_off, to_length, offsets, length)


HSTORE = ColumnCodec(_ARROW, first_bad_row(_text), first_bad_row(_binary))
