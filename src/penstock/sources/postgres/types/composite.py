r"""Composite types → struct of their fields.

::

    text      (1,,"a ""quoted"" one")      an empty field is NULL
    binary    number of fields; per field its type, size and bytes

The binary form includes the types of its fields: a value that differs from the description means that the type was
altered upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints, Mask
from penstock.sources.postgres.types.column import structs
from penstock.sources.postgres.types.kernel import FINE, IN8, IN32, U8, blame, kernel, start, unrolled
from penstock.sources.postgres.types.nested import CHANGED, copy_quoted, first_bad_row, int32_at, total_bytes

__all__ = ["composite", "split_fields"]

_MALFORMED, _CHANGED = range(2)
_REASONS = ("malformed composite value", CHANGED)
_GRID = nb.int32[:, ::1]
_OIDS = nb.Array(nb.int64, 1, "C", readonly=True)


@unrolled
def _field(buf: Bytes, at: Any, end: int, data: Bytes, to: Any) -> tuple[Any, Any]:
    """Copy one field; return the offsets after it (-1 if malformed) and after the copy."""
    while at < end and buf[at] != 44:
        if buf[at] == 34:
            at, to = copy_quoted(buf, at + 1, end, data, to, True)
            if at < 0:
                return at, to
            continue
        if buf[at] == 92:
            at += 1
            if at >= end:
                return np.int64(-1), to
        elif buf[at] == 40 or buf[at] == 41:
            return np.int64(-1), to
        data[to] = buf[at]
        to += 1
        at += 1
    return at, to


@kernel(nb.int64(IN8, IN32, IN32, U8, _GRID, _GRID))
def _split_text(buf: Bytes, off: Ints, length: Ints, data: Bytes, to_off: Any, to_length: Any) -> int:
    fields = to_off.shape[0]
    to: Any = np.int64(0)
    for r in range(length.size):
        if length[r] < 0:
            for f in range(fields):
                to_off[f, r] = 0
                to_length[f, r] = -1
            continue
        at = start(off, r)
        end = at + length[r] - 1
        if length[r] < 2 or buf[at] != 40 or buf[end] != 41:
            return blame(r, _MALFORMED)
        for f in range(fields):
            if at == end:
                return blame(r, _CHANGED)
            at += 1
            empty = at == end or buf[at] == 44
            first = to
            at, to = _field(buf, at, end, data, to)
            if at < 0:
                return blame(r, _MALFORMED)
            to_off[f, r] = first
            to_length[f, r] = -1 if empty else to - first
        if at != end:
            return blame(r, _CHANGED)
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, _OIDS, _GRID, _GRID))
def _split_binary(buf: Bytes, off: Ints, length: Ints, oids: Any, to_off: Any, to_length: Any) -> int:
    fields = oids.size
    for r in range(length.size):
        if length[r] < 0:
            for f in range(fields):
                to_off[f, r] = 0
                to_length[f, r] = -1
            continue
        at = start(off, r)
        end = at + length[r]
        if length[r] < 4:
            return blame(r, _MALFORMED)
        if int32_at(buf, at) != fields:
            return blame(r, _CHANGED)
        at += 4
        for f in range(fields):
            if end - at < 8:
                return blame(r, _MALFORMED)
            if int32_at(buf, at) & 0xFFFFFFFF != oids[f]:
                return blame(r, _CHANGED)
            size = int32_at(buf, at + 4)
            at += 8
            if size < -1 or size > end - at:
                return blame(r, _MALFORMED)
            to_off[f, r] = at
            to_length[f, r] = size
            at += max(size, 0)
        if at != end:
            return blame(r, _MALFORMED)
    return FINE


def split_fields(buf: Bytes, off: Ints, length: Ints, oids: Any, is_text: bool) -> tuple[Bytes, Any, Any]:
    """Return `buf`, and `off` and `length` of each field; `oids` are the types of the fields."""
    shape = (oids.size, length.size)
    to_off, to_length = np.empty(shape, np.int32), np.empty(shape, np.int32)
    if is_text:
        data = np.empty(total_bytes(length), np.uint8)
        BadValueError.check(_split_text(buf, off, length, data, to_off, to_length), _REASONS)
        return data, to_off, to_length
    BadValueError.check(_split_binary(buf, off, length, oids, to_off, to_length), _REASONS)
    return buf, to_off, to_length


def composite(names: Sequence[str], oids: Sequence[int], codecs: Sequence[ColumnCodec]) -> ColumnCodec:
    """Return the codec of a composite type with these fields, in their order."""
    arrow = pa.struct([pa.field(name, codec.arrow) for name, codec in zip(names, codecs, strict=True)])
    expected = np.array(oids, np.int64)

    def text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        data, to_off, to_length = split_fields(buf, off, length, expected, True)
        parts = [codec.text(data, to_off[f], to_length[f]) for f, codec in enumerate(codecs)]
        return structs(arrow, parts, length)

    def binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        _, to_off, to_length = split_fields(buf, off, length, expected, False)
        parts = [codec.binary(buf, to_off[f], to_length[f]) for f, codec in enumerate(codecs)]
        return structs(arrow, parts, length)

    def unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
        data, to_off, to_length = split_fields(buf, off, length, expected, is_text)
        found = np.zeros(length.size, np.bool_)
        for f, codec in enumerate(codecs):
            if codec.unrepresentable is not None:
                found |= codec.unrepresentable(data, to_off[f], to_length[f], is_text)
        return found

    return ColumnCodec(
        arrow,
        first_bad_row(text),
        first_bad_row(binary),
        any(codec.wants_text for codec in codecs),
        unrepresentable if any(codec.unrepresentable for codec in codecs) else None,
    )
