"""A tape of JSON tokens into columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.json.tape import (
    ARRAY,
    FALSE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TRUE,
    Tape,
    same_text,
    tokens,
)
from penstock.formats.problems import CODE, NODE, A, B, Faults, Problem
from penstock.formats.sink import NIL, Bytes, Ints, Sink, compiled, inner, put, put_null, reserve
from penstock.formats.text_put import BOOLEAN, DECIMAL, FLOATING, INTEGER, put_number, put_time
from penstock.formats.text_put import STRING as TEXT

__all__ = ["EXPECTED", "LIST", "MAP", "RAW", "STRUCT", "Plan", "walk_all"]

# Rules beyond those of `text_put`.
STRUCT = 20  # first key, count of keys
LIST = 21
MAP = 22
RAW = 23

EXPECTED = 10
"""Where, among the words for kinds of values, those for rules begin."""

_FINE = np.int64(Problem.FINE)
_KIND = np.int64(Problem.KIND)
_EXTRA = np.int64(Problem.EXTRA)
_NONE = np.int64(-1)


class Plan(NamedTuple):
    """How to read messages: a row per column, and the keys of structs."""

    rules: Ints
    """Rule, two numbers of its own, and the first child."""
    keys: Ints
    """Hash, place and size in the constants, and column."""
    constants: Bytes
    slots: Ints
    """Room for the tokens of the keys of structs that are open; the last number says how many are in use."""
    refuse_extra: bool
    root: int
    """The column that a whole message goes into."""


@compiled
def walk_all(
    data: Bytes, start: Ints, end: Ints, arena: Bytes, plan: Plan, tape: Tape, sink: Sink, faults: Faults
) -> None:
    """Put every message that has no fault yet; note the faults that are found."""
    before = np.empty_like(sink.count)
    for index in range(len(start)):
        if faults[index, CODE] != _FINE:
            put_null(sink, 0)
            continue
        before[:] = sink.count
        fault = faults[index]
        fine = tokens(data, start[index], end[index], arena, tape, fault) > 0
        if fine:
            plan.slots[-1] = 0
            if plan.root:
                put(sink, 0, NIL, NIL)
            fine = _put(arena, NIL, plan.root, tape, plan, sink, fault)
            if not fine and fault[CODE] == _EXTRA:
                fault[A] = fault[A] % len(data) - 1 - start[index]
        if not fine:
            sink.count[:] = before
            put_null(sink, 0)


@inner
def _mismatch(fault: Ints, column: int, found: int, rule: int) -> bool:
    fault[CODE] = _KIND
    fault[NODE] = column
    fault[A] = found
    fault[B] = EXPECTED + rule
    return False


@inner
def _scalar(arena: Bytes, token: int, column: int, tape: Tape, plan: Plan, sink: Sink, fault: Ints) -> bool:
    """Put a token that holds no others."""
    kind, rule = tape.kind[token], plan.rules[column, 0]
    start, end = tape.start[token], tape.end[token]
    if rule == BOOLEAN:
        if kind != TRUE and kind != FALSE:
            return _mismatch(fault, column, kind, rule)
        put(sink, column, 1 if kind == TRUE else 0, NIL)
        return True
    if rule in (INTEGER, FLOATING, DECIMAL):
        if kind != NUMBER:
            return _mismatch(fault, column, kind, rule)
        return put_number(arena, start, end, rule, plan.rules[column, 1], plan.rules[column, 2], column, sink, fault)
    if kind != STRING:
        return _mismatch(fault, column, kind, rule)
    if rule == TEXT:
        put(sink, column, start, end - start)
        return True
    return put_time(arena, start, end, rule, column, sink, fault)


@inner
def _raw(arena: Bytes, token: int, column: int, tape: Tape, sink: Sink) -> None:
    """Put a token as it is written."""
    start, end, quotes = tape.start[token], tape.end[token], 1 if tape.kind[token] == STRING else 0
    if start >= len(arena) // 2:  # this is its text without escapes; it was written at the same place of the message
        start -= len(arena) // 2
        end = start
        while arena[end] != 34:
            end += 2 if arena[end] == 92 else 1
    put(sink, column, start - quotes, end - start + 2 * quotes)


@inner
def _found(arena: Bytes, token: int, column: int, tape: Tape, plan: Plan, slots: int, fault: Ints) -> bool:
    """Note for each key of a struct which token has its value; False if the object has a key that is refused."""
    first, count = plan.rules[column, 1], plan.rules[column, 2]
    plan.slots[slots : slots + count] = _NONE
    key, stop, guess = token + 1, tape.after[token], 0
    while key < stop:
        found = _NONE
        for step in range(count):
            candidate = (guess + step) % count
            row = first + candidate
            if plan.keys[row, 0] == tape.hash[key] and same_text(
                arena, tape.start[key], tape.end[key], plan.constants, plan.keys[row, 1], plan.keys[row, 2]
            ):
                found = candidate
                break
        if found != _NONE:
            plan.slots[slots + found] = key + 1
            guess = found + 1
        elif plan.refuse_extra:
            fault[CODE], fault[NODE], fault[A] = _EXTRA, column, tape.start[key]
            return False
        key = tape.after[key + 1]
    return True


@inner
def _put(arena: Bytes, token: int, column: int, tape: Tape, plan: Plan, sink: Sink, fault: Ints) -> bool:
    """Put a token, and what is within it, into a column; False with the fault noted.

    One function for all that holds others: numba keeps functions that call themselves in its cache, but crashes when
    it loads two that call each other.
    """
    kind, rule = tape.kind[token], plan.rules[column, 0]
    if kind == NULL:
        put_null(sink, column)
        return True
    if rule == RAW:
        _raw(arena, token, column, tape, sink)
        return True
    if rule < STRUCT:
        return _scalar(arena, token, column, tape, plan, sink, fault)
    if kind != (ARRAY if rule == LIST else OBJECT):
        return _mismatch(fault, column, kind, rule)
    if rule == STRUCT:
        slots = plan.slots[-1]
        plan.slots[-1] = slots + plan.rules[column, 2]
        if not _found(arena, token, column, tape, plan, slots, fault):
            return False
        put(sink, column, NIL, NIL)
        for index in range(plan.rules[column, 2]):
            below, value = plan.keys[plan.rules[column, 1] + index, 3], plan.slots[slots + index]
            if value == _NONE:
                put_null(sink, below)
            elif not _put(arena, value, below, tape, plan, sink, fault):
                return False
        plan.slots[-1] = slots
        return True
    child, place = plan.rules[column, 3], reserve(sink, column)
    item, stop, count = token + 1, tape.after[token], 0
    while item < stop:
        if rule == MAP:
            put(sink, child, tape.start[item], tape.end[item] - tape.start[item])
            item += 1
        if not _put(arena, item, child + 1 if rule == MAP else child, tape, plan, sink, fault):
            return False
        item = tape.after[item]
        count += 1
    if sink.valid.size:
        sink.value[place] = count
    return True
