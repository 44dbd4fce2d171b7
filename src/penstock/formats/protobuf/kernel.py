"""Protobuf's wire format, walked by a plan.

Fields come in any order, any number of times, and the parts of one message may be apart from each other. So each
message is scanned first: every occurrence of a field that the plan knows is chained to its slot. Then the fields are
put, one after the other. The last value of a single field wins; parts of a single message are one message, as the
encoding says.

A field that the plan does not know is passed over: that is how Protobuf evolves. One whose wire type is not that of its
kind is a problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.gather import digits
from penstock.formats.problems import CODE, NODE, A, B, Faults, Problem
from penstock.formats.protobuf.ops import (
    BOOL,
    BYTES,
    DOUBLE,
    EMPTY,
    ENUM,
    FIXED32,
    FIXED64,
    FLOAT,
    IMPLICIT,
    INT32,
    MAP,
    MESSAGE,
    MOST_DEPTH,
    REQUIRED,
    SFIXED32,
    SFIXED64,
    SINGLE,
    SINT32,
    SINT64,
    STRING,
    TIMESTAMP,
    TIMESTAMP_EXACT,
    UINT32,
    UINT64,
    WRAPPED,
)
from penstock.formats.sink import NIL, Bytes, Ints, Sink, compiled, inner, put, put_null, reserve
from penstock.formats.wire import ENDED, invalid_utf8, little_endian, signed, varint

__all__ = ["Plan", "Scratch", "scratch_for", "walk_all"]

_FINE = np.int64(Problem.FINE)
_TRUNCATED = np.int64(Problem.TRUNCATED)
_OVERLONG = np.int64(Problem.OVERLONG)
_INTEGER_RANGE = np.int64(Problem.INTEGER_RANGE)
_LENGTH = np.int64(Problem.LENGTH)
_UTF8 = np.int64(Problem.UTF8)
_DEPTH = np.int64(Problem.DEPTH)
_WIRE_TYPE = np.int64(Problem.WIRE_TYPE)
_FIELD_NUMBER = np.int64(Problem.FIELD_NUMBER)
_GROUP = np.int64(Problem.GROUP)
_REQUIRED = np.int64(Problem.REQUIRED)
_NANOSECONDS = np.int64(Problem.NANOSECONDS)
_TIME_RANGE = np.int64(Problem.TIME_RANGE)
_PACKED = np.int64(Problem.PACKED)

_BAD = np.int64(-1)
_NONE = np.int64(-1)
_VARINT, _EIGHT, _BYTES, _BEGIN, _END, _FOUR = range(6)
_MOST_NUMBER = np.uint64((1 << 29) - 1)
_U3 = np.uint64(3)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, as Protobuf's own rule says


class Plan(NamedTuple):
    """How to read messages of one or several descriptors."""

    messages: Ints
    """A row per message: its first field and how many it has."""
    fields: Ints
    """A row per field: number, kind, column, cardinality, presence, message or first name, count of names."""
    names: Ints
    """A row per name of an enumeration: its number, and its place and size in the constants."""
    constants: Bytes


class Scratch(NamedTuple):
    """Room for the occurrences of fields of the messages that are open."""

    head: Ints
    tail: Ints
    place: Ints
    size: Ints
    after: Ints
    used: Ints
    """How many slots and how many occurrences are in use."""


def scratch_for(longest: int, deepest: int, widest: int) -> Scratch:
    """Make room for messages of so many bytes, nested so deep, with so many fields at all levels together."""
    slots, found = widest + 1, (longest // 2 + 4) * (deepest + 1)
    return Scratch(*(np.zeros(size, np.int64) for size in (slots, slots, found, found, found, 2)))


@compiled
def walk_all(
    data: Bytes, start: Ints, end: Ints, root: Ints, plan: Plan, scratch: Scratch, sink: Sink, faults: Faults
) -> None:
    """Put every message that has no fault yet; note the faults that are found."""
    before = np.empty_like(sink.count)
    for index in range(len(start)):
        if faults[index, CODE] != _FINE:
            put_null(sink, 0)
            continue
        before[:] = sink.count
        fault = faults[index]
        scratch.used[:] = 0
        whole = _chained(scratch, _NONE, start[index], end[index] - start[index])
        put(sink, 0, NIL, NIL)
        if not _message(data, whole, root[index], NIL, plan, scratch, sink, fault):
            code = fault[CODE]
            if code in (_TRUNCATED, _OVERLONG, _UTF8, _INTEGER_RANGE, _FIELD_NUMBER, _GROUP):
                fault[A] -= start[index]
            sink.count[:] = before
            put_null(sink, 0)


@inner
def _blame(fault: Ints, problem: int, field: int, a: int, b: int) -> int:
    fault[CODE] = problem
    fault[NODE] = field + 1
    fault[A] = a
    fault[B] = b
    return _BAD


@inner
def _chained(scratch: Scratch, slot: int, place: int, size: int) -> int:
    """Add an occurrence at the end of a slot's chain (of none: on its own)."""
    entry = scratch.used[1]
    scratch.used[1] = entry + 1
    scratch.place[entry] = place
    scratch.size[entry] = size
    scratch.after[entry] = _NONE
    if slot != _NONE:
        if scratch.head[slot] == _NONE:
            scratch.head[slot] = entry
        else:
            scratch.after[scratch.tail[slot]] = entry
        scratch.tail[slot] = entry
    return entry


