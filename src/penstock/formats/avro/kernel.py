"""Avro's binary encoding, walked by a plan.

A plan is a table of nodes, one per place in the writer's schema; a node says what is encoded there (`Op`) and into
which column it goes (-1: nowhere, it is only passed over). Differences between the writer's and the reader's schema
were settled when the plan was made (`penstock.formats.avro.plan`); here bytes become entries of columns.

Every length, count, index and number is checked against the bytes that are left, so that no message reads beyond
itself or makes more than its size warrants. What is left behind the last value is a problem of its own: Avro has no
end mark, and left-over bytes are how a message shows that it was read with the wrong schema.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.avro.ops import (
    ARRAY,
    BOOLEAN,
    BYTES,
    CONSTANT,
    DECIMAL,
    DECIMAL_FIXED,
    DOUBLE,
    ENUM,
    EXACT_DOUBLE,
    EXACT_FLOAT,
    FIXED,
    FLOAT,
    FLOAT_TO_DOUBLE,
    INT,
    LONG,
    MAP,
    MEMBER,
    MOST_DEPTH,
    MOST_EMPTY_ITEMS,
    NULL,
    RECORD,
    STRING,
    TIMES_1000,
    UNION,
)
from penstock.formats.problems import CODE, NODE, A, B, Faults, Problem
from penstock.formats.sink import NIL, Bytes, Ints, Sink, compiled, inner, put, put_null, reserve
from penstock.formats.wire import (
    ENDED,
    big_endian,
    invalid_utf8,
    little_endian,
    signed,
    varint,
    within_precision,
)

__all__ = ["Plan", "walk_all"]

_FINE = np.int64(Problem.FINE)
_TRUNCATED = np.int64(Problem.TRUNCATED)
_OVERLONG = np.int64(Problem.OVERLONG)
_INTEGER_RANGE = np.int64(Problem.INTEGER_RANGE)
_BOOLEAN = np.int64(Problem.BOOLEAN)
_NEGATIVE_LENGTH = np.int64(Problem.NEGATIVE_LENGTH)
_LENGTH = np.int64(Problem.LENGTH)
_UTF8 = np.int64(Problem.UTF8)
_BRANCH = np.int64(Problem.BRANCH)
_SYMBOL = np.int64(Problem.SYMBOL)
_ITEMS = np.int64(Problem.ITEMS)
_TRAILING = np.int64(Problem.TRAILING)
_DECIMAL = np.int64(Problem.DECIMAL)
_DEPTH = np.int64(Problem.DEPTH)
_INEXACT = np.int64(Problem.INEXACT)
_TIME_RANGE = np.int64(Problem.TIME_RANGE)
_REFUSED = np.int64(Problem.REFUSED)

_BAD = np.int64(-1)
_MOST_MILLISECONDS = (2**63 - 1) // 1000
_IN_MESSAGE, _IN_CONSTANTS = np.bool_(False), np.bool_(True)


class Plan(NamedTuple):
    """How to read messages of one or several writer schemas."""

    nodes: Ints
    """A row per node: its op, its column, and three numbers of the op's own."""
    links: Ints
    """Lists of nodes, columns and places of symbols, to which nodes point."""
    constants: Bytes
    """Default values in Avro's encoding, and names of symbols."""


@compiled
def walk_all(data: Bytes, start: Ints, end: Ints, root: Ints, plan: Plan, sink: Sink, faults: Faults) -> None:
    """Put every message that has no fault yet; note the faults that are found."""
    before = np.empty_like(sink.count)
    for index in range(len(start)):
        if faults[index, CODE] != _FINE:
            put_null(sink, 0)
            continue
        before[:] = sink.count
        fault = faults[index]
        at = _walk(data, start[index], end[index], root[index], NIL, plan, sink, fault, _IN_MESSAGE)
        if at >= 0 and at < end[index]:
            at = _blame(fault, _TRAILING, root[index], end[index] - at, NIL)
        if at < 0:
            if (
                fault[CODE] == _TRUNCATED
                or fault[CODE] == _OVERLONG
                or fault[CODE] == _UTF8
                or fault[CODE] == _INTEGER_RANGE
                or fault[CODE] == _BOOLEAN
                or fault[CODE] == _NEGATIVE_LENGTH
            ):
                fault[A] -= start[index]
            sink.count[:] = before
            put_null(sink, 0)


