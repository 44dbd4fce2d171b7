r"""Print binary values of any type as Postgres prints them: the exact text of values that no Arrow type holds.

::

    scalar       its text codec, or the digits of its number, t and f, hex, …
    array        {1,NULL,"a \"quoted\" one"}   {{1,2},{3,4}}   [0:1]={5,6}
    range        [1,10)   ["2026-01-01 00:00:00",infinity)   empty
    multirange   {[1,3),[5,7)}
    composite    (1,,"a ""quoted"" one")
    hstore       "key"=>"value", "other"=>NULL

Parts are split as for decoding, printed as columns of their own type, quoted by one kernel, and joined. Sessions set
`DateStyle`, `TimeZone`, `IntervalStyle`, `extra_float_digits` and `bytea_output`, so the text does not depend on the
settings of the server.

A part is quoted if it is empty or contains a character that delimits parts there. Postgres asks its locale which bytes
are spaces; here they are those of ASCII, as in every locale with the encoding UTF-8.

Types that only the server can print have no printer (their values are sent as text), and neither has "char", whose text
depends on the version of the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import types as nb

from penstock.sources.postgres.types.bytea import BYTEA_TEXT
from penstock.sources.postgres.types.codec import BadValueError, Bytes, ColumnCodec, Decode, Ints
from penstock.sources.postgres.types.codec_lookup import BY_OID, delimiter_of, text_codec_for
from penstock.sources.postgres.types.column import variable_width
from penstock.sources.postgres.types.composite import split_fields
from penstock.sources.postgres.types.floating_point import DOUBLE_TEXT, REAL_TEXT
from penstock.sources.postgres.types.hstore import HSTORE
from penstock.sources.postgres.types.interval import INTERVAL_TEXT
from penstock.sources.postgres.types.kernel import FINE, I32, IN8, IN32, U8, blame, inlined, kernel, start
from penstock.sources.postgres.types.nested import CHANGED, int32_at, total_bytes
from penstock.sources.postgres.types.postgres_type import PostgresType, TypeKind
from penstock.sources.postgres.types.ranges import split_bounds, split_members
from penstock.sources.postgres.types.text_output import check_text_size, put_number

__all__ = ["printer_for"]

_PRINTED = {17: BYTEA_TEXT, 700: REAL_TEXT, 701: DOUBLE_TEXT, 1186: INTERVAL_TEXT}
"""Types with a codec for their text alone."""
_NUMBERS = (20, 21, 23, 26, 28, 29, 5069)
_BOOLEAN, _VECTORS = 16, (22, 30)


@lru_cache(maxsize=4096)
def printer_for(kind: PostgresType) -> Decode | None:
    """Return what prints binary values of a type as text; None if only the server can do that exactly."""
    if kind.kind is TypeKind.COMPOSITE:
        fields = [printer_for(part) for _, part in kind.fields]
        return _composites([part.oid for _, part in kind.fields], [field for field in fields if field], len(fields))
    if kind.of is None:
        return _scalars(kind)
    part = printer_for(kind.of)
    if part is None or kind.kind is TypeKind.DOMAIN:
        return part
    if kind.kind is TypeKind.ARRAY:
        return _arrays(kind.of.oid, part, ord(delimiter_of(kind.of)))
    return _ranges(part) if kind.kind is TypeKind.RANGE else _multiranges(part)


# -- scalar types ------------------------------------------------------------------------------------------------------


def _scalars(kind: PostgresType) -> Decode | None:
    codec = text_codec_for(kind)
    if not codec.wants_text:
        return codec.binary
    if kind.kind is not TypeKind.BASE:
        return None
    if kind.oid in _PRINTED:
        return _PRINTED[kind.oid].binary
    if kind.oid in _NUMBERS:
        return _converted(BY_OID[kind.oid], lambda numbers: numbers.cast(pa.string()))
    if kind.oid == _BOOLEAN:
        return _converted(BY_OID[kind.oid], lambda values: pc.if_else(values, "t", "f"))
    if kind.oid in _VECTORS:
        return _converted(BY_OID[kind.oid], lambda lists: _joined(lists, lists.values.cast(pa.string()), " "))
    return _converted(HSTORE, _pairs) if kind.name == "hstore" else None


def _converted(codec: ColumnCodec, convert: Callable[[pa.Array], pa.Array]) -> Decode:
    def print_all(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        return convert(codec.binary(buf, off, length))

    return print_all


def _joined(lists: pa.ListArray, items: pa.Array, separator: str) -> pa.Array:
    """Join the texts of each list; null for a null list."""
    joined = pc.binary_join(pa.ListArray.from_arrays(lists.offsets, items), separator)
    return _where_present(lists.is_valid(), joined)


def _where_present(present: Any, text: pa.Array) -> pa.Array:
    return pc.if_else(present, text, pa.scalar(None, pa.string()))


def _pairs(maps: pa.MapArray) -> pa.Array:
    keys, values = _quoted(maps.keys, _ALWAYS), pc.fill_null(_quoted(maps.items, _ALWAYS), "NULL")
    return _joined(maps, pc.binary_join_element_wise(keys, "=>", values, ""), ", ")


# -- quotes ------------------------------------------------------------------------------------------------------------

_SPACES = b" \t\n\v\f\r"
_ESCAPED = b'"\\'


def _table(*bytes_: bytes) -> Bytes:
    table = np.zeros(256, np.uint8)
    table[list(b"".join(bytes_))] = 1
    return table


_IN_ROW = _table(_SPACES, _ESCAPED, b"(),")
_IN_RANGE = _table(_SPACES, _ESCAPED, b"()[],")
_ALWAYS = np.ones(256, np.uint8)
_BACKSLASH, _DOUBLED = 0, 1


@kernel(nb.int64(IN8, IN32, IN32, IN8, nb.int64, nb.int64, I32, U8))
def _quote(
    buf: Bytes, off: Ints, length: Ints, special: Bytes, doubled: int, null: int, offsets: Ints, data: Bytes
) -> int:
    """Quote the texts that contain a special byte, are empty or (if `null`) the word NULL; double or escape quotes."""
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        size = np.int64(length[r])
        needed = size == 0 or (null and size == 4 and _is_null(buf, at))
        for k in range(size):
            needed = needed or special[buf[at + k]] != 0
        if needed:
            data[end] = 34
            end += 1
        for k in range(size):
            byte = buf[at + k]
            if byte == 34 or byte == 92:
                data[end] = byte if doubled else 92
                end += 1
            data[end] = byte
            end += 1
        if needed:
            data[end] = 34
            end += 1
    offsets[length.size] = end
    return FINE


@inlined
def _is_null(buf: Bytes, at: int) -> Any:
    """Return whether the four bytes are NULL, in either case."""
    return buf[at] | 32 == 110 and buf[at + 1] | 32 == 117 and buf[at + 2] | 32 == 108 and buf[at + 3] | 32 == 108


def _quoted(texts: pa.Array, special: Bytes, style: int = _BACKSLASH, *, null: bool = False) -> pa.Array:
    buf, off, length = _wire(texts)
    offsets = np.empty(length.size + 1, np.int32)
    room = check_text_size(2 * int((np.maximum(length, 0) + np.int64(1)).sum()), length)
    data = np.empty(room, np.uint8)
    _quote(buf, off, length, special, style, null, offsets, data)
    return variable_width(pa.string(), offsets, data, length)


def _wire(texts: pa.StringArray) -> tuple[Bytes, Ints, Ints]:
    """Return texts as the values of a column."""
    _, offset_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer else np.empty(0, np.uint8)
    length = np.diff(offsets).astype(np.int32)
    if texts.null_count:
        length[texts.is_null().to_numpy(zero_copy_only=False)] = -1
    return data, np.ascontiguousarray(offsets[:-1]), length


# -- composite types, ranges -------------------------------------------------------------------------------------------


def _composites(oids: Sequence[int], fields: Sequence[Decode], count: int) -> Decode | None:
    if len(fields) < count:
        return None
    expected = np.array(oids, np.int64)

    def print_all(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        _, to_off, to_length = split_fields(buf, off, length, expected, False)
        parts: list[Any] = []
        for f, field in enumerate(fields):
            text = _quoted(field(buf, to_off[f], to_length[f]), _IN_ROW, _DOUBLED)
            parts += ["," if f else "(", pc.fill_null(text, "")]
        return _where_present(length >= 0, pc.binary_join_element_wise(*parts, ")", ""))

    return print_all


def _ranges(bound: Decode) -> Decode:
    def print_all(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        _, to_off, to_length, flags = split_bounds(buf, off, length, False)
        lower, upper = (
            pc.fill_null(_quoted(bound(buf, to_off[side], to_length[side]), _IN_RANGE, _DOUBLED), "")
            for side in range(2)
        )
        opened = pc.if_else(flags[0] != 0, "[", "(")
        closed = pc.if_else(flags[1] != 0, "]", ")")
        text = pc.binary_join_element_wise(opened, lower, ",", upper, closed, "")
        return _where_present(length >= 0, pc.if_else(flags[2] != 0, "empty", text))

    return print_all


def _multiranges(member: Decode) -> Decode:
    def print_all(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        _, to_off, to_length, offsets = split_members(buf, off, length, False)
        ranges = pa.ListArray.from_arrays(pa.array(offsets), member(buf, to_off, to_length))
        text = pc.binary_join_element_wise("{", pc.binary_join(ranges, ","), "}", "")
        return _where_present(length >= 0, text)

    return print_all


# -- arrays ------------------------------------------------------------------------------------------------------------

_MALFORMED, _CHANGED = range(2)
_REASONS = ("malformed array", CHANGED)
_MOST_DIMENSIONS = 6
_BOUNDS_ROOM = _MOST_DIMENSIONS * 25 + 3
"""The room for ``[lower:upper]`` of each dimension, an equals sign, and the braces of an empty array."""
_ELEMENT_ROOM = 4 + 1 + 2 * _MOST_DIMENSIONS
"""The room for ``NULL``, a delimiter, and braces."""


@kernel(nb.int64(IN8, IN32, IN32, nb.int64, I32, I32, I32))
def _split_elements(
    buf: Bytes, off: Ints, length: Ints, element: int, offsets: Ints, to_off: Ints, to_length: Ints
) -> int:
    """Split arrays of any dimensions and bounds."""
    n: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = n
        if length[r] < 0:
            continue
        at = start(off, r)
        end = at + length[r]
        if length[r] < 12:
            return blame(r, _MALFORMED)
        if int32_at(buf, at + 8) & 0xFFFFFFFF != element:
            return blame(r, _CHANGED)
        dimensions = int32_at(buf, at)
        if dimensions < 0 or dimensions > _MOST_DIMENSIONS or length[r] < 12 + 8 * dimensions:
            return blame(r, _MALFORMED)
        count: Any = np.int64(1 if dimensions else 0)
        for d in range(dimensions):
            size = int32_at(buf, at + 12 + 8 * d)
            if size < 0:
                return blame(r, _MALFORMED)
            count = min(count * size, np.int64(2**31))
        at += 12 + 8 * dimensions
        if 4 * count > end - at:
            return blame(r, _MALFORMED)
        for _ in range(count):
            if end - at < 4:
                return blame(r, _MALFORMED)
            size = int32_at(buf, at)
            at += 4
            if size < -1 or size > end - at:
                return blame(r, _MALFORMED)
            to_off[n] = at
            to_length[n] = size
            n += 1
            at += max(size, 0)
        if at != end:
            return blame(r, _MALFORMED)
    offsets[length.size] = n
    return FINE


@inlined
def _put_bound(data: Bytes, end: Any, value: Any) -> Any:
    if value < 0:
        data[end] = 45
        end += 1
    return put_number(data, end, np.uint64(abs(value)))


@inlined
def _put_bounds(data: Bytes, end: Any, buf: Bytes, at: int, dimensions: int) -> Any:
    """Write the bounds of all dimensions, if one of them does not begin at 1."""
    plain = True
    for d in range(dimensions):
        plain = plain and int32_at(buf, at + 16 + 8 * d) == 1
    if plain:
        return end
    for d in range(dimensions):
        size, lower = int32_at(buf, at + 12 + 8 * d), int32_at(buf, at + 16 + 8 * d)
        data[end] = 91
        end = _put_bound(data, end + 1, lower)
        data[end] = 58
        end = _put_bound(data, end + 1, lower + size - 1)
        data[end] = 93
        end += 1
    data[end] = 61
    return end + 1


@inlined
def _put_braces(data: Bytes, end: Any, buf: Bytes, at: int, dimensions: int, place: Any, brace: int) -> Any:
    """Write a brace for each dimension that begins or ends before the element of this number."""
    stride: Any = np.int64(1)
    for d in range(dimensions - 1, -1, -1):
        stride *= int32_at(buf, at + 12 + 8 * d)
        if place % stride:
            break
        data[end] = brace
        end += 1
    return end


@kernel(nb.int64(IN8, IN32, IN32, IN32, IN8, IN32, IN32, nb.int64, I32, U8))
def _print_arrays(
    buf: Bytes,
    off: Ints,
    length: Ints,
    elements: Ints,
    parts: Bytes,
    part_off: Ints,
    part_length: Ints,
    comma: int,
    offsets: Ints,
    data: Bytes,
) -> int:
    end: Any = np.int64(0)
    for r in range(length.size):
        offsets[r] = end
        if length[r] < 0:
            continue
        at = start(off, r)
        first, last = np.int64(elements[r]), np.int64(elements[r + 1])
        if first == last:
            data[end] = 123
            data[end + 1] = 125
            end += 2
            continue
        dimensions = int32_at(buf, at)
        end = _put_bounds(data, end, buf, at, dimensions)
        for n in range(first, last):
            if n > first:
                data[end] = comma
                end += 1
            end = _put_braces(data, end, buf, at, dimensions, n - first, 123)
            if part_length[n] < 0:
                data[end], data[end + 1], data[end + 2], data[end + 3] = 78, 85, 76, 76
                end += 4
            else:
                for k in range(part_length[n]):
                    data[end] = parts[part_off[n] + k]
                    end += 1
            end = _put_braces(data, end, buf, at, dimensions, n - first + 1, 125)
    offsets[length.size] = end
    return FINE


def _arrays(oid: int, element: Decode, comma: int) -> Decode:
    special = _table(_SPACES, _ESCAPED, b"{}", bytes([comma]))

    def print_all(buf: Bytes, off: Ints, length: Ints) -> pa.Array:
        most = total_bytes(length) // 4 + 1
        offsets = np.zeros(length.size + 1, np.int32)
        to_off, to_length = np.empty(most, np.int32), np.empty(most, np.int32)
        BadValueError.check(_split_elements(buf, off, length, oid, offsets, to_off, to_length), _REASONS)
        n = int(offsets[-1])
        texts = element(buf, to_off[:n], to_length[:n])
        parts = _wire(_quoted(texts, special, null=True))
        needed = length.size * _BOUNDS_ROOM + n * _ELEMENT_ROOM + int(np.maximum(parts[2], 0).sum(dtype=np.int64))
        printed, data = np.empty(length.size + 1, np.int32), np.empty(check_text_size(needed, length), np.uint8)
        _print_arrays(buf, off, length, offsets, *parts, comma, printed, data)
        return variable_width(pa.string(), printed, data, length)

    return print_all
