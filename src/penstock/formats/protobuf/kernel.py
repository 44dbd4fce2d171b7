"""Protobuf messages, walked by a plan.

Fields come in any order, any number of times, and the parts of one message may be apart from each other. So each
message is scanned first: every occurrence of a field that the plan knows is chained to its slot. Then the fields are
put, one after the other. The last value of a single field wins; parts of a single message are one message, as the
encoding says.

A field that the plan does not know is passed over: that is how Protobuf evolves. One whose wire type is not that of its
kind is a problem.
"""

from __future__ import annotations

from penstock.formats.compiling import NIL, Ints, compiled, constant, inner
from penstock.formats.faults import BAD, blame, fault_of, is_fine, settled
from penstock.formats.memory import WORD, set_word, word
from penstock.formats.problems import CODE, A, Problem
from penstock.formats.protobuf.occurrences import (
    NEXT,
    NUMBER,
    OCCURRENCE,
    PLACE,
    SLOT,
    WIRE,
    Scratch,
    alone,
    chain,
    first_of,
    last_of,
)
from penstock.formats.protobuf.ops import (
    COLUMN,
    FIELD,
    IMPLICIT,
    INSIDE,
    KIND,
    MAP,
    MESSAGE,
    MOST_DEPTH,
    OFTEN,
    PRESENCE,
    REQUIRED,
    SINGLE,
    SIZED,
    TAG,
    TIMESTAMP,
    TIMESTAMP_EXACT,
    VALUES,
    WRAPPED,
    Plan,
)
from penstock.formats.protobuf.tags import tag_at, value_at
from penstock.formats.protobuf.values import node_of, put_timestamp, put_value
from penstock.formats.sink import Sink, put_count, put_null, put_there, reserve

__all__ = ["walk_all"]

_TRUNCATED = constant(Problem.TRUNCATED)
_DEPTH = constant(Problem.DEPTH)
_WIRE_TYPE = constant(Problem.WIRE_TYPE)
_REQUIRED = constant(Problem.REQUIRED)
_PACKED = constant(Problem.PACKED)
_MOST_DEPTH = constant(MOST_DEPTH)
_NO_FIELD = constant(0)


@compiled
def walk_all(
    first: int, start: Ints, end: Ints, root: Ints, plan: Plan, scratch: Scratch, sink: Sink, faults: int
) -> int:
    """Put the messages from `first` on; return the one for which columns had no room, or their number."""
    for index in range(first, len(start)):
        fault, fine = fault_of(faults, index), False
        if is_fine(fault):
            whole = scratch.occurrences
            free = alone(start[index], end[index] - start[index], whole)
            put_there(sink, NIL)
            fine = _message(whole, root[index], NIL, scratch.slots, free, plan, scratch.groups, sink, fault)
        if not settled(fine, fault, start[index], sink):
            return index
    return len(start)


@inner
def _fields(message: int, plan: Plan) -> tuple[int, int]:
    """Return where the fields of a message begin and end in the plan."""
    row = plan.messages + 2 * WORD * message
    first = plan.fields + FIELD * word(row)
    return first, first + FIELD * word(row + WORD)


