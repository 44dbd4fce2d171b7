"""Protobuf values that hold no messages, by the kind of their field: checked, and put."""

from __future__ import annotations

from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.faults import blame
from penstock.formats.gather import digits
from penstock.formats.memory import WORD, word
from penstock.formats.problems import Problem
from penstock.formats.protobuf.occurrences import NEXT, NUMBER, PLACE
from penstock.formats.protobuf.ops import (
    BOOL,
    BYTES,
    EMPTY,
    ENUM,
    FIELD,
    FIXED64,
    INSIDE,
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
from penstock.formats.protobuf.tags import tag_at, value_at, well_formed
from penstock.formats.sink import Sink, put, put_two
from penstock.formats.wire import invalid_utf8, signed

__all__ = ["node_of", "put_timestamp", "put_value"]

_UTF8 = constant(Problem.UTF8)
_INTEGER_RANGE = constant(Problem.INTEGER_RANGE)
_WIRE_TYPE = constant(Problem.WIRE_TYPE)
_NANOSECONDS = constant(Problem.NANOSECONDS)
_TIME_RANGE = constant(Problem.TIME_RANGE)
_VARINT = constant(VARINT)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, as Protobuf's own rule says


@inner
def node_of(field: int, plan: Plan) -> int:
    """Return what faults call a field, given where its row is; 0 is none."""
    return (field - plan.fields) // FIELD + 1


@inner
def put_value(number: int, place: int, field: int, plan: Plan, groups: int, sink: Sink, fault: int) -> bool:
    """Put a number as it was sent or, of text and bytes, so many bytes at `place`; False with the fault noted."""
    kind, column = word(field + KIND), word(field + VALUES)
    if kind in (STRING, BYTES):
        if kind == STRING:
            wrong = invalid_utf8(place, place + number)
            if wrong >= 0:
                return blame(fault, _UTF8, node_of(field, plan), wrong, NIL) >= 0
        put_two(sink, column, place, number)
        return True
    if kind in (UINT64, FIXED64):
        put_two(sink, column, NIL, number)
        return True
    if kind == EMPTY:
        put(sink, column, 1 if place else 0)
        return well_formed(place, place + number, node_of(field, plan), groups, fault)
    if kind in (SINT32, SINT64):
        number = signed(number)
    elif kind == SFIXED32:
        number = number - ((number & 0x80000000) << 1)
    elif kind == BOOL:
        number = 1 if number else 0
    least, most = (0, 4294967295) if kind == UINT32 else (-2147483648, 2147483647)
    if (kind in (INT32, SINT32, ENUM, UINT32)) and (number < least or number > most):
        return blame(fault, _INTEGER_RANGE, node_of(field, plan), place, NIL) >= 0
    if kind == ENUM:
        _put_name(number, field, plan, sink)
    else:
        put(sink, column, number)
    return True


@inner
def _put_name(number: int, field: int, plan: Plan, sink: Sink) -> None:
    """Put the name of a number of an enumeration; of one that has none, the number."""
    names, count, column = plan.names + NAME * word(field + INSIDE), word(field + NAMES), word(field + VALUES)
    if 0 <= number < count and word(names + NAME * number) == number:  # they mostly count from 0
        name = names + NAME * number
    else:
        name = names
        while name < names + NAME * count and word(name) != number:
            name += NAME
    if name < names + NAME * count:
        put_two(sink, column, plan.constants + word(name + WORD), word(name + 2 * WORD))
    else:
        put_two(sink, column, number, -digits(number))


@inner
def put_timestamp(part: int, field: int, plan: Plan, groups: int, sink: Sink, fault: int) -> bool:
    """Put seconds and nanoseconds since 1970 as microseconds; the message may come in several parts."""
    seconds, nanos, node = NIL, NIL, node_of(field, plan)
    while part != 0:
        at, end = word(part + PLACE), word(part + PLACE) + word(part + NUMBER)
        while at < end:
            tag, at = tag_at(at, end, node, fault)
            number = NIL
            if at >= 0:
                number, _, at = value_at(at, end, tag, node, groups, fault)
            if at >= 0 and tag >> 3 <= 2 and tag & 7 != VARINT:
                at = blame(fault, _WIRE_TYPE, node, tag & 7, _VARINT)
            if at < 0:
                return False
            if tag >> 3 == 1:
                seconds = number
            elif tag >> 3 == 2:
                nanos = number
        part = word(part + NEXT)
    if seconds > _LAST_SECOND or seconds < _FIRST_SECOND or nanos < 0 or nanos > 999_999_999:
        return blame(fault, _TIME_RANGE, node, NIL, NIL) >= 0
    if word(field + KIND) == TIMESTAMP_EXACT and nanos % 1000:
        return blame(fault, _NANOSECONDS, node, NIL, NIL) >= 0
    put(sink, word(field + VALUES), seconds * 1_000_000 + nanos // 1000)
    return True
