"""Validate and write Protobuf values that are not messages, by field type."""

from __future__ import annotations

from penstock.formats.binary_values import invalid_utf8, signed
from penstock.formats.column_writer import ColumnWriter, put, put_pair
from penstock.formats.decode_errors import ErrorCode
from penstock.formats.error_records import set_error
from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import WORD, word
from penstock.formats.protobuf.field_occurrences import NEXT, NUMBER, PLACE
from penstock.formats.protobuf.ops import (
    BOOL,
    BYTES,
    CHILD,
    EMPTY,
    ENUM,
    FIELD,
    FIXED64,
    INT32,
    KIND,
    NAME,
    NAMES,
    SFIXED32,
    SINT32,
    SINT64,
    STRING,
    TIMESTAMP_EXACT,
    UINT32,
    UINT64,
    VALUES,
    VARINT,
    Plan,
)
from penstock.formats.protobuf.tags import is_well_formed, tag_at, value_at
from penstock.formats.spans import digit_count

__all__ = ["node_of", "put_timestamp", "put_value"]

_UTF8 = constant(ErrorCode.UTF8)
_INTEGER_RANGE = constant(ErrorCode.INTEGER_RANGE)
_WIRE_TYPE = constant(ErrorCode.WIRE_TYPE)
_NANOSECONDS = constant(ErrorCode.NANOSECONDS)
_TIME_RANGE = constant(ErrorCode.TIME_RANGE)
_VARINT = constant(VARINT)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, as Protobuf specifies


@inner
def node_of(field: int, plan: Plan) -> int:
    """Return the node number of a field for error records, given the address of its row; 0 is none."""
    return (field - plan.fields) // FIELD + 1


@inner
def put_value(number: int, place: int, field: int, plan: Plan, groups: int, out: ColumnWriter, error: int) -> bool:
    """Write a number or, for strings and bytes, `number` bytes at `place`; return False if an error was set."""
    kind, column = word(field + KIND), word(field + VALUES)
    if kind in (STRING, BYTES):
        if kind == STRING:
            wrong = invalid_utf8(place, place + number)
            if wrong >= 0:
                return set_error(error, _UTF8, node_of(field, plan), wrong, NIL) >= 0
        put_pair(out, column, place, number)
        return True
    if kind in (UINT64, FIXED64):
        put_pair(out, column, NIL, number)
        return True
    if kind == EMPTY:
        put(out, column, 1 if place else 0)
        return is_well_formed(place, place + number, node_of(field, plan), groups, error)
    if kind in (SINT32, SINT64):
        number = signed(number)
    elif kind == SFIXED32:
        number = number - ((number & 0x80000000) << 1)
    elif kind == BOOL:
        number = 1 if number else 0
    least, most = (0, 4294967295) if kind == UINT32 else (-2147483648, 2147483647)
    if (kind in (INT32, SINT32, ENUM, UINT32)) and (number < least or number > most):
        return set_error(error, _INTEGER_RANGE, node_of(field, plan), place, NIL) >= 0
    if kind == ENUM:
        _put_name(number, field, plan, out)
    else:
        put(out, column, number)
    return True


@inner
def _put_name(number: int, field: int, plan: Plan, out: ColumnWriter) -> None:
    """Write the name of an enum number, or the number if it has no name."""
    names, count, column = plan.names + NAME * word(field + CHILD), word(field + NAMES), word(field + VALUES)
    if 0 <= number < count and word(names + NAME * number) == number:  # numbers mostly count from 0
        name = names + NAME * number
    else:
        name = names
        while name < names + NAME * count and word(name) != number:
            name += NAME
    if name < names + NAME * count:
        put_pair(out, column, plan.constants + word(name + WORD), word(name + 2 * WORD))
    else:
        put_pair(out, column, number, -digit_count(number))


@inner
def put_timestamp(part: int, field: int, plan: Plan, groups: int, out: ColumnWriter, error: int) -> bool:
    """Write seconds and nanoseconds since 1970 as microseconds; the message may consist of several parts."""
    seconds, nanos, node = NIL, NIL, node_of(field, plan)
    while part != 0:
        at, end = word(part + PLACE), word(part + PLACE) + word(part + NUMBER)
        while at < end:
            tag, at = tag_at(at, end, node, error)
            number = NIL
            if at >= 0:
                number, _, at = value_at(at, end, tag, node, groups, error)
            if at >= 0 and tag >> 3 <= 2 and tag & 7 != VARINT:
                at = set_error(error, _WIRE_TYPE, node, tag & 7, _VARINT)
            if at < 0:
                return False
            if tag >> 3 == 1:
                seconds = number
            elif tag >> 3 == 2:
                nanos = number
        part = word(part + NEXT)
    if seconds > _LAST_SECOND or seconds < _FIRST_SECOND or nanos < 0 or nanos > 999_999_999:
        return set_error(error, _TIME_RANGE, node, NIL, NIL) >= 0
    if word(field + KIND) == TIMESTAMP_EXACT and nanos % 1000:
        return set_error(error, _NANOSECONDS, node, NIL, NIL) >= 0
    put(out, word(field + VALUES), seconds * 1_000_000 + nanos // 1000)
    return True
