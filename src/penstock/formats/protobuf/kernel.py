"""Kernel of Protobuf: decode messages with a plan.

Fields occur in any order and any number of times, and the parts of one nested message may be apart from each other. So
each message is scanned first: every occurrence of a field in the plan is chained to the field's slot. Then the fields
are written, one after the other. The last value of a singular field wins, and the last member of a ``oneof``; the parts
of a singular message are merged, as the encoding requires.

A field that is not in the plan is skipped: that is how Protobuf evolves. A field with a wire type that does not match
its type is an error, and so is a value that is not valid for its type.
"""

from __future__ import annotations

from penstock.formats.binary_values import invalid_utf8, signed
from penstock.formats.column_writer import ColumnWriter, put, put_null, put_pair, put_present, reserve, set_count
from penstock.formats.decode_errors import CODE, FAILED, A, ErrorCode, error_record, finish_message, is_ok, set_error
from penstock.formats.jit import NIL, Ints, compiled, constant, inner
from penstock.formats.memory import WORD, set_word, word
from penstock.formats.protobuf.ops import (
    BOOL,
    BYTES,
    CARDINALITY,
    CHILD,
    COLUMN,
    EMPTY,
    ENUM,
    FIELD,
    FIXED64,
    IMPLICIT,
    INT32,
    KIND,
    LEN,
    MAP,
    MAX_DEPTH,
    MESSAGE,
    NAME,
    NAMES,
    ONEOF,
    PRESENCE,
    REQUIRED,
    SFIXED32,
    SINGLE,
    SINT32,
    SINT64,
    STRING,
    TAG,
    TIMESTAMP,
    TIMESTAMP_EXACT,
    UINT32,
    UINT64,
    VALUES,
    VARINT,
    WRAPPED,
    Plan,
)
from penstock.formats.protobuf.tags import (
    NEXT,
    NUMBER,
    OCCURRENCE,
    PLACE,
    SLOT,
    WIRE,
    Scratch,
    add_occurrence,
    chain,
    first_occurrence,
    is_well_formed,
    last_occurrence,
    tag_at,
    value_at,
)
from penstock.formats.spans import digit_count

__all__ = ["walk_all"]


# -- values that are not messages --------------------------------------------------------------------------------------

_UTF8 = constant(ErrorCode.UTF8)
_INTEGER_RANGE = constant(ErrorCode.INTEGER_RANGE)
_WIRE_TYPE = constant(ErrorCode.WIRE_TYPE)
_NANOSECONDS = constant(ErrorCode.NANOSECONDS)
_TIME_RANGE = constant(ErrorCode.TIME_RANGE)
_VARINT = constant(VARINT)
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799  # the years 1 to 9999, as Protobuf specifies


@inner
def _node_of(field: int, plan: Plan) -> int:
    """Return the node number of a field for error records, given the address of its row; 0 is none."""
    return (field - plan.fields) // FIELD + 1


@inner
def _put_value(number: int, place: int, field: int, plan: Plan, groups: int, out: ColumnWriter, error: int) -> bool:
    """Write a number or, for strings and bytes, `number` bytes at `place`; return False if an error was set."""
    kind, column = word(field + KIND), word(field + VALUES)
    if kind in (STRING, BYTES):
        if kind == STRING:
            wrong = invalid_utf8(place, place + number)
            if wrong >= 0:
                return set_error(error, _UTF8, _node_of(field, plan), wrong, NIL) >= 0
        put_pair(out, column, place, number)
        return True
    if kind in (UINT64, FIXED64):
        put_pair(out, column, NIL, number)
        return True
    if kind == EMPTY:
        put(out, column, 1 if place else 0)
        return is_well_formed(place, place + number, _node_of(field, plan), groups, error)
    if kind in (SINT32, SINT64):
        number = signed(number)
    elif kind == SFIXED32:
        number = number - ((number & 0x80000000) << 1)
    elif kind == BOOL:
        number = 1 if number else 0
    least, most = (0, 4294967295) if kind == UINT32 else (-2147483648, 2147483647)
    if (kind in (INT32, SINT32, ENUM, UINT32)) and (number < least or number > most):
        return set_error(error, _INTEGER_RANGE, _node_of(field, plan), place, NIL) >= 0
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
def _put_timestamp(part: int, field: int, plan: Plan, groups: int, out: ColumnWriter, error: int) -> bool:
    """Write seconds and nanoseconds since 1970 as microseconds; the message may consist of several parts."""
    seconds, nanos, node = NIL, NIL, _node_of(field, plan)
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