@inner
def _number(data: Bytes, at: int, end: int, field: int, fault: Ints) -> tuple[np.uint64, int]:
    number, after = varint(data, at, end)
    if after < 0:
        problem = _TRUNCATED if after == ENDED else _OVERLONG
        return number, _blame(fault, problem, field, end if after == ENDED else at, NIL)
    return number, after


@inner
def _passed(data: Bytes, at: int, end: int, wire: int, number: int, field: int, fault: Ints) -> int:
    """Return the place after a value of any wire type; of groups, after their end."""
    open_groups = np.empty(MOST_DEPTH, np.int64)
    depth = 0
    while True:
        if wire == _VARINT:
            _, at = _number(data, at, end, field, fault)
        elif wire == _BYTES:
            length, at = _number(data, at, end, field, fault)
            if at >= 0:
                if length > np.uint64(end - at):
                    return _blame(fault, _LENGTH, field, np.int64(length), end - at)
                at += np.int64(length)
        elif wire in (_EIGHT, _FOUR):
            width = 8 if wire == _EIGHT else 4
            at = at + width if end - at >= width else _blame(fault, _TRUNCATED, field, end, NIL)
        elif wire == _BEGIN:
            if depth == MOST_DEPTH:
                return _blame(fault, _DEPTH, field, MOST_DEPTH, NIL)
            open_groups[depth] = number
            depth += 1
        elif wire == _END:
            if depth == 0 or open_groups[depth - 1] != number:
                return _blame(fault, _GROUP, field, at, NIL)
            depth -= 1
        else:
            return _blame(fault, _FIELD_NUMBER, field, at, NIL)
        if at < 0 or depth == 0:
            return at
        tag, at = _number(data, at, end, field, fault)
        if at < 0:
            return _blame(fault, _GROUP, field, end, NIL)
        wire, number = np.int64(tag & np.uint64(7)), np.int64(tag >> _U3)


@inner
def _wire_type(kind: int) -> int:
    if kind in (DOUBLE, FIXED64, SFIXED64):
        return _EIGHT
    if kind in (FLOAT, FIXED32, SFIXED32):
        return _FOUR
    if kind in (STRING, BYTES, MESSAGE) or kind > SINT64:
        return _BYTES
    return _VARINT


@inner
def _tag(data: Bytes, at: int, end: int, field: int, fault: Ints) -> tuple[int, int, int]:
    """Read a field's number and wire type."""
    tag, after = _number(data, at, end, field, fault)
    number = tag >> _U3
    if after >= 0 and (number == np.uint64(0) or number > _MOST_NUMBER):
        after = _blame(fault, _FIELD_NUMBER, field, at, NIL)
    return np.int64(number), np.int64(tag & np.uint64(7)), after


@inner
def _well_formed(data: Bytes, at: int, end: int, field: int, fault: Ints) -> bool:
    """Say whether a message of which nothing is wanted is one."""
    while at >= 0 and at < end:
        number, wire, at = _tag(data, at, end, field, fault)
        if at >= 0:
            at = _passed(data, at, end, wire, number, field, fault)
    return at >= 0


@inner
def _scan(
    data: Bytes, whole: int, first: int, count: int, slots: int, plan: Plan, scratch: Scratch, fault: Ints
) -> bool:
    """Chain the occurrences of known fields in all parts of a message."""
    part, guess = whole, 0
    while part != _NONE:
        at, end = scratch.place[part], scratch.place[part] + scratch.size[part]
        while at < end:
            number, wire, at = _tag(data, at, end, _NONE, fault)
            if at < 0:
                return False
            field = _NONE
            for step in range(count):
                candidate = (guess + step) % count
                if plan.fields[first + candidate, 0] == number:
                    field, guess = first + candidate, candidate
                    break
            value = at
            at = _passed(data, at, end, wire, number, field, fault)
            if at < 0:
                return False
            if field == _NONE:
                continue
            expected = _wire_type(plan.fields[field, 1])
            packed = wire == _BYTES and expected != _BYTES and plan.fields[field, 3] != SINGLE
            if wire != expected and not packed:
                _blame(fault, _WIRE_TYPE, field, wire, expected)
                return False
            if wire == _BYTES:
                length, value = varint(data, value, end)
                _chained(scratch, slots + field - first, value, np.int64(length))
            else:
                _chained(scratch, slots + field - first, value, -1)
        part = scratch.after[part]
    return True