@inner
def _blame(fault: Ints, problem: int, node: int, a: int, b: int) -> int:
    fault[CODE] = problem
    fault[NODE] = node
    fault[A] = a
    fault[B] = b
    return _BAD


@inner
def _number(data: Bytes, at: int, end: int, node: int, fault: Ints) -> tuple[int, int]:
    """Read a zigzag number; the place after it is `_BAD` if there is none."""
    number, after = varint(data, at, end)
    if after < 0:
        return 0, _blame(fault, _TRUNCATED if after == ENDED else _OVERLONG, node, end if after == ENDED else at, NIL)
    return signed(number), after


@inner
def _length(data: Bytes, at: int, end: int, node: int, fault: Ints) -> tuple[int, int]:
    """Read a length in bytes, all of which are there."""
    length, after = _number(data, at, end, node, fault)
    if after < 0:
        return 0, _BAD
    if length < 0:
        return 0, _blame(fault, _NEGATIVE_LENGTH, node, at, NIL)
    if length > end - after:
        return 0, _blame(fault, _LENGTH, node, length, end - after)
    return length, after


@inner
def _put_integer(sink: Sink, column: int, number: int, how: int, node: int, fault: Ints) -> bool:
    """Put an integer the way its column wants it; False if that would change it."""
    if how == TIMES_1000:
        if number > _MOST_MILLISECONDS or number < -_MOST_MILLISECONDS:
            _blame(fault, _TIME_RANGE, node, NIL, NIL)
            return False
        number *= 1000
    elif how == EXACT_DOUBLE:
        double = np.float64(number)
        if abs(double) >= 9.2e18 or np.int64(double) != number:
            _blame(fault, _INEXACT, node, NIL, NIL)
            return False
        number = np.array([double]).view(np.int64)[0]
    elif how == EXACT_FLOAT:
        single = np.float32(number)
        if abs(single) >= 9.2e18 or np.int64(single) != number:
            _blame(fault, _INEXACT, node, NIL, NIL)
            return False
        number = np.int64(np.array([single], np.float32).view(np.int32)[0])
    put(sink, column, number, NIL)
    return True


@inner
def _put_float(sink: Sink, column: int, bits: np.uint64, how: int) -> None:
    if how == FLOAT_TO_DOUBLE:
        single = np.array([bits]).astype(np.uint32).view(np.float32)
        put(sink, column, single.astype(np.float64).view(np.int64)[0], NIL)
    else:
        put(sink, column, np.int64(bits), NIL)


@inner
def _put_decimal(
    data: Bytes, at: int, width: int, column: int, precision: int, scale: int, sink: Sink, node: int, fault: Ints
) -> bool:
    if column < 0:
        return True
    high, low, fits = big_endian(data, at, width)
    if not fits or not within_precision(high, low, precision):
        _blame(fault, _DECIMAL, node, precision, scale)
        return False
    put(sink, column, high, np.int64(low))
    return True


@inner
def _leaf(data: Bytes, at: int, end: int, node: int, plan: Plan, sink: Sink, fault: Ints, constant: bool) -> int:
    """Read a value that holds no others; return the place after it."""
    op, column, first, second = plan.nodes[node, 0], plan.nodes[node, 1], plan.nodes[node, 2], plan.nodes[node, 3]
    if op in (INT, LONG):
        number, after = _number(data, at, end, node, fault)
        if after < 0:
            return _BAD
        if op == INT and (number > 2147483647 or number < -2147483648):
            return _blame(fault, _INTEGER_RANGE, node, at, NIL)
        if column >= 0 and not _put_integer(sink, column, number, first, node, fault):
            return _BAD
        return after
    if op in (STRING, BYTES, DECIMAL):
        length, after = _length(data, at, end, node, fault)
        if after < 0:
            return _BAD
        if op == DECIMAL:
            return (
                after + length if _put_decimal(data, after, length, column, first, second, sink, node, fault) else _BAD
            )
        if op == STRING:
            wrong = invalid_utf8(data, after, after + length)
            if wrong >= 0:
                return _blame(fault, _UTF8, node, wrong, NIL)
        if column >= 0:
            put(sink, column, -1 - after if constant else after, length)
        return after + length
    if op == ENUM:
        number, after = _number(data, at, end, node, fault)
        if after < 0:
            return _BAD
        if number < 0 or number >= second:
            return _blame(fault, _SYMBOL, node, number, second)
        if column >= 0:
            put(sink, column, -1 - plan.links[first + 2 * number], plan.links[first + 2 * number + 1])
        return after
    width = 1 if op == BOOLEAN else 4 if op == FLOAT else 8 if op == DOUBLE else plan.nodes[node, 4]
    if end - at < width:
        return _blame(fault, _TRUNCATED, node, end, NIL)
    if op == BOOLEAN and data[at] > 1:
        return _blame(fault, _BOOLEAN, node, at, data[at])
    if op == DECIMAL_FIXED:
        return at + width if _put_decimal(data, at, width, column, first, second, sink, node, fault) else _BAD
    if column >= 0:
        if op == FIXED:
            put(sink, column, -1 - at if constant else at, width)
        elif op == BOOLEAN:
            put(sink, column, np.int64(data[at]), NIL)
        else:
            _put_float(sink, column, little_endian(data, at, width), first)
    return at + width


