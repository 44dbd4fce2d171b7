"""Encode rows as Protobuf, a column at a time: the counterpart of `decoder`, for the column types of `types`.

Fields are written in the order of their numbers, and repeated numbers are packed, as Google's library does. A null is a
missing field; so is a zero in a field without presence.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.formats.binary_encoder import (
    ByteStrings,
    FixedWidth,
    Part,
    Present,
    Repeated,
    Sequences,
    Varints,
    encode_messages,
    list_items,
    list_offsets,
    zigzag,
)
from penstock.formats.jit import Ints
from penstock.formats.protobuf import ops
from penstock.formats.protobuf.descriptor import Pool, ProtoEnum, ProtoField, ProtoMessage
from penstock.formats.protobuf.types import field_kind, is_map, type_of

__all__ = ["encode_protobuf"]

_MICROS = 1_000_000
_UNSIGNED = {ops.UINT32: 32, ops.FIXED32: 32, ops.UINT64: 64, ops.FIXED64: 64}
_WIDTHS = {
    **{ops.FLOAT: "<f4", ops.DOUBLE: "<f8", ops.FIXED32: "<u4", ops.SFIXED32: "<i4"},
    **{ops.FIXED64: "<i8", ops.SFIXED64: "<i8"},
}


def encode_protobuf(
    pool: Pool, message: ProtoMessage, values: pa.StructArray, header: bytes = b""
) -> pa.LargeBinaryArray:
    """Return the rows as messages, each after a header."""
    return encode_messages(values, lambda block: _Encoder(pool).message(message, block), header)


class _Encoder:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def message(self, message: ProtoMessage, values: pa.StructArray) -> Part:
        places = {one.name: place for place, one in enumerate(message.fields)}
        fields = sorted(message.fields, key=lambda one: one.number)
        parts = [self._field(one, message.name, values.field(places[one.name])) for one in fields]
        return Sequences(parts, len(values))

    def _field(self, field: ProtoField, scope: str, values: pa.Array) -> Part:
        if field.presence == ops.REQUIRED and values.null_count:
            message = f"column {field.name!r} is null, but the field of Protobuf message {scope} is required"
            raise DefiniteError(message, "Use a message in which the field is optional.")
        if is_map(self._pool, field, scope):
            return Repeated(self._entries(field, scope, values), list_offsets(values))
        kind = field_kind(self._pool, field, scope)
        if field.repeated:
            return self._repeated(field, kind, scope, values)
        rows = np.flatnonzero(self._is_written(field, kind, scope, values))
        return Present(self._tagged(field, kind, scope, values.take(pa.array(rows))), rows, len(values))

    def _is_written(self, field: ProtoField, kind: int, scope: str, values: pa.Array) -> npt.NDArray[np.bool_]:
        """Return which values are written: those that are not null and, in a field without presence, not zero."""
        written = values.is_valid()
        if kind == ops.EMPTY:
            written = values
        elif field.presence != ops.IMPLICIT or kind in (ops.MESSAGE, ops.WRAPPED, ops.TIMESTAMP):
            pass
        elif kind in (ops.STRING, ops.BYTES):
            written = pc.greater(pc.binary_length(values), 0)
        elif kind == ops.ENUM:
            names = self._pool.enums[type_of(self._pool, field, scope)].names
            written = pc.not_equal(values, names.get(0, "0"))
        elif kind in (ops.FLOAT, ops.DOUBLE):
            numbers = values.fill_null(0).to_numpy(zero_copy_only=False)
            written = pa.array(numbers.view(f"i{numbers.itemsize}") != 0)  # -0 is written
        elif kind == ops.BOOL:
            written = values
        else:
            written = pc.not_equal(values, pa.scalar(0, values.type))
        found: npt.NDArray[np.bool_] = pc.fill_null(written, False).to_numpy(zero_copy_only=False)
        return found

    def _tagged(self, field: ProtoField, kind: int, scope: str, values: pa.Array) -> Part:
        tag = field.number << 3 | ops.wire_type(kind)
        return Sequences([_constant(tag, len(values)), self._values(field, kind, scope, values)], len(values))

    def _repeated(self, field: ProtoField, kind: int, scope: str, lists: pa.Array) -> Part:
        items, offsets = list_items(lists, lists.values), list_offsets(lists)
        if items.null_count:
            message = f"column {field.name!r} has a list with null, which Protobuf cannot represent"
            raise DefiniteError(message, "Exclude the column, or use another format.")
        if ops.wire_type(kind) == ops.LEN:
            return Repeated(self._tagged(field, kind, scope, items), offsets)
        filled = np.flatnonzero(np.diff(offsets))
        packed = Repeated(self._values(field, kind, scope, items), np.append(offsets[:-1][filled], offsets[-1]))
        tag = _constant(field.number << 3 | ops.LEN, len(filled))
        return Present(Sequences([tag, _delimited(packed)], len(filled)), filled, len(lists))

    def _entries(self, field: ProtoField, scope: str, maps: pa.MapArray) -> Part:
        """Return the entries of maps: messages with a key and a value."""
        entry = self._pool.message(type_of(self._pool, field, scope))
        columns = [list_items(maps, maps.keys), list_items(maps, maps.items)]
        pair = zip(sorted(entry.fields, key=lambda one: one.number), columns, strict=True)
        content = Sequences([self._field(one, entry.name, column) for one, column in pair], len(columns[0]))
        tag = _constant(field.number << 3 | ops.LEN, len(columns[0]))
        return Sequences([tag, _delimited(content)], len(columns[0]))

    def _values(self, field: ProtoField, kind: int, scope: str, values: pa.Array) -> Part:
        """Return values that are not null, without their tags."""
        match kind:
            case ops.MESSAGE:
                return _delimited(self.message(self._pool.message(type_of(self._pool, field, scope)), values))
            case ops.WRAPPED:
                name = type_of(self._pool, field, scope)
                [inner] = self._pool.message(name).fields
                return _delimited(self._field(inner, name, values))
            case ops.TIMESTAMP:
                return _delimited(_timestamps(values))
            case ops.EMPTY:
                return _constant(0, len(values))
            case ops.STRING | ops.BYTES:
                return _delimited(ByteStrings(values))
            case ops.ENUM:
                return Varints(_enum_numbers(self._pool.enums[type_of(self._pool, field, scope)], values))
        numbers = _numbers(field, kind, values)
        if kind in _WIDTHS:
            return FixedWidth(numbers.astype(_WIDTHS[kind]))
        return Varints(zigzag(numbers) if kind in (ops.SINT32, ops.SINT64) else numbers.astype(np.int64))


def _constant(number: int, count: int) -> Part:
    return Varints(np.full(count, number, np.int64))


def _delimited(part: Part) -> Part:
    return Sequences([Varints(part.sizes), part], len(part.sizes))


def _numbers(field: ProtoField, kind: int, values: pa.Array) -> npt.NDArray[np.generic]:
    if kind not in _UNSIGNED:
        return np.asarray(values.to_numpy(zero_copy_only=False))
    highest = pa.scalar(2 ** _UNSIGNED[kind] - 1, pa.decimal128(20, 0))
    decimals = values.cast(pa.decimal128(20, 0))
    outside = pc.or_(pc.less(decimals, pa.scalar(0, decimals.type)), pc.greater(decimals, highest))
    if pc.any(outside).as_py():
        message = f"a value of column {field.name!r} is outside the range of {_UNSIGNED[kind]} bits without a sign"
        raise DefiniteError(message, "Use a message in which the field is a string or has a sign.")
    low: Ints = np.frombuffer(decimals.buffers()[1], np.int64)[
        2 * decimals.offset : 2 * (decimals.offset + len(values)) : 2
    ]
    return low


def _timestamps(values: pa.Array) -> Part:
    """Return ``google.protobuf.Timestamp``: seconds in field 1, nanoseconds in field 2."""
    micros = values.cast(pa.int64()).to_numpy()
    seconds, nanos = micros // _MICROS, micros % _MICROS * 1000
    parts: list[Part] = []
    for number, column in ((1, seconds), (2, nanos)):
        rows = np.flatnonzero(column)
        written = Sequences([_constant(number << 3 | ops.VARINT, len(rows)), Varints(column[rows])], len(rows))
        parts.append(Present(written, rows, len(micros)))
    return Sequences(parts, len(micros))


def _enum_numbers(enum: ProtoEnum, values: pa.Array) -> Ints:
    """Return the numbers of names; the text of a number that has no name is that number."""
    known = {name: number for number, name in enum.names.items()}
    places = pc.index_in(values, pa.array(list(known), values.type))
    unnamed = pc.if_else(places.is_valid(), pa.scalar(None, values.type), values)
    try:
        parsed = pc.fill_null(unnamed.cast(pa.int32()), 0).to_numpy()
    except pa.ArrowInvalid as error:
        message = f"a value is not a name of Protobuf enum {enum.name}"
        raise DefiniteError(message, "Use a message in which the field is a string.") from error
    named = np.append(np.array(list(known.values()), np.int64), 0)
    chosen = named[pc.fill_null(places, len(known)).to_numpy(zero_copy_only=False)]
    return np.asarray(np.where(places.is_valid().to_numpy(zero_copy_only=False), chosen, parsed), np.int64)
