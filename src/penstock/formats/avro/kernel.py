"""Avro's binary encoding, walked by a plan.

A plan is a table of nodes, one per place in the writer's schema; a node says what is encoded there (`ops`) and into
which column it goes (-1: nowhere, it is only passed over). Differences between the writer's and the reader's schema
were settled when the plan was made (`penstock.formats.avro.plan`); here bytes become entries of columns.

Every length, count, index and number is checked against the bytes that are left, so that no message reads beyond
itself or makes more than its size warrants. What is left behind the last value is a problem of its own: Avro has no
end mark, and left-over bytes are how a message shows that it was read with the wrong schema.
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
    MEMBER,
    MOST_DEPTH,
    MOST_EMPTY_ITEMS,
    NODE,
    NULL,
    OP,
    RECORD,
    SECOND,
    THIRD,
    UNION,
    Plan,
)
from penstock.formats.compiling import NIL, Ints, compiled, constant, inner
from penstock.formats.faults import BAD, blame, fault_of, is_fine, settled
from penstock.formats.memory import WORD, word
from penstock.formats.problems import Problem
from penstock.formats.sink import Sink, put_count, put_null, put_there, reserve

__all__ = ["walk_all"]

_BRANCH = constant(Problem.BRANCH)
_ITEMS = constant(Problem.ITEMS)
_TRAILING = constant(Problem.TRAILING)
_DEPTH = constant(Problem.DEPTH)
_REFUSED = constant(Problem.REFUSED)
_MOST_DEPTH = constant(MOST_DEPTH)


@compiled
def walk_all(first: int, start: Ints, end: Ints, root: Ints, plan: Plan, sink: Sink, faults: int) -> int:
    """Put the messages from `first` on; return the one for which columns had no room, or their number."""
    for index in range(first, len(start)):
        fault, fine = fault_of(faults, index), False
        if is_fine(fault):
            at = _walk(start[index], end[index], root[index], NIL, plan, sink, fault)
            if at >= 0 and at < end[index]:
                at = blame(fault, _TRAILING, root[index], end[index] - at, NIL)
            fine = at >= 0
        if not settled(fine, fault, start[index], sink):
            return index
    return len(start)


@inner
def _branch(at: int, end: int, node: int, plan: Plan, fault: int) -> tuple[int, int]:
    """Read which branch of a union follows; return its node and its place."""
    row = plan.nodes + NODE * node
    branch, after = number_at(at, end, node, fault)
    if after < 0:
        return node, BAD
    count = word(row + SECOND)
    if branch < 0 or branch >= count:
        return node, blame(fault, _BRANCH, node, branch, count)
    return word(plan.links + WORD * (word(row + FIRST) + branch)), after


@inner
def _block(at: int, end: int, node: int, total: int, plan: Plan, fault: int) -> tuple[int, int]:
    """Read how many items the next block of an array or a map has; 0 ends it."""
    least = word(plan.nodes + NODE * node + SECOND)
    count, at = number_at(at, end, node, fault)
    if at < 0 or count == 0:
        return NIL, at
    if count < 0:
        _, at = length_at(at, end, node, fault)
        if at < 0:
            return NIL, BAD
        count = -count
    room = (end - at) // least if least else MOST_EMPTY_ITEMS - total
    if count < 0 or count > room:
        return NIL, blame(fault, _ITEMS, node, count, end - at)
    return count, at


@inner
def _walk(at: int, end: int, node: int, depth: int, plan: Plan, sink: Sink, fault: int) -> int:
    """Read the value of `node` at `at`; return the place after it, or `BAD` with the fault noted.

    One function for all that holds others: numba keeps functions that call themselves in its cache, but crashes when
    it loads two that call each other.
    """
    row = plan.nodes + NODE * node
    op, column, first, second = word(row + OP), word(row + COLUMN), word(row + FIRST), word(row + SECOND)
    if op >= BOOLEAN:
        return leaf(at, end, node, plan, sink, fault)
    if op == NULL:
        if column >= 0:
            put_null(sink, column)
        return at
    if depth > MOST_DEPTH:
        return blame(fault, _DEPTH, node, _MOST_DEPTH, NIL)
    if op == RECORD:
        if column >= 0:
            put_there(sink, column)
        for link in range(plan.links + WORD * first, plan.links + WORD * (first + second), WORD):
            child = word(link)
            if word(plan.nodes + NODE * child + OP) == UNION:
                child, at = _branch(at, end, child, plan, fault)
                if at < 0:
                    return BAD
            if word(plan.nodes + NODE * child + OP) >= BOOLEAN:
                at = leaf(at, end, child, plan, sink, fault)
            else:
                at = _walk(at, end, child, depth + 1, plan, sink, fault)
            if at < 0:
                return BAD
        return at
    if op == UNION:
        child, at = _branch(at, end, node, plan, fault)
        return _walk(at, end, child, depth + 1, plan, sink, fault) if at >= 0 else BAD
    if op == MEMBER:
        put_there(sink, column)
        for link in range(plan.links + WORD * first, plan.links + WORD * (first + second), WORD):
            put_null(sink, word(link))
        return _walk(at, end, word(row + THIRD), depth + 1, plan, sink, fault)
    if op == CONSTANT:
        after = _walk(plan.constants + first, plan.end, second, depth + 1, plan, sink, fault)
        return at if after >= 0 else BAD
    if op != ARRAY and op != MAP:
        return blame(fault, _REFUSED, node, first, NIL)
    key, total, place = word(row + THIRD), np.int64(0), NIL
    if column >= 0:
        place = reserve(sink, column)
    while True:
        count, at = _block(at, end, node, total, plan, fault)
        if at < 0:
            return BAD
        if count == 0:
            break
        for _ in range(count):
            if op == MAP:
                at = leaf(at, end, key, plan, sink, fault)
                if at < 0:
                    return BAD
            at = _walk(at, end, first, depth + 1, plan, sink, fault)
            if at < 0:
                return BAD
        total += count
    if column >= 0:
        put_count(sink, column, place, total)
    return at
