"""A tape of JSON tokens into columns."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.compiling import NIL, Ints, compiled, constant, inner
from penstock.formats.faults import blame, fault_of, is_fine, settled
from penstock.formats.json.strings import same_text
from penstock.formats.json.tape import (
    AFTER,
    ARRAY,
    BEGIN,
    END,
    FALSE,
    HASH,
    KIND,
    NULL,
    NUMBER,
    OBJECT,
    START,
    STOP,
    STRING,
    TRUE,
    Tape,
    token_row,
    tokens,
)
from penstock.formats.memory import WORD, set_word, word
from penstock.formats.problems import Problem
from penstock.formats.sink import Sink, put, put_count, put_null, put_there, put_two, reserve
from penstock.formats.text_put import BOOLEAN, DECIMAL, put_number, put_time
from penstock.formats.text_put import STRING as TEXT

__all__ = ["EXPECTED", "LIST", "MAP", "RAW", "STRUCT", "Plan", "walk_all"]

# Rules beyond those of `text_put`.
STRUCT = 20  # first key, count of keys
LIST = 21
MAP = 22
RAW = 23

EXPECTED = 10
"""Where, among the words for kinds of values, those for rules begin."""

_COLUMN = 32
"""How many bytes a column has in the plan: those of its rule, two numbers of the rule's own, and the first child."""
_RULE, _FIRST, _SECOND, _CHILD = (constant(place) for place in range(0, _COLUMN, WORD))
_KEY = 32
"""The same of a key of a struct: its hash, its place in the constants, its size, and the column of its values."""
_KEY_HASH, _KEY_PLACE, _KEY_SIZE, _KEY_COLUMN = (constant(place) for place in range(0, _KEY, WORD))

_KIND = constant(Problem.KIND)
_EXTRA = constant(Problem.EXTRA)
_NONE = constant(-1)


class Plan(NamedTuple):
    """How to read messages, by address."""

    rules: int
    """A row per column."""
    keys: int
    """A row per key of a struct."""
    constants: int
    slots: int
    """Room for the tokens of the keys of structs that are open."""
    refuse_extra: bool
    root: int
    """The column that a whole message goes into."""


@compiled
def walk_all(first: int, start: Ints, end: Ints, plan: Plan, tape: Tape, sink: Sink, faults: int) -> int:
    """Put the messages from `first` on; return the one for which columns had no room, or their number."""
    for index in range(first, len(start)):
        fault = fault_of(faults, index)
        fine = is_fine(fault) and tokens(start[index], end[index], tape, fault) > 0
        if fine:
            if plan.root:
                put_there(sink, NIL)
            fine = _put(NIL, plan.root, plan.slots, tape, plan, sink, fault)
        if not settled(fine, fault, start[index], sink):
            return index
    return len(start)


@inner
def _scalar(token: int, column: int, rule: int, tape: Tape, plan: Plan, sink: Sink, fault: int) -> bool:
    """Put a token that holds no others."""
    row = token_row(tape, token)
    kind, start, end = word(row + KIND), word(row + START), word(row + END)
    if rule == BOOLEAN:
        if kind in (TRUE, FALSE):
            put(sink, column, 1 if kind == TRUE else 0)
            return True
    elif rule <= DECIMAL:
        if kind == NUMBER:
            own = plan.rules + _COLUMN * column
            return put_number(start, end, rule, word(own + _FIRST), word(own + _SECOND), column, sink, fault)
    elif kind == STRING:
        if rule != TEXT:
            return put_time(start, end, rule, column, sink, fault)
        put_two(sink, column, start, end - start)
        return True
    return blame(fault, _KIND, column, kind, EXPECTED + rule) >= 0


@inner
def _found(token: int, column: int, slots: int, tape: Tape, plan: Plan, fault: int) -> bool:
    """Note for each key of a struct which token has its value; False if the object has a key that is refused."""
    rule = plan.rules + _COLUMN * column
    first, count = plan.keys + _KEY * word(rule + _FIRST), word(rule + _SECOND)
    for slot in range(slots, slots + WORD * count, WORD):
        set_word(slot, _NONE)
    key, stop, guess = token + 1, word(token_row(tape, token) + AFTER), NIL
    while key < stop:
        row = token_row(tape, key)
        found = _matching(row, first, count, guess, plan)
        if found >= 0:
            set_word(slots + WORD * found, key + 1)
            guess = found + 1
        elif plan.refuse_extra:
            return blame(fault, _EXTRA, column, word(row + BEGIN), NIL) >= 0
        key = word(token_row(tape, key + 1) + AFTER)
    return True


@inner
def _matching(row: int, first: int, count: int, guess: int, plan: Plan) -> int:
    """Return which key of a struct a token is, or -1; objects have their keys mostly in the order of the struct."""
    hashed, start, end = word(row + HASH), word(row + START), word(row + END)
    for step in range(count):
        candidate = guess + step
        if candidate >= count:
            candidate -= count
        key = first + _KEY * candidate
        place, size = plan.constants + word(key + _KEY_PLACE), word(key + _KEY_SIZE)
        if word(key + _KEY_HASH) == hashed and same_text(start, end, place, size):
            return candidate
    return _NONE


@inner
def _put(token: int, column: int, slots: int, tape: Tape, plan: Plan, sink: Sink, fault: int) -> bool:
    """Put a token, and what is within it, into a column; False with the fault noted.

    One function for all that holds others: numba keeps functions that call themselves in its cache, but crashes when
    it loads two that call each other.
    """
    row, own = token_row(tape, token), plan.rules + _COLUMN * column
    kind, rule = word(row + KIND), word(own + _RULE)
    if kind == NULL:
        put_null(sink, column)
        return True
    if rule == RAW:
        put_two(sink, column, word(row + BEGIN), word(row + STOP) - word(row + BEGIN))
        return True
    if rule < STRUCT:
        return _scalar(token, column, rule, tape, plan, sink, fault)
    if kind != (ARRAY if rule == LIST else OBJECT):
        return blame(fault, _KIND, column, kind, EXPECTED + rule) >= 0
    if rule == STRUCT:
        if not _found(token, column, slots, tape, plan, fault):
            return False
        put_there(sink, column)
        key, count = plan.keys + _KEY * word(own + _FIRST), word(own + _SECOND)
        for slot in range(slots, slots + WORD * count, WORD):
            below, value = word(key + _KEY_COLUMN), word(slot)
            key += _KEY
            if value == _NONE:
                put_null(sink, below)
            elif not _put(value, below, slots + WORD * count, tape, plan, sink, fault):
                return False
        return True
    child, place = word(own + _CHILD), reserve(sink, column)
    item, stop, count = token + 1, word(row + AFTER), NIL
    while item < stop:
        if rule == MAP:
            start = word(token_row(tape, item) + START)
            put_two(sink, child, start, word(token_row(tape, item) + END) - start)
            item += 1
        if not _put(item, child + 1 if rule == MAP else child, slots, tape, plan, sink, fault):
            return False
        item = word(token_row(tape, item) + AFTER)
        count += 1
    put_count(sink, column, place, count)
    return True