@inner
def _message(
    data: Bytes, whole: int, message: int, depth: int, plan: Plan, scratch: Scratch, sink: Sink, fault: Ints
) -> bool:
    """Put the fields of a message whose parts are the chain `whole`; False with the fault noted.

    One function for all that holds others: numba keeps functions that call themselves in its cache, but crashes when
    it loads two that call each other.
    """
    if depth > MOST_DEPTH:
        _blame(fault, _DEPTH, _NONE, MOST_DEPTH, NIL)
        return False
    first, count = plan.messages[message, 0], plan.messages[message, 1]
    slots, found = scratch.used[0], scratch.used[1]
    scratch.used[0] += count
    scratch.head[slots : slots + count] = _NONE
    if not _scan(data, whole, first, count, slots, plan, scratch, fault):
        return False
    for field in range(first, first + count):
        kind, column, often = plan.fields[field, 1], plan.fields[field, 2], plan.fields[field, 3]
        head, inside = scratch.head[slots + field - first], plan.fields[field, 5]
        if kind != MESSAGE and kind != WRAPPED:
            if not _plain(data, field, slots + field - first, plan, scratch, sink, fault):
                return False
        elif often == SINGLE:
            if head == _NONE and plan.fields[field, 4] == REQUIRED:
                _blame(fault, _REQUIRED, field, NIL, NIL)
                return False
            if head == _NONE and plan.fields[field, 4] != IMPLICIT:
                put_null(sink, column)
                continue
            if kind == MESSAGE:
                put(sink, column, NIL, NIL)
            if not _message(data, head, inside, depth + 1, plan, scratch, sink, fault):
                return False
        else:
            place, items, part = reserve(sink, column), 0, head
            while part != _NONE:
                if often != MAP and kind == MESSAGE:
                    put(sink, column + 1, NIL, NIL)
                alone = _chained(scratch, _NONE, scratch.place[part], scratch.size[part])
                if not _message(data, alone, inside, depth + 1, plan, scratch, sink, fault):
                    return False
                scratch.used[1] = alone
                items += 1
                part = scratch.after[part]
            if sink.valid.size:
                sink.value[place] = items
    scratch.used[0], scratch.used[1] = slots, found
    return True


@inner
def _plain(data: Bytes, field: int, slot: int, plan: Plan, scratch: Scratch, sink: Sink, fault: Ints) -> bool:
    """Put a field that holds no messages, from the chain of its occurrences."""
    kind, column = plan.fields[field, 1], plan.fields[field, 2]
    head = scratch.head[slot]
    if plan.fields[field, 3] != SINGLE:
        return _items(data, field, head, plan, scratch, sink, fault)
    if head != _NONE:
        if kind in (TIMESTAMP, TIMESTAMP_EXACT):
            return _timestamp(data, head, field, plan, scratch, sink, fault)
        last = scratch.tail[slot]
        return _value(data, scratch.place[last], scratch.size[last], len(data), field, plan, sink, fault) >= 0
    if plan.fields[field, 4] == REQUIRED:
        _blame(fault, _REQUIRED, field, NIL, NIL)
        return False
    if plan.fields[field, 4] != IMPLICIT:
        put_null(sink, column)
    elif kind == ENUM:
        _put_name(0, field, plan, sink)
    else:
        put(sink, column, NIL, NIL)
    return True


@inner
def _items(data: Bytes, field: int, head: int, plan: Plan, scratch: Scratch, sink: Sink, fault: Ints) -> bool:
    """Put the items of a repeated field that holds no messages."""
    kind, place = plan.fields[field, 1], reserve(sink, plan.fields[field, 2])
    count, part = 0, head
    while part != _NONE:
        at, size = scratch.place[part], scratch.size[part]
        if kind in (TIMESTAMP, TIMESTAMP_EXACT):
            alone = _chained(scratch, _NONE, at, size)
            if not _timestamp(data, alone, field, plan, scratch, sink, fault):
                return False
            scratch.used[1] = alone
            count += 1
        elif size >= 0 and _wire_type(kind) != _BYTES:
            end = at + size
            while at < end:
                at = _value(data, at, -1, end, field, plan, sink, fault)
                if at < 0:
                    if fault[CODE] == _TRUNCATED:
                        fault[CODE], fault[A] = _PACKED, size
                    return False
                count += 1
        else:
            if _value(data, at, size, len(data), field, plan, sink, fault) < 0:
                return False
            count += 1
        part = scratch.after[part]
    if sink.valid.size:
        sink.value[place] = count
    return True


