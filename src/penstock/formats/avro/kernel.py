"""Kernel of Avro: decode the binary encoding with a plan.

A plan is a table of nodes, one per place in the writer schema. A node defines the encoding of a value (`ops`) and the
column that it is written to (-1: none, the value is skipped). Differences between the writer and the reader schema are
resolved when the plan is built (`penstock.formats.avro.plan`); the kernel only converts bytes to entries of columns.

Every length, count, index and number is checked against the remaining bytes, so that no message reads beyond its end or
allocates more than its size justifies. Trailing bytes after the last value are an error: Avro has no end marker, and
trailing bytes are a sign that a message was read with the wrong schema.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.avro.ops import (
    ARRAY,
    BOOLEAN,
    BYTES,
    COLUMN,
    CONSTANT,
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
    MAP,
    MAX_DEPTH,
    MAX_EMPTY_ITEMS,
    MEMBER,
    NODE,
    NULL,
    OP,
    RECORD,
    SECOND,
    STRING,
    THIRD,
    TIMES_1000,
    UNION,
    Plan,
)
from penstock.formats.binary_values import ENDED, big_endian, invalid_utf8, signed, varint, within_precision
from penstock.formats.column_writer import ColumnWriter, put, put_null, put_pair, put_present, reserve, set_count
from penstock.formats.decode_errors import FAILED, ErrorCode, error_record, finish_message, is_ok, set_error
from penstock.formats.jit import NIL, Ints, compiled, constant, inner
from penstock.formats.memory import WORD, byte, double_bits, half, single_bits, single_value, word

__all__ = ["walk_all"]


# -- values that contain no others -------------------------------------------------------------------------------------

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
def _number_at(at: int, end: int, node: int, error: int) -> tuple[int, int]:
    """Read a zigzag varint; return `FAILED` as the address after it if there is none."""
    number, after = varint(at, end)
    if after < 0:
        return NIL, set_error(
            error, _TRUNCATED if after == ENDED else _OVERLONG, node, end if after == ENDED else at, NIL
        )
    return signed(number), after


@inner
def _length_at(at: int, end: int, node: int, error: int) -> tuple[int, int]:
    """Read a length in bytes that does not exceed the remaining bytes."""
    length, after = _number_at(at, end, node, error)
    if after < 0:
        return NIL, FAILED
    if length < 0:
        return NIL, set_error(error, _NEGATIVE_LENGTH, node, at, NIL)
    if length > end - after:
        return NIL, set_error(error, _LENGTH, node, length, end - after)
    return length, after


@inner
def _leaf(at: int, end: int, node: int, plan: Plan, out: ColumnWriter, error: int) -> int:
    """Decode a value; return the address after it, or `FAILED` with the error set."""
    row = plan.nodes + NODE * node
    op = word(row + OP)
    if op <= LONG and op != BOOLEAN:
        return _integer(at, end, node, row, out, error)
    if op in (STRING, BYTES, DECIMAL):
        length, at = _length_at(at, end, node, error)
        return _bytes(at, length, node, row, out, error) if at >= 0 else FAILED
    if op == ENUM:
        return _symbol(at, end, node, row, plan, out, error)
    return _fixed(at, end, node, row, out, error)


@inner
def _integer(at: int, end: int, node: int, row: int, out: ColumnWriter, error: int) -> int:
    number, after = _number_at(at, end, node, error)
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
    number, after = _number_at(at, end, node, error)
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


# -- messages and nested values ----------------------------------------------------------------------------------------

_BRANCH = constant(ErrorCode.BRANCH)
_ITEMS = constant(ErrorCode.ITEMS)
_TRAILING = constant(ErrorCode.TRAILING)
_DEPTH = constant(ErrorCode.DEPTH)
_REJECTED = constant(ErrorCode.REJECTED)
_MAX_DEPTH = constant(MAX_DEPTH)


@compiled
def walk_all(first: int, start: Ints, end: Ints, root: Ints, plan: Plan, out: ColumnWriter, errors: int) -> int:
    """Decode the messages from `first` on; return the index at which capacity ran out, or the number of messages."""
    for index in range(first, len(start)):
        error, ok = error_record(errors, index), False
        if is_ok(error):
            at = _walk(start[index], end[index], root[index], NIL, plan, out, error)
            if at >= 0 and at < end[index]:
                at = set_error(error, _TRAILING, root[index], end[index] - at, NIL)
            ok = at >= 0
        if not finish_message(ok, error, start[index], out):
            return index
    return len(start)


@inner
def _branch(at: int, end: int, node: int, plan: Plan, error: int) -> tuple[int, int]:
    """Read the branch of a union; return its node and the address of its value."""
    row = plan.nodes + NODE * node
    branch, after = _number_at(at, end, node, error)
    if after < 0:
        return node, FAILED
    count = word(row + SECOND)
    if branch < 0 or branch >= count:
        return node, set_error(error, _BRANCH, node, branch, count)
    return word(plan.links + WORD * (word(row + FIRST) + branch)), after


@inner
def _block(at: int, end: int, node: int, total: int, plan: Plan, error: int) -> tuple[int, int]:
    """Read the number of items in the next block of an array or a map; 0 ends it."""
    min_size = word(plan.nodes + NODE * node + SECOND)
    count, at = _number_at(at, end, node, error)
    if at < 0 or count == 0:
        return NIL, at
    if count < 0:
        _, at = _length_at(at, end, node, error)
        if at < 0:
            return NIL, FAILED
        count = -count
    room = (end - at) // min_size if min_size else MAX_EMPTY_ITEMS - total
    if count < 0 or count > room:
        return NIL, set_error(error, _ITEMS, node, count, end - at)
    return count, at


@inner
def _walk(at: int, end: int, node: int, depth: int, plan: Plan, out: ColumnWriter, error: int) -> int:
    """Decode the value of `node` at `at`; return the address after it, or `FAILED` with the error set.

    This is one function for all nested types: numba can cache functions that call themselves, but crashes when it loads
    functions that call each other.
    """
    row = plan.nodes + NODE * node
    op, column, first, second = word(row + OP), word(row + COLUMN), word(row + FIRST), word(row + SECOND)
    if op >= BOOLEAN:
        return _leaf(at, end, node, plan, out, error)
    if op == NULL:
        if column >= 0:
            put_null(out, column)
        return at
    if depth > MAX_DEPTH:
        return set_error(error, _DEPTH, node, _MAX_DEPTH, NIL)
    if op == RECORD:
        if column >= 0:
            put_present(out, column)
        for link in range(plan.links + WORD * first, plan.links + WORD * (first + second), WORD):
            child = word(link)
            if word(plan.nodes + NODE * child + OP) == UNION:
                child, at = _branch(at, end, child, plan, error)
                if at < 0:
                    return FAILED
            if word(plan.nodes + NODE * child + OP) >= BOOLEAN:
                at = _leaf(at, end, child, plan, out, error)
            else:
                at = _walk(at, end, child, depth + 1, plan, out, error)
            if at < 0:
                return FAILED
        return at
    if op == UNION:
        child, at = _branch(at, end, node, plan, error)
        return _walk(at, end, child, depth + 1, plan, out, error) if at >= 0 else FAILED
    if op == MEMBER:
        put_present(out, column)
        for link in range(plan.links + WORD * first, plan.links + WORD * (first + second), WORD):
            put_null(out, word(link))
        return _walk(at, end, word(row + THIRD), depth + 1, plan, out, error)
    if op == CONSTANT:
        after = _walk(plan.constants + first, plan.end, second, depth + 1, plan, out, error)
        return at if after >= 0 else FAILED
    if op != ARRAY and op != MAP:
        return set_error(error, _REJECTED, node, first, NIL)
    key, total, place = word(row + THIRD), np.int64(0), NIL
    if column >= 0:
        place = reserve(out, column)
    while True:
        count, at = _block(at, end, node, total, plan, error)
        if at < 0:
            return FAILED
        if count == 0:
            break
        for _ in range(count):
            if op == MAP:
                at = _leaf(at, end, key, plan, out, error)
                if at < 0:
                    return FAILED
            at = _walk(at, end, first, depth + 1, plan, out, error)
            if at < 0:
                return FAILED
        total += count
    if column >= 0:
        set_count(out, column, place, total)
    return at
