"""One line of delimited fields into columns.

A field may stand in quotes; a quote within it is written twice. A field without quotes that is empty is null; an
empty one in quotes is empty text, or null in a column of another type. One line end may close the message, and
nothing may follow it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.compiling import NIL, Ints, compiled, constant, inner
from penstock.formats.faults import BAD, blame, fault_of, is_fine, settled
from penstock.formats.memory import WORD, byte, set_byte, word
from penstock.formats.problems import Problem
from penstock.formats.sink import Sink, put, put_null, put_there, put_two
from penstock.formats.text_put import BOOLEAN, DECIMAL, FLOATING, INTEGER, STRING, put_number, put_time
from penstock.formats.text_values import is_number
from penstock.formats.wire import invalid_utf8

__all__ = ["Plan", "walk_all"]

_COLUMN = 24
"""How many bytes a column has in the plan."""
_QUOTE = constant(Problem.QUOTE)
_FIELDS = constant(Problem.FIELDS)
_UTF8 = constant(Problem.UTF8)
_TRAILING = constant(Problem.TRAILING)
_NUMBER_TEXT = constant(Problem.NUMBER_TEXT)
_BOOLEAN_TEXT = constant(Problem.BOOLEAN_TEXT)


class Plan(NamedTuple):
    """How to read lines."""

    rules: int
    """Where the table of columns is: of each its rule, and two numbers of the rule's own."""
    columns: int
    """How many there are."""
    delimiter: int
    """The characters that part fields and quote them."""
    quote: int
    shift: int
    """How far behind its place in the message the text of a quoted field is written, without its quotes."""


@compiled
def walk_all(first: int, start: Ints, end: Ints, plan: Plan, sink: Sink, faults: int) -> int:
    """Put the messages from `first` on; return the one for which columns had no room, or their number."""
    for index in range(first, len(start)):
        fault = fault_of(faults, index)
        fine = is_fine(fault) and _line(start[index], end[index], plan, sink, fault)
        if not settled(fine, fault, start[index], sink):
            return index
    return len(start)


@inner
def _line(at: int, end: int, plan: Plan, sink: Sink, fault: int) -> bool:
    put_there(sink, NIL)
    if end > at and byte(end - 1) == 10:
        end -= 2 if end - at > 1 and byte(end - 2) == 13 else 1
    count = np.int64(0)
    while True:
        column = min(count + 1, plan.columns)
        begin, stop, after, quoted = _field(at, end, plan, column, fault)
        if after < 0:
            return False
        count += 1
        if count <= plan.columns and not _put(begin, stop, quoted, count, plan, sink, fault):
            return False
        if after >= end:
            break
        if byte(after) != plan.delimiter:
            return blame(fault, _TRAILING, NIL, end - after, NIL) >= 0
        at = after + 1
    return count == plan.columns or blame(fault, _FIELDS, NIL, count, plan.columns) >= 0


@inner
def _field(at: int, end: int, plan: Plan, column: int, fault: int) -> tuple[int, int, int, bool]:
    """Return where the text of a field begins and ends, the place after it, and whether it was quoted."""
    if at >= end or byte(at) != plan.quote:
        stop = at
        while stop < end and not _ends(byte(stop), plan):
            if byte(stop) == plan.quote:
                return at, stop, blame(fault, _QUOTE, column, stop, NIL), False
            stop += 1
        return at, stop, stop, False
    begin = at
    at += 1
    start = to = at + plan.shift
    while at < end:
        if byte(at) == plan.quote:
            if at + 1 >= end or byte(at + 1) != plan.quote:
                after = at + 1
                if after < end and not _ends(byte(after), plan):
                    return start, to, blame(fault, _QUOTE, column, after, NIL), True
                return start, to, after, True
            at += 1
        set_byte(to, byte(at))
        at, to = at + 1, to + 1
    return start, to, blame(fault, _QUOTE, column, begin, NIL), True


@inner
def _ends(character: int, plan: Plan) -> bool:
    """Say whether a field ends before this character."""
    return character == plan.delimiter or character == 10 or character == 13


@inner
def _put(start: int, stop: int, quoted: bool, column: int, plan: Plan, sink: Sink, fault: int) -> bool:
    row = plan.rules + _COLUMN * (column - 1)
    rule = word(row)
    if start == stop and (rule != STRING or not quoted):
        put_null(sink, column)
        return True
    if rule == STRING:
        wrong = invalid_utf8(start, stop)
        if wrong >= 0:
            return blame(fault, _UTF8, column, wrong - (plan.shift if quoted else 0), NIL) >= 0
        put_two(sink, column, start, stop - start)
        return True
    if rule in (INTEGER, FLOATING, DECIMAL):
        if is_number(start, stop) != stop:
            return blame(fault, _NUMBER_TEXT, column, NIL, NIL) >= 0
        return put_number(start, stop, rule, word(row + WORD), word(row + 2 * WORD), column, sink, fault)
    if rule == BOOLEAN:
        value = _boolean(start, stop)
        if value < 0:
            return blame(fault, _BOOLEAN_TEXT, column, NIL, NIL) >= 0
        put(sink, column, value)
        return True
    return put_time(start, stop, rule, column, sink, fault)


@inner
def _boolean(start: int, stop: int) -> int:
    """Read true or false, t or f, in any case."""
    size, first = stop - start, byte(start) | 32
    if size == 1:
        return 1 if first == 116 else 0 if first == 102 else BAD
    if size == 4 and first == 116 and byte(start + 1) | 32 == 114 and byte(start + 2) | 32 == 117:
        return 1 if byte(start + 3) | 32 == 101 else BAD
    if size == 5 and first == 102 and byte(start + 1) | 32 == 97 and byte(start + 2) | 32 == 108:
        return 0 if byte(start + 3) | 32 == 115 and byte(start + 4) | 32 == 101 else BAD
    return BAD
