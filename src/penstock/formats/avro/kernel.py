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

from penstock.formats.avro.leaves import leaf, length_at, number_at
from penstock.formats.avro.ops import (
    ARRAY,
    BOOLEAN,
    COLUMN,
    CONSTANT,
    FIRST,
    MAP,
    MAX_DEPTH,
    MAX_EMPTY_ITEMS,
    MEMBER,
    NODE,
    NULL,
    OP,
    RECORD,
    SECOND,
    THIRD,
    UNION,
    Plan,
)
from penstock.formats.column_writer import ColumnWriter, put_null, put_present, reserve, set_count
from penstock.formats.decode_errors import ErrorCode
from penstock.formats.error_records import FAILED, error_record, finish_message, is_ok, set_error
from penstock.formats.jit import NIL, Ints, compiled, constant, inner
from penstock.formats.memory import WORD, word

__all__ = ["walk_all"]

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
    branch, after = number_at(at, end, node, error)
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
    count, at = number_at(at, end, node, error)
    if at < 0 or count == 0:
        return NIL, at
    if count < 0:
        _, at = length_at(at, end, node, error)
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
        return leaf(at, end, node, plan, out, error)
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
                at = leaf(at, end, child, plan, out, error)
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
                at = leaf(at, end, key, plan, out, error)
                if at < 0:
                    return FAILED
            at = _walk(at, end, first, depth + 1, plan, out, error)
            if at < 0:
                return FAILED
        total += count
    if column >= 0:
        set_count(out, column, place, total)
    return at
