r"""Ranges → struct<lower, upper, lower_inclusive, upper_inclusive, empty>; multiranges → list of such structs.

::

    text      [1,10)   (,"2026-01-01 00:00:00"]   empty            {[1,3),[5,7)}
    binary    flags; per bound, if present: size and bytes         count; per range: size and bytes

An absent bound (the range is unbounded on that side) is null, and not inclusive. An empty range has no bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import types as nb

from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Ints, Mask
from penstock.sources.postgres.types.column import flags, lists, structs
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, start, unrolled
from penstock.sources.postgres.types.nested import (
    copy_quoted,
    elements,
    first_bad_row,
    found_elements,
    int32_at,
    total_bytes,
)

__all__ = ["multirange", "range_of", "split_bounds", "split_members"]

_REASONS = ("malformed range",)
_GRID = nb.int32[:, ::1]
_FLAGS = nb.uint8[:, ::1]
_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16
_KNOWN = 31


@inlined
def _is_empty(buf: Bytes, at: int, end: int) -> Any:
    if end - at != 5 or buf[at] != 101 or buf[at + 1] != 109:
        return False
    return buf[at + 2] == 112 and buf[at + 3] == 116 and buf[at + 4] == 121


@unrolled
def _bound(buf: Bytes, at: Any, end: int, data: Bytes, to: Any) -> tuple[Any, Any]:
    """Copy one bound up to a comma or `end`; return the offsets after it (-1 if malformed) and after the copy."""
    while at < end and buf[at] != 44:
        byte = buf[at]
        if byte == 34:
            at, to = copy_quoted(buf, at + 1, end, data, to, True)
            if at < 0:
                return at, to
            continue
        if byte == 92 or byte == 40 or byte == 41 or byte == 91 or byte == 93:
            return np.int64(-1), to
        data[to] = byte
        to += 1
        at += 1
    return at, to


@inlined
def _clear(to_off: Any, to_length: Any, out: Any, r: int, empty: bool) -> None:
    for side in range(2):
        to_off[side, r] = 0
        to_length[side, r] = -1
        out[side, r] = 0
    out[2, r] = empty


@kernel(nb.int64(IN8, IN32, IN32, U8, _GRID, _GRID, _FLAGS))
def _split_text(buf: Bytes, off: Ints, length: Ints, data: Bytes, to_off: Any, to_length: Any, out: Any) -> int:
    to: Any = np.int64(0)
    for r in range(length.size):
        at = start(off, r)
        end = at + length[r] - 1
        empty = length[r] > 0 and _is_empty(buf, at, end + 1)
        _clear(to_off, to_length, out, r, empty)
        if length[r] < 0 or empty:
            continue
        if length[r] < 3 or (buf[at] != 91 and buf[at] != 40) or (buf[end] != 93 and buf[end] != 41):
            return blame(r, 0)
        out[0, r] = buf[at] == 91
        out[1, r] = buf[end] == 93
        for side in range(2):
            at += 1
            is_present = at < end and buf[at] != 44
            first = to
            at, to = _bound(buf, at, end, data, to)
            if at < 0 or (at == end) != (side == 1):
                return blame(r, 0)
            to_off[side, r] = first
            if is_present:
                to_length[side, r] = to - first
            elif out[side, r]:
                return blame(r, 0)
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, _GRID, _GRID, _FLAGS))
def _split_binary(buf: Bytes, off: Ints, length: Ints, to_off: Any, to_length: Any, out: Any) -> int:
    for r in range(length.size):
        _clear(to_off, to_length, out, r, False)
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        if length[r] < 1 or buf[at] & ~_KNOWN:
            return blame(r, 0)
        bits = np.int64(buf[at])
        at += 1
        out[2, r] = bits & _EMPTY
        for side in range(2):
            if bits & (_EMPTY | (_NO_LOWER << side)):
                continue
            out[side, r] = (bits >> (1 + side)) & 1
            if end - at < 4:
                return blame(r, 0)
            size = int32_at(buf, at)
            at += 4
            if size < 0 or size > end - at:
                return blame(r, 0)
            to_off[side, r] = at
            to_length[side, r] = size
            at += size
        if at != end:
            return blame(r, 0)
    return FINE


def _range_type(bound: pa.DataType) -> pa.DataType:
    inclusive = [("lower_inclusive", pa.bool_()), ("upper_inclusive", pa.bool_()), ("empty", pa.bool_())]
    return pa.struct([("lower", bound), ("upper", bound), *inclusive])


def split_bounds(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> tuple[Bytes, Any, Any, Any]:
    """Return `buf`, `off` and `length` of both bounds, and the flags: lower and upper inclusive, empty."""
    to_off, to_length = np.empty((2, length.size), np.int32), np.empty((2, length.size), np.int32)
    out = np.empty((3, length.size), np.uint8)
    if is_text:
        data = np.empty(total_bytes(length), np.uint8)
        verdict = _split_text(buf, off, length, data, to_off, to_length, out)
    else:
        data = buf
        verdict = _split_binary(buf, off, length, to_off, to_length, out)
    BadValueError.check(verdict, _REASONS)
    return data, to_off, to_length, out


def range_of(bound: ColumnCodec) -> ColumnCodec:
    """Return the codec of a range whose bounds have this codec."""
    arrow = _range_type(bound.arrow)

    def decode(text: bool, buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        data, to_off, to_length, out = split_bounds(buf, off, length, text)
        bounds = [(bound.text if text else bound.binary)(data, to_off[side], to_length[side]) for side in range(2)]
        return structs(arrow, [*bounds, *(flags(out[k], length) for k in range(3))], length)

    def from_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return decode(True, buf, off, length)

    def from_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return decode(False, buf, off, length)

    def unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
        assert bound.unrepresentable is not None
        data, to_off, to_length, _ = split_bounds(buf, off, length, is_text)
        lower, upper = (bound.unrepresentable(data, to_off[side], to_length[side], is_text) for side in range(2))
        return lower | upper

    find = unrepresentable if bound.unrepresentable is not None else None
    return ColumnCodec(arrow, first_bad_row(from_text), first_bad_row(from_binary), bound.wants_text, find)


@unrolled
def _range_end(buf: Bytes, at: Any, end: int) -> Any:
    """Return the offset after the bracket that closes a range, or -1."""
    if at >= end or (buf[at] != 91 and buf[at] != 40):
        return np.int64(-1)
    inside = False
    at += 1
    while at < end:
        byte = buf[at]
        if byte == 34:
            inside = not inside
        elif byte == 92:
            at += 1
        elif not inside and (byte == 93 or byte == 41):
            return at + 1
        at += 1
    return np.int64(-1)


@kernel(nb.int64(IN8, IN32, IN32, I32, I32, I32))
def _ranges_text(buf: Bytes, off: Ints, length: Ints, offsets: Ints, to_off: Ints, to_length: Ints) -> int:
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r] - 1
        if length[r] < 2 or buf[at] != 123 or buf[end] != 125:
            return blame(r, 0)
        at += 1
        while at < end:
            after = _range_end(buf, at, end)
            if after < 0 or (after < end and (buf[after] != 44 or after + 1 == end)):
                return blame(r, 0)
            to_off[n] = at
            to_length[n] = after - at
            n += 1
            at = after + 1
    offsets[length.size] = n
    return FINE


@kernel(nb.int64(IN8, IN32, IN32, I32, I32, I32))
def _ranges_binary(buf: Bytes, off: Ints, length: Ints, offsets: Ints, to_off: Ints, to_length: Ints) -> int:
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
        if count < 0 or 4 * count > end - at:
            return blame(r, 0)
        for _ in range(count):
            if end - at < 4:
                return blame(r, 0)
            size = int32_at(buf, at)
            at += 4
            if size < 0 or size > end - at:
                return blame(r, 0)
            to_off[n] = at
            to_length[n] = size
            n += 1
            at += size
        if at != end:
            return blame(r, 0)
    offsets[length.size] = n
    return FINE


def split_members(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> tuple[Bytes, Ints, Ints, Ints]:
    """Return `buf`, `off` and `length` of the ranges of multiranges, and the offsets that map them to rows."""
    size = total_bytes(length) // 3 + 1
    offsets = np.zeros(length.size + 1, np.int32)
    to_off, to_length = np.empty(size, np.int32), np.empty(size, np.int32)
    split = _ranges_text if is_text else _ranges_binary
    BadValueError.check(split(buf, off, length, offsets, to_off, to_length), _REASONS)
    n = offsets[-1]
    return buf, to_off[:n], to_length[:n], offsets


def multirange(member: ColumnCodec) -> ColumnCodec:
    """Return the codec of a multirange whose ranges have this codec."""
    arrow = pa.list_(member.arrow)

    def decode(text: bool, buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        found = split_members(buf, off, length, text)
        return lists(arrow, found[-1], elements(member.text if text else member.binary, *found), length)

    def from_text(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return decode(True, buf, off, length)

    def from_binary(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return decode(False, buf, off, length)

    def unrepresentable(buf: Bytes, off: Ints, length: Ints, is_text: bool) -> Mask:
        found = found_elements(member.unrepresentable, *split_members(buf, off, length, is_text), is_text)
        assert found is not None
        return found

    find = unrepresentable if member.unrepresentable is not None else None
    return ColumnCodec(arrow, first_bad_row(from_text), first_bad_row(from_binary), member.wants_text, find)