@inner
def _scan(part: int, message: int, slots: int, free: int, plan: Plan, groups: int, fault: int) -> int:
    """Chain the occurrences of known fields in all parts of a message; return what is free then, or `BAD`."""
    first, stop = _fields(message, plan)
    for slot in range(slots, slots + SLOT * ((stop - first) // FIELD), SLOT):
        set_word(slot, NIL)
    field = first
    while part != 0:
        at, end = word(part + PLACE), word(part + PLACE) + word(part + NUMBER)
        while at < end:
            tag, at = tag_at(at, end, _NO_FIELD, fault)
            if at < 0:
                return BAD
            known = _known(tag, field, first, stop)
            field = known if known else field
            node = node_of(known, plan) if known else _NO_FIELD
            number, place, at = value_at(at, end, tag, node, groups, fault)
            if at < 0:
                return BAD
            if not known:
                continue
            if tag != word(known + TAG) and (tag & 7 != SIZED or word(known + OFTEN) == SINGLE):
                return blame(fault, _WIRE_TYPE, node, tag & 7, word(known + TAG) & 7)
            set_word(free + PLACE, place)
            set_word(free + NUMBER, number)
            set_word(free + WIRE, tag & 7)
            chain(slots + SLOT * ((known - first) // FIELD), free)
            free += OCCURRENCE
        part = word(part + NEXT)
    return free


@inner
def _known(tag: int, guess: int, first: int, stop: int) -> int:
    """Return the row of the field of a tag, or 0: it is mostly the one behind that of the last tag, or the same."""
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
    part: int, message: int, depth: int, slots: int, free: int, plan: Plan, groups: int, sink: Sink, fault: int
) -> bool:
    """Put the fields of a message whose parts are chained from `part` on; False with the fault noted.

    One function for all that holds others: numba keeps functions that call themselves in its cache, but crashes when
    it loads two that call each other.
    """
    if depth > MOST_DEPTH:
        return blame(fault, _DEPTH, _NO_FIELD, _MOST_DEPTH, NIL) >= 0
    first, stop = _fields(message, plan)
    more = slots + SLOT * ((stop - first) // FIELD)
    free = _scan(part, message, slots, free, plan, groups, fault)
    if free < 0:
        return False
    slot = slots
    for field in range(first, stop, FIELD):
        kind, often, inside = word(field + KIND), word(field + OFTEN), word(field + INSIDE)
        found = first_of(slot)
        if often == SINGLE and found == 0 and word(field + PRESENCE) != IMPLICIT:
            if word(field + PRESENCE) == REQUIRED:
                return blame(fault, _REQUIRED, node_of(field, plan), NIL, NIL) >= 0
            put_null(sink, word(field + COLUMN))
        elif kind != MESSAGE and kind != WRAPPED:
            if often != SINGLE:
                fine = _items(found, field, free, plan, groups, sink, fault)
            elif kind in (TIMESTAMP, TIMESTAMP_EXACT):
                fine = put_timestamp(found, field, plan, groups, sink, fault)
            elif found == 0:
                fine = put_value(NIL, NIL, field, plan, groups, sink, fault)
            else:
                last = last_of(slot)
                fine = put_value(word(last + NUMBER), word(last + PLACE), field, plan, groups, sink, fault)
            if not fine:
                return False
        elif often == SINGLE:
            if kind == MESSAGE:
                put_there(sink, word(field + COLUMN))
            if not _message(found, inside, depth + 1, more, free, plan, groups, sink, fault):
                return False
        else:
            place, items = reserve(sink, word(field + COLUMN)), NIL
            while found != 0:
                if often != MAP and kind == MESSAGE:
                    put_there(sink, word(field + VALUES))
                behind = alone(word(found + PLACE), word(found + NUMBER), free)
                if not _message(free, inside, depth + 1, more, behind, plan, groups, sink, fault):
                    return False
                items += 1
                found = word(found + NEXT)
            put_count(sink, word(field + COLUMN), place, items)
        slot += SLOT
    return True


@inner
def _items(part: int, field: int, free: int, plan: Plan, groups: int, sink: Sink, fault: int) -> bool:
    """Put the items of a repeated field that holds no messages."""
    kind, column, wire = word(field + KIND), word(field + COLUMN), word(field + TAG) & 7
    reserved, count = reserve(sink, column), NIL
    while part != 0:
        number, place = word(part + NUMBER), word(part + PLACE)
        if kind in (TIMESTAMP, TIMESTAMP_EXACT):
            alone(place, number, free)
            fine, added = put_timestamp(free, field, plan, groups, sink, fault), 1
        elif word(part + WIRE) != wire:
            added = _packed(place, place + number, wire, field, plan, groups, sink, fault)
            fine = added >= 0
        else:
            fine, added = put_value(number, place, field, plan, groups, sink, fault), 1
        if not fine:
            return False
        count += added
        part = word(part + NEXT)
    put_count(sink, column, reserved, count)
    return True


@inner
def _packed(at: int, end: int, wire: int, field: int, plan: Plan, groups: int, sink: Sink, fault: int) -> int:
    """Put numbers that stand one behind the other; return how many."""
    size, count, node = end - at, NIL, node_of(field, plan)
    while at < end:
        number, place, at = value_at(at, end, wire, node, groups, fault)
        if at < 0:
            if word(fault + WORD * CODE) == _TRUNCATED:
                set_word(fault + WORD * CODE, _PACKED)
                set_word(fault + WORD * A, size)
            return BAD
        if not put_value(number, place, field, plan, groups, sink, fault):
            return BAD
        count += 1
    return count
