"""Decode Avro values that contain no others: read, check against the remaining bytes, and write to the column."""

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
from penstock.formats.binary_values import ENDED, big_endian, invalid_utf8, signed, varint, within_precision
from penstock.formats.bits import double_bits, single_bits, single_value
from penstock.formats.column_writer import ColumnWriter, put, put_pair
from penstock.formats.decode_errors import ErrorCode
from penstock.formats.error_records import FAILED, set_error
from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import WORD, byte, half, word

__all__ = ["leaf", "length_at", "number_at"]

_TRUNCATED = constant(ErrorCode.TRUNCATED)
_OVERLONG = constant(ErrorCode.OVERLONG)
_INTEGER_RANGE = constant(ErrorCode.INTEGER_RANGE)
_BOOLEAN = constant(ErrorCode.BOOLEAN)
_NEGATIVE_LENGTH = constant(ErrorCode.NEGATIVE_LENGTH)
_LENGTH = constant(ErrorCode.LENGTH)
_UTF8 = constant(ErrorCode.UTF8)
_SYMBOL = constant(ErrorCode.SYMBOL)
_DECIMAL = constant(ErrorCode.DECIMAL)
_INEXACT = constant(ErrorCode.INEXACT)
_TIME_RANGE = constant(ErrorCode.TIME_RANGE)

_MAX_MILLISECONDS = (2**63 - 1) // 1000


@inner
def number_at(at: int, end: int, node: int, error: int) -> tuple[int, int]:
    """Read a zigzag varint; return `FAILED` as the address after it if there is none."""
    number, after = varint(at, end)
    if after < 0:
        return NIL, set_error(
            error, _TRUNCATED if after == ENDED else _OVERLONG, node, end if after == ENDED else at, NIL
        )
    return signed(number), after


@inner
def length_at(at: int, end: int, node: int, error: int) -> tuple[int, int]:
    """Read a length in bytes that does not exceed the remaining bytes."""
    length, after = number_at(at, end, node, error)
    if after < 0:
        return NIL, FAILED
    if length < 0:
        return NIL, set_error(error, _NEGATIVE_LENGTH, node, at, NIL)
    if length > end - after:
        return NIL, set_error(error, _LENGTH, node, length, end - after)
    return length, after


@inner
def leaf(at: int, end: int, node: int, plan: Plan, out: ColumnWriter, error: int) -> int:
    """Decode a value; return the address after it, or `FAILED` with the error set."""
    row = plan.nodes + NODE * node
    op = word(row + OP)
    if op <= LONG and op != BOOLEAN:
        return _integer(at, end, node, row, out, error)
    if op in (STRING, BYTES, DECIMAL):
        length, at = length_at(at, end, node, error)
        return _bytes(at, length, node, row, out, error) if at >= 0 else FAILED
    if op == ENUM:
        return _symbol(at, end, node, row, plan, out, error)
    return _fixed(at, end, node, row, out, error)


@inner
def _integer(at: int, end: int, node: int, row: int, out: ColumnWriter, error: int) -> int:
    number, after = number_at(at, end, node, error)
    if after < 0:
        return FAILED
    if word(row + OP) == INT and (number > 2147483647 or number < -2147483648):
        return set_error(error, _INTEGER_RANGE, node, at, NIL)
    column, conversion = word(row + COLUMN), word(row + FIRST)
    if column < 0:
        return after
    if conversion == TIMES_1000:
        if number > _MAX_MILLISECONDS or number < -_MAX_MILLISECONDS:
            return set_error(error, _TIME_RANGE, node, NIL, NIL)
        number *= 1000
    elif conversion == EXACT_DOUBLE:
        double = np.float64(number)
        if abs(double) >= 9.2e18 or np.int64(double) != number:
            return set_error(error, _INEXACT, node, NIL, NIL)
        number = double_bits(double)
    elif conversion == EXACT_FLOAT:
        single = np.float32(number)
        if abs(single) >= 9.2e18 or np.int64(single) != number:
            return set_error(error, _INEXACT, node, NIL, NIL)
        number = single_bits(single)
    put(out, column, number)
    return after


@inner
def _bytes(at: int, length: int, node: int, row: int, out: ColumnWriter, error: int) -> int:
    """Write bytes as text, as a decimal or unchanged."""
    op, column = word(row + OP), word(row + COLUMN)
    if op in (DECIMAL, DECIMAL_FIXED):
        precision = word(row + FIRST)
        high, low, fits = big_endian(at, length)
        if not fits or not within_precision(high, low, precision):
            return set_error(error, _DECIMAL, node, precision, word(row + SECOND))
        put_pair(out, column, high, low)
        return at + length
    if op == STRING:
        wrong = invalid_utf8(at, at + length)
        if wrong >= 0:
            return set_error(error, _UTF8, node, wrong, NIL)
    if column >= 0:
        put_pair(out, column, at, length)
    return at + length


@inner
def _symbol(at: int, end: int, node: int, row: int, plan: Plan, out: ColumnWriter, error: int) -> int:
    number, after = number_at(at, end, node, error)
    if after < 0:
        return FAILED
    count = word(row + SECOND)
    if number < 0 or number >= count:
        return set_error(error, _SYMBOL, node, number, count)
    if word(row + COLUMN) >= 0:
        pair = plan.links + WORD * (word(row + FIRST) + 2 * number)
        put_pair(out, word(row + COLUMN), plan.constants + word(pair), word(pair + WORD))
    return after


@inner
def _fixed(at: int, end: int, node: int, row: int, out: ColumnWriter, error: int) -> int:
    op, column = word(row + OP), word(row + COLUMN)
    width = 1 if op == BOOLEAN else 4 if op == FLOAT else 8 if op == DOUBLE else word(row + THIRD)
    if end - at < width:
        return set_error(error, _TRUNCATED, node, end, NIL)
    if op in (FIXED, DECIMAL_FIXED):
        return _bytes(at, width, node, row, out, error)
    if op == BOOLEAN and byte(at) > 1:
        return set_error(error, _BOOLEAN, node, at, byte(at))
    if column >= 0:
        if op == DOUBLE:
            put(out, column, word(at))
        elif op == BOOLEAN:
            put(out, column, byte(at))
        elif word(row + FIRST) == FLOAT_TO_DOUBLE:
            put(out, column, double_bits(np.float64(single_value(half(at)))))
        else:
            put(out, column, half(at))
    return at + width
