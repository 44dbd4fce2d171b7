"""One line of delimited fields into columns.

A field may stand in quotes; a quote within it is written twice. A field without quotes that is empty is null; an
empty one in quotes is empty text, or null in a column of another type. One line end may close the message, and
nothing may follow it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.problems import CODE, NODE, A, B, Faults, Problem
from penstock.formats.sink import NIL, Bytes, Ints, Sink, compiled, inner, put, put_null
from penstock.formats.text_put import BOOLEAN, DECIMAL, FLOATING, INTEGER, STRING, put_number, put_time
from penstock.formats.text_values import is_number
from penstock.formats.wire import invalid_utf8

__all__ = ["Plan", "walk_all"]

_FINE = np.int64(Problem.FINE)
_QUOTE = np.int64(Problem.QUOTE)
_FIELDS = np.int64(Problem.FIELDS)
_UTF8 = np.int64(Problem.UTF8)
_TRAILING = np.int64(Problem.TRAILING)
_NUMBER_TEXT = np.int64(Problem.NUMBER_TEXT)
_BOOLEAN_TEXT = np.int64(Problem.BOOLEAN_TEXT)
_BAD = np.int64(-1)


class Plan(NamedTuple):
    """A row per column: rule, and two numbers of its own; the characters that part fields and quote them."""

    rules: Ints
    delimiter: int
    quote: int


@compiled
def walk_all(data: Bytes, start: Ints, end: Ints, arena: Bytes, plan: Plan, sink: Sink, faults: Faults) -> None:
    """Put every message that has no fault yet; note the faults that are found."""
    before = np.empty_like(sink.count)
    for index in range(len(start)):
        if faults[index, CODE] != _FINE:
            put_null(sink, 0)
            continue
        before[:] = sink.count
        fault = faults[index]
        if not _line(data, start[index], end[index], arena, plan, sink, fault):
            if fault[CODE] == _QUOTE or fault[CODE] == _UTF8:
                fault[A] -= start[index]
            sink.count[:] = before
            put_null(sink, 0)


@inner
def _blame(fault: Ints, problem: int, column: int, a: int, b: int) -> int:
    fault[CODE] = problem
    fault[NODE] = column
    fault[A] = a
    fault[B] = b
    return _BAD


@inner
def _line(data: Bytes, at: int, end: int, arena: Bytes, plan: Plan, sink: Sink, fault: Ints) -> bool:
    columns = len(plan.rules)
    put(sink, 0, NIL, NIL)
    if end > at and data[end - 1] == 10:
        end -= 2 if end - at > 1 and data[end - 2] == 13 else 1
    count = 0
    while True:
        column = min(count + 1, columns)
        start, stop, after, quoted = _field(data, at, end, arena, plan, column, fault)
        if after < 0:
            return False
        count += 1
        if count <= columns and not _put(arena, start, stop, quoted, count, plan, sink, fault):
            return False
        if after >= end:
            break
        if data[after] != plan.delimiter:
            _blame(fault, _TRAILING, 0, end - after, NIL)
            return False
        at = after + 1
    if count != columns:
        _blame(fault, _FIELDS, 0, count, columns)
        return False
    return True


@inner
def _field(
    data: Bytes, at: int, end: int, arena: Bytes, plan: Plan, column: int, fault: Ints
) -> tuple[int, int, int, bool]:
    """Return where the text of a field begins and ends in the arena, the place after it, and whether it was quoted."""
    if at >= end or data[at] != plan.quote:
        stop = at
        while stop < end and data[stop] != plan.delimiter and data[stop] != 10 and data[stop] != 13:
            if data[stop] == plan.quote:
                return 0, 0, _blame(fault, _QUOTE, column, stop, NIL), False
            stop += 1
        return at, stop, stop, False
    begin = at
    at += 1
    to = len(data) + at
    start = to
    while at < end:
        if data[at] == plan.quote:
            if at + 1 >= end or data[at + 1] != plan.quote:
                after = at + 1
                if after < end and data[after] != plan.delimiter and data[after] != 10 and data[after] != 13:
                    return 0, 0, _blame(fault, _QUOTE, column, after, NIL), True
                return start, to, after, True
            at += 1
        arena[to] = data[at]
        at, to = at + 1, to + 1
    return 0, 0, _blame(fault, _QUOTE, column, begin, NIL), True


@inner
def _put(arena: Bytes, start: int, stop: int, quoted: bool, column: int, plan: Plan, sink: Sink, fault: Ints) -> bool:
    rule = plan.rules[column - 1, 0]
    if start == stop and (rule != STRING or not quoted):
        put_null(sink, column)
        return True
    if rule == STRING:
        wrong = invalid_utf8(arena, start, stop)
        if wrong >= 0:
            _blame(fault, _UTF8, column, wrong % (len(arena) // 2), NIL)
            return False
        put(sink, column, start, stop - start)
        return True
    if rule in (INTEGER, FLOATING, DECIMAL):
        if is_number(arena, start, stop) != stop:
            _blame(fault, _NUMBER_TEXT, column, NIL, NIL)
            return False
        first, second = plan.rules[column - 1, 1], plan.rules[column - 1, 2]
        return put_number(arena, start, stop, rule, first, second, column, sink, fault)
    if rule == BOOLEAN:
        value = _boolean(arena, start, stop)
        if value < 0:
            _blame(fault, _BOOLEAN_TEXT, column, NIL, NIL)
            return False
        put(sink, column, value, NIL)
        return True
    return put_time(arena, start, stop, rule, column, sink, fault)


@inner
def _boolean(arena: Bytes, start: int, stop: int) -> int:
    """Read true or false, t or f, in any case."""
    size, first = stop - start, arena[start] | 32
    if size == 1:
        return 1 if first == 116 else 0 if first == 102 else -1
    if size == 4 and first == 116 and arena[start + 1] | 32 == 114 and arena[start + 2] | 32 == 117:
        return 1 if arena[start + 3] | 32 == 101 else -1
    if size == 5 and first == 102 and arena[start + 1] | 32 == 97 and arena[start + 2] | 32 == 108:
        return 0 if arena[start + 3] | 32 == 115 and arena[start + 4] | 32 == 101 else -1
    return -1