@inner
def _value(data: Bytes, at: int, size: int, end: int, field: int, plan: Plan, sink: Sink, fault: Ints) -> int:
    """Put a value that holds no others; return the place after it."""
    kind = plan.fields[field, 1]
    column = plan.fields[field, 2] + (1 if plan.fields[field, 3] != SINGLE else 0)
    wire = _wire_type(kind)
    if wire == _BYTES:
        if kind == STRING:
            wrong = invalid_utf8(data, at, at + size)
            if wrong >= 0:
                return _blame(fault, _UTF8, field, wrong, NIL)
        if kind == EMPTY and not _well_formed(data, at, at + size, field, fault):
            return _BAD
        put(sink, column, 1 if kind == EMPTY else at, 0 if kind == EMPTY else size)
        return at + size
    if wire == _VARINT:
        number, after = _number(data, at, end, field, fault)
        if after < 0:
            return _BAD
        return after if _put_varint(number, kind, column, at, field, plan, sink, fault) else _BAD
    width = 8 if wire == _EIGHT else 4
    if end - at < width:
        return _blame(fault, _TRUNCATED, field, end, NIL)
    bits = little_endian(data, at, width)
    if kind == FIXED64:
        put(sink, column, 0, np.int64(bits))
    elif kind == SFIXED32:
        put(sink, column, np.int64(np.int32(np.uint32(bits))), NIL)
    else:
        put(sink, column, np.int64(bits), NIL)
    return at + width


@inner
def _put_varint(
    number: np.uint64, kind: int, column: int, at: int, field: int, plan: Plan, sink: Sink, fault: Ints
) -> bool:
    value = signed(number) if kind in (SINT32, SINT64) else np.int64(number)
    if kind == UINT64:
        put(sink, column, 0, value)
        return True
    if kind in (INT32, SINT32, ENUM):
        if value > 2147483647 or value < -2147483648:
            _blame(fault, _INTEGER_RANGE, field, at, NIL)
            return False
    elif kind == UINT32 and (value > 4294967295 or value < 0):
        _blame(fault, _INTEGER_RANGE, field, at, NIL)
        return False
    if kind == ENUM:
        name = _name(value, field, plan)
        if name == _NONE:
            put(sink, column, value, -digits(value))
        else:
            put(sink, column, -1 - plan.names[name, 1], plan.names[name, 2])
    else:
        put(sink, column, (1 if value else 0) if kind == BOOL else value, NIL)
    return True


@inner
def _name(number: int, field: int, plan: Plan) -> int:
    first = plan.fields[field, 5]
    for index in range(first, first + plan.fields[field, 6]):
        if plan.names[index, 0] == number:
            return index
    return _NONE


@inner
def _put_name(number: int, field: int, plan: Plan, sink: Sink) -> None:
    name = _name(number, field, plan)
    if name == _NONE:
        put(sink, plan.fields[field, 2], number, -digits(number))
    else:
        put(sink, plan.fields[field, 2], -1 - plan.names[name, 1], plan.names[name, 2])


@inner
def _timestamp(data: Bytes, whole: int, field: int, plan: Plan, scratch: Scratch, sink: Sink, fault: Ints) -> bool:
    """Put seconds and nanoseconds since 1970 as microseconds."""
    seconds, nanos = np.int64(0), np.int64(0)
    part = whole
    while part != _NONE:
        at, end = scratch.place[part], scratch.place[part] + scratch.size[part]
        while at < end:
            number, wire, at = _tag(data, at, end, field, fault)
            value = at
            if at >= 0:
                at = _passed(data, at, end, wire, number, field, fault)
            if at >= 0 and number <= 2 and wire != _VARINT:
                at = _blame(fault, _WIRE_TYPE, field, wire, _VARINT)
            if at < 0:
                return False
            if number == 1:
                seconds = np.int64(varint(data, value, end)[0])
            elif number == 2:
                nanos = np.int64(varint(data, value, end)[0])
        part = scratch.after[part]
    if seconds > _LAST_SECOND or seconds < _FIRST_SECOND or nanos < 0 or nanos > 999_999_999:
        _blame(fault, _TIME_RANGE, field, NIL, NIL)
        return False
    if plan.fields[field, 1] == TIMESTAMP_EXACT and nanos % 1000:
        _blame(fault, _NANOSECONDS, field, NIL, NIL)
        return False
    column = plan.fields[field, 2] + (1 if plan.fields[field, 3] != SINGLE else 0)
    put(sink, column, seconds * 1_000_000 + nanos // 1000, NIL)
    return True