# -- messages ----------------------------------------------------------------------------------------------------------

_TRUNCATED = constant(ErrorCode.TRUNCATED)
_DEPTH = constant(ErrorCode.DEPTH)
_REQUIRED = constant(ErrorCode.REQUIRED)
_PACKED = constant(ErrorCode.PACKED)
_MAX_DEPTH = constant(MAX_DEPTH)
_NO_FIELD = constant(0)


@compiled
def walk_all(
    first: int, start: Ints, end: Ints, root: Ints, plan: Plan, scratch: Scratch, out: ColumnWriter, errors: int
) -> int:
    """Decode the messages from `first` on; return the index at which capacity ran out, or the number of messages."""
    for index in range(first, len(start)):
        error, ok = error_record(errors, index), False
        if is_ok(error):
            whole = scratch.occurrences
            free = add_occurrence(start[index], end[index] - start[index], whole)
            put_present(out, NIL)
            ok = _message(whole, root[index], NIL, scratch.slots, free, plan, scratch.groups, out, error)
        if not finish_message(ok, error, start[index], out):
            return index
    return len(start)


@inner
def _fields(message: int, plan: Plan) -> tuple[int, int]:
    """Return the start and end of a message's fields in the plan."""
    row = plan.messages + 2 * WORD * message
    first = plan.fields + FIELD * word(row)
    return first, first + FIELD * word(row + WORD)


