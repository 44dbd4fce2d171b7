"""Avro values that hold no others: read, checked against the bytes that are left, and put."""

from __future__ import annotations

import numpy as np

from penstock.formats.avro.ops import (
    BOOLEAN,
    BYTES,
    COLUMN,
    DECIMAL,
    DECIMAL_FIXED,
    DOUBLE,
    ENUM,
    EXACT_DOUBLE,
    EXACT_FLOAT,
    FIRST,
    FIXED,
    FLOAT,
    FLOAT_TO_DOUBLE,
    INT,
    LONG,
    NODE,
    OP,
    SECOND,
    STRING,
    THIRD,
    TIMES_1000,
    Plan,
)
from penstock.formats.bits import double_bits, single_bits, single_value
from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.faults import BAD, blame
from penstock.formats.memory import WORD, byte, half, word
from penstock.formats.problems import Problem
from penstock.formats.sink import Sink, put, put_two
from penstock.formats.wire import ENDED, big_endian, invalid_utf8, signed, varint, within_precision

__all__ = ["leaf", "length_at", "number_at"]

_TRUNCATED = constant(Problem.TRUNCATED)
_OVERLONG = constant(Problem.OVERLONG)
_INTEGER_RANGE = constant(Problem.INTEGER_RANGE)
_BOOLEAN = constant(Problem.BOOLEAN)
_NEGATIVE_LENGTH = constant(Problem.NEGATIVE_LENGTH)
_LENGTH = constant(Problem.LENGTH)
_UTF8 = constant(Problem.UTF8)
_SYMBOL = constant(Problem.SYMBOL)
_DECIMAL = constant(Problem.DECIMAL)
_INEXACT = constant(Problem.INEXACT)
_TIME_RANGE = constant(Problem.TIME_RANGE)

_MOST_MILLISECONDS = (2**63 - 1) // 1000


@inner
def number_at(at: int, end: int, node: int, fault: int) -> tuple[int, int]:
    """Read a zigzag number; the place after it is `BAD` if there is none."""
    number, after = varint(at, end)
    if after < 0:
        return NIL, blame(fault, _TRUNCATED if after == ENDED else _OVERLONG, node, end if after == ENDED else at, NIL)
    return signed(number), after


@inner
def length_at(at: int, end: int, node: int, fault: int) -> tuple[int, int]:
    """Read a length in bytes, all of which are there."""
    length, after = number_at(at, end, node, fault)
    if after < 0:
        return NIL, BAD
    if length < 0:
        return NIL, blame(fault, _NEGATIVE_LENGTH, node, at, NIL)
    if length > end - after:
        return NIL, blame(fault, _LENGTH, node, length, end - after)
    return length, after


@inner
def leaf(at: int, end: int, node: int, plan: Plan, sink: Sink, fault: int) -> int:
    """Read a value; return the place after it, or `BAD` with the fault noted."""
    row = plan.nodes + NODE * node
    op = word(row + OP)
    if op <= LONG and op != BOOLEAN:
        return _integer(at, end, node, row, sink, fault)
    if op in (STRING, BYTES, DECIMAL):
        length, at = length_at(at, end, node, fault)
        return _bytes(at, length, node, row, sink, fault) if at >= 0 else BAD
    if op == ENUM:
        return _symbol(at, end, node, row, plan, sink, fault)
    return _fixed(at, end, node, row, sink, fault)


@inner
def _integer(at: int, end: int, node: int, row: int, sink: Sink, fault: int) -> int:
    number, after = number_at(at, end, node, fault)
    if after < 0:
        return BAD
    if word(row + OP) == INT and (number > 2147483647 or number < -2147483648):
        return blame(fault, _INTEGER_RANGE, node, at, NIL)
    column, how = word(row + COLUMN), word(row + FIRST)
    if column < 0:
        return after
    if how == TIMES_1000:
        if number > _MOST_MILLISECONDS or number < -_MOST_MILLISECONDS:
            return blame(fault, _TIME_RANGE, node, NIL, NIL)
        number *= 1000
    elif how == EXACT_DOUBLE:
        double = np.float64(number)
        if abs(double) >= 9.2e18 or np.int64(double) != number:
            return blame(fault, _INEXACT, node, NIL, NIL)
        number = double_bits(double)
    elif how == EXACT_FLOAT:
        single = np.float32(number)
        if abs(single) >= 9.2e18 or np.int64(single) != number:
            return blame(fault, _INEXACT, node, NIL, NIL)
        number = single_bits(single)
    put(sink, column, number)
    return after


@inner
def _bytes(at: int, length: int, node: int, row: int, sink: Sink, fault: int) -> int:
    """Take so many bytes as text, as a decimal or as they are."""
    op, column = word(row + OP), word(row + COLUMN)
    if op in (DECIMAL, DECIMAL_FIXED):
        precision = word(row + FIRST)
        high, low, fits = big_endian(at, length)
        if not fits or not within_precision(high, low, precision):
            return blame(fault, _DECIMAL, node, precision, word(row + SECOND))
        put_two(sink, column, high, low)
        return at + length
    if op == STRING:
        wrong = invalid_utf8(at, at + length)
        if wrong >= 0:
            return blame(fault, _UTF8, node, wrong, NIL)
    if column >= 0:
        put_two(sink, column, at, length)
    return at + length


@inner
def _symbol(at: int, end: int, node: int, row: int, plan: Plan, sink: Sink, fault: int) -> int:
    number, after = number_at(at, end, node, fault)
    if after < 0:
        return BAD
    count = word(row + SECOND)
    if number < 0 or number >= count:
        return blame(fault, _SYMBOL, node, number, count)
    if word(row + COLUMN) >= 0:
        pair = plan.links + WORD * (word(row + FIRST) + 2 * number)
        put_two(sink, word(row + COLUMN), plan.constants + word(pair), word(pair + WORD))
    return after


@inner
def _fixed(at: int, end: int, node: int, row: int, sink: Sink, fault: int) -> int:
    op, column = word(row + OP), word(row + COLUMN)
    width = 1 if op == BOOLEAN else 4 if op == FLOAT else 8 if op == DOUBLE else word(row + THIRD)
    if end - at < width:
        return blame(fault, _TRUNCATED, node, end, NIL)
    if op in (FIXED, DECIMAL_FIXED):
        return _bytes(at, width, node, row, sink, fault)
    if op == BOOLEAN and byte(at) > 1:
        return blame(fault, _BOOLEAN, node, at, byte(at))
    if column >= 0:
        if op == DOUBLE:
            put(sink, column, word(at))
        elif op == BOOLEAN:
            put(sink, column, byte(at))
        elif word(row + FIRST) == FLOAT_TO_DOUBLE:
            put(sink, column, double_bits(np.float64(single_value(half(at)))))
        else:
            put(sink, column, half(at))
    return at + width