@inner
def _block(data: Bytes, at: int, end: int, node: int, total: int, plan: Plan, fault: Ints) -> tuple[int, int]:
    """Read how many items the next block of an array or a map has; 0 ends it."""
    least = plan.nodes[node, 3]
    count, at = _number(data, at, end, node, fault)
    if at < 0 or count == 0:
        return 0, at
    if count < 0:
        _, at = _length(data, at, end, node, fault)
        if at < 0:
            return 0, _BAD
        count = -count
    room = (end - at) // least if least else MOST_EMPTY_ITEMS - total
    if count < 0 or count > room:
        return 0, _blame(fault, _ITEMS, node, count, end - at)
    return count, at


@inner
def _walk(
    data: Bytes, at: int, end: int, node: int, depth: int, plan: Plan, sink: Sink, fault: Ints, constant: bool
) -> int:
    """Read the value of `node` at `at`; return the place after it, or `_BAD` with the fault noted.

    One function for all that holds others: numba keeps functions that call themselves in its cache, but crashes when
    it loads two that call each other.
    """
    op, column, first, second = plan.nodes[node, 0], plan.nodes[node, 1], plan.nodes[node, 2], plan.nodes[node, 3]
    if op >= BOOLEAN:
        return _leaf(data, at, end, node, plan, sink, fault, constant)
    if op == NULL:
        if column >= 0:
            put_null(sink, column)
        return at
    if depth > MOST_DEPTH:
        return _blame(fault, _DEPTH, node, MOST_DEPTH, NIL)
    if op == RECORD:
        if column >= 0:
            put(sink, column, NIL, NIL)
        for index in range(first, first + second):
            child = plan.links[index]
            if plan.nodes[child, 0] >= BOOLEAN:
                at = _leaf(data, at, end, child, plan, sink, fault, constant)
            else:
                at = _walk(data, at, end, child, depth + 1, plan, sink, fault, constant)
            if at < 0:
                return _BAD
        return at
    if op == UNION:
        branch, after = _number(data, at, end, node, fault)
        if after < 0:
            return _BAD
        if branch < 0 or branch >= second:
            return _blame(fault, _BRANCH, node, branch, second)
        return _walk(data, after, end, plan.links[first + branch], depth + 1, plan, sink, fault, constant)
    if op == MEMBER:
        put(sink, column, NIL, NIL)
        for index in range(first, first + second):
            put_null(sink, plan.links[index])
        return _walk(data, at, end, plan.nodes[node, 4], depth + 1, plan, sink, fault, constant)
    if op == CONSTANT:
        after = _walk(plan.constants, first, len(plan.constants), second, depth + 1, plan, sink, fault, _IN_CONSTANTS)
        return at if after >= 0 else _BAD
    if op != ARRAY and op != MAP:
        return _blame(fault, _REFUSED, node, first, NIL)
    key, total, place = plan.nodes[node, 4], 0, np.int64(0)
    if column >= 0:
        place = reserve(sink, column)
    while True:
        count, at = _block(data, at, end, node, total, plan, fault)
        if at < 0:
            return _BAD
        if count == 0:
            break
        for _ in range(count):
            if op == MAP:
                at = _leaf(data, at, end, key, plan, sink, fault, constant)
                if at < 0:
                    return _BAD
            at = _walk(data, at, end, first, depth + 1, plan, sink, fault, constant)
            if at < 0:
                return _BAD
        total += count
    if column >= 0 and sink.valid.size:
        sink.value[place] = total
    return at