@inner
def _scan(part: int, message: int, slots: int, free: int, plan: Plan, groups: int, error: int) -> int:
    """Chain the occurrences of known fields in all parts of a message; return the next free address, or `FAILED`."""
    first, stop = _fields(message, plan)
    for slot in range(slots, slots + SLOT * ((stop - first) // FIELD), SLOT):
        set_word(slot, NIL)
    field = first
    while part != 0:
        at, end = word(part + PLACE), word(part + PLACE) + word(part + NUMBER)
        while at < end:
            tag, at = tag_at(at, end, _NO_FIELD, error)
            if at < 0:
                return FAILED
            known = _known(tag, field, first, stop)
            field = known if known else field
            node = _node_of(known, plan) if known else _NO_FIELD
            number, place, at = value_at(at, end, tag, node, groups, error)
            if at < 0:
                return FAILED
            if not known:
                continue
            if tag != word(known + TAG) and (tag & 7 != LEN or word(known + CARDINALITY) == SINGLE):
                return set_error(error, _WIRE_TYPE, node, tag & 7, word(known + TAG) & 7)
            set_word(free + PLACE, place)
            set_word(free + NUMBER, number)
            set_word(free + WIRE, tag & 7)
            if word(known + ONEOF) != 0:
                _clear_others(known, first, stop, slots)
            chain(slots + SLOT * ((known - first) // FIELD), free)
            free += OCCURRENCE
        part = word(part + NEXT)
    return free


@inner
def _clear_others(known: int, first: int, stop: int, slots: int) -> None:
    """Remove the occurrences of the other members of a field's ``oneof``: the last member in a message wins."""
    slot = slots
    for field in range(first, stop, FIELD):
        if field != known and word(field + ONEOF) == word(known + ONEOF):
            set_word(slot, NIL)
        slot += SLOT


@inner
def _known(tag: int, guess: int, first: int, stop: int) -> int:
    """Return the row of the field with this tag, or 0; it is mostly that of the previous tag, or the next one."""
    field = guess
    while field < stop:
        if (word(field + TAG) ^ tag) < 8:
            return field
        field += FIELD
    field = first
    while field < guess:
        if (word(field + TAG) ^ tag) < 8:
            return field
        field += FIELD
    return 0


@inner
def _message(
    part: int, message: int, depth: int, slots: int, free: int, plan: Plan, groups: int, out: ColumnWriter, error: int
) -> bool:
    """Write the fields of a message whose parts are chained from `part` on; return False if an error was set.

    This is one function for all nested types: numba can cache functions that call themselves, but crashes when it loads
    functions that call each other.
    """
    if depth > MAX_DEPTH:
        return set_error(error, _DEPTH, _NO_FIELD, _MAX_DEPTH, NIL) >= 0
    first, stop = _fields(message, plan)
    more = slots + SLOT * ((stop - first) // FIELD)
    free = _scan(part, message, slots, free, plan, groups, error)
    if free < 0:
        return False
    slot = slots
    for field in range(first, stop, FIELD):
        kind, cardinality, child = word(field + KIND), word(field + CARDINALITY), word(field + CHILD)
        found = first_occurrence(slot)
        if cardinality == SINGLE and found == 0 and word(field + PRESENCE) != IMPLICIT:
            if word(field + PRESENCE) == REQUIRED:
                return set_error(error, _REQUIRED, _node_of(field, plan), NIL, NIL) >= 0
            put_null(out, word(field + COLUMN))
        elif kind != MESSAGE and kind != WRAPPED:
            if cardinality != SINGLE:
                ok = _items(found, field, free, plan, groups, out, error)
            elif kind in (TIMESTAMP, TIMESTAMP_EXACT):
                ok = _put_timestamp(found, field, plan, groups, out, error)
            elif found == 0:
                ok = _put_value(NIL, NIL, field, plan, groups, out, error)
            else:
                last = last_occurrence(slot)
                ok = _put_value(word(last + NUMBER), word(last + PLACE), field, plan, groups, out, error)
            if not ok:
                return False
        elif cardinality == SINGLE:
            if kind == MESSAGE:
                put_present(out, word(field + COLUMN))
            if not _message(found, child, depth + 1, more, free, plan, groups, out, error):
                return False
        else:
            place, items = reserve(out, word(field + COLUMN)), NIL
            while found != 0:
                if cardinality != MAP and kind == MESSAGE:
                    put_present(out, word(field + VALUES))
                next_free = add_occurrence(word(found + PLACE), word(found + NUMBER), free)
                if not _message(free, child, depth + 1, more, next_free, plan, groups, out, error):
                    return False
                items += 1
                found = word(found + NEXT)
            set_count(out, word(field + COLUMN), place, items)
        slot += SLOT
    return True


@inner
def _items(part: int, field: int, free: int, plan: Plan, groups: int, out: ColumnWriter, error: int) -> bool:
    """Write the items of a repeated field that is not a message."""
    kind, column, wire = word(field + KIND), word(field + COLUMN), word(field + TAG) & 7
    reserved, count = reserve(out, column), NIL
    while part != 0:
        number, place = word(part + NUMBER), word(part + PLACE)
        if kind in (TIMESTAMP, TIMESTAMP_EXACT):
            add_occurrence(place, number, free)
            ok, added = _put_timestamp(free, field, plan, groups, out, error), 1
        elif word(part + WIRE) != wire:
            added = _packed(place, place + number, wire, field, plan, groups, out, error)
            ok = added >= 0
        else:
            ok, added = _put_value(number, place, field, plan, groups, out, error), 1
        if not ok:
            return False
        count += added
        part = word(part + NEXT)
    set_count(out, column, reserved, count)
    return True


@inner
def _packed(at: int, end: int, wire: int, field: int, plan: Plan, groups: int, out: ColumnWriter, error: int) -> int:
    """Write packed numbers; return how many."""
    size, count, node = end - at, NIL, _node_of(field, plan)
    while at < end:
        number, place, at = value_at(at, end, wire, node, groups, error)
        if at < 0:
            if word(error + WORD * CODE) == _TRUNCATED:
                set_word(error + WORD * CODE, _PACKED)
                set_word(error + WORD * A, size)
            return FAILED
        if not _put_value(number, place, field, plan, groups, out, error):
            return FAILED
        count += 1
    return count
