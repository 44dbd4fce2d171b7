"""Kernel of JSON: write a tape of tokens to columns."""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.column_writer import ColumnWriter, put, put_null, put_pair, put_present, reserve, set_count
from penstock.formats.decode_errors import ErrorCode, error_record, finish_message, is_ok, set_error
from penstock.formats.jit import NIL, Ints, compiled, constant, inner
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
    tokenize,
)
from penstock.formats.memory import WORD, set_word, word
from penstock.formats.text_writer import BOOLEAN, DECIMAL, put_number, put_time
from penstock.formats.text_writer import STRING as TEXT

__all__ = ["KINDS", "LIST", "MAP", "RAW", "STRUCT", "Plan", "walk_all"]

# Rules beyond those of `text_writer`.
STRUCT = 20  # first key, count of keys
LIST = 21
MAP = 22
RAW = 23

_FOUND = ["", "an object", "an array", "a string", "a number", "true", "false", "null", "a key", ""]
_WANTED = {
    1: "true or false",
    2: "an integer",
    3: "a number",
    4: "a number",
    5: "a string",
    6: "a date as a string",
    7: "a time as a string",
    8: "a time as a string",
    STRUCT: "an object",
    LIST: "an array",
    MAP: "an object",
}
KINDS = _FOUND + [_WANTED.get(rule, "") for rule in range(RAW + 1)]
"""Words for the value found and, from index `_EXPECTED` on, for the value expected."""
_EXPECTED = len(_FOUND)
"""Index of the first word for rules in `KINDS`."""

_COLUMN = 32
"""Size of a column in the plan, in bytes: its rule, two parameters, and the first child."""
_RULE, _FIRST, _SECOND, _CHILD = (constant(place) for place in range(0, _COLUMN, WORD))
_KEY = 32
"""Size of a struct's key in the plan: its hash, its offset in the constants, its size, and the column of its values."""
_KEY_HASH, _KEY_PLACE, _KEY_SIZE, _KEY_COLUMN = (constant(place) for place in range(0, _KEY, WORD))

_KIND = constant(ErrorCode.KIND)
_EXTRA = constant(ErrorCode.EXTRA)
_NONE = constant(-1)


class Plan(NamedTuple):
    """How to decode messages, by address."""

    rules: int
    """A row per column."""
    keys: int
    """A row per key of a struct."""
    constants: int
    slots: int
    """Memory for the tokens of the keys of open structs."""
    refuse_extra: bool
    root: int
    """The column that a whole message is written to."""


@compiled
def walk_all(first: int, start: Ints, end: Ints, plan: Plan, tape: Tape, out: ColumnWriter, errors: int) -> int:
    """Decode the messages from `first` on; return the index at which capacity ran out, or the number of messages."""
    for index in range(first, len(start)):
        error = error_record(errors, index)
        ok = is_ok(error) and tokenize(start[index], end[index], tape, error) > 0
        if ok:
            if plan.root:
                put_present(out, NIL)
            ok = _put(NIL, plan.root, plan.slots, tape, plan, out, error)
        if not finish_message(ok, error, start[index], out):
            return index
    return len(start)


@inner
def _put_scalar(token: int, column: int, rule: int, tape: Tape, plan: Plan, out: ColumnWriter, error: int) -> bool:
    """Write a token that contains no others."""
    row = token_row(tape, token)
    kind, start, end = word(row + KIND), word(row + START), word(row + END)
    if rule == BOOLEAN:
        if kind in (TRUE, FALSE):
            put(out, column, 1 if kind == TRUE else 0)
            return True
    elif rule <= DECIMAL:
        if kind == NUMBER:
            own = plan.rules + _COLUMN * column
            return put_number(start, end, rule, word(own + _FIRST), word(own + _SECOND), column, out, error)
    elif kind == STRING:
        if rule != TEXT:
            return put_time(start, end, rule, column, out, error)
        put_pair(out, column, start, end - start)
        return True
    return set_error(error, _KIND, column, kind, _EXPECTED + rule) >= 0


@inner
def _match_keys(token: int, column: int, slots: int, tape: Tape, plan: Plan, error: int) -> bool:
    """Set the token of the value for each key of a struct; return False if the object has a key that is rejected."""
    rule = plan.rules + _COLUMN * column
    first, count = plan.keys + _KEY * word(rule + _FIRST), word(rule + _SECOND)
    for slot in range(slots, slots + WORD * count, WORD):
        set_word(slot, _NONE)
    key, stop, guess = token + 1, word(token_row(tape, token) + AFTER), NIL
    while key < stop:
        row = token_row(tape, key)
        found = _key_index(row, first, count, guess, plan)
        if found >= 0:
            set_word(slots + WORD * found, key + 1)
            guess = found + 1
        elif plan.refuse_extra:
            return set_error(error, _EXTRA, column, word(row + BEGIN), NIL) >= 0
        key = word(token_row(tape, key + 1) + AFTER)
    return True


@inner
def _key_index(row: int, first: int, count: int, guess: int, plan: Plan) -> int:
    """Return which key of a struct a token is, or -1; the keys of objects are mostly in the order of the struct."""
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
def _put(token: int, column: int, slots: int, tape: Tape, plan: Plan, out: ColumnWriter, error: int) -> bool:
    """Write a token, with all tokens within it, to a column; return False if an error was set.

    This is one function for all nested types: numba can cache functions that call themselves, but crashes when it loads
    functions that call each other.
    """
    row, own = token_row(tape, token), plan.rules + _COLUMN * column
    kind, rule = word(row + KIND), word(own + _RULE)
    if kind == NULL:
        put_null(out, column)
        return True
    if rule == RAW:
        put_pair(out, column, word(row + BEGIN), word(row + STOP) - word(row + BEGIN))
        return True
    if rule < STRUCT:
        return _put_scalar(token, column, rule, tape, plan, out, error)
    if kind != (ARRAY if rule == LIST else OBJECT):
        return set_error(error, _KIND, column, kind, _EXPECTED + rule) >= 0
    if rule == STRUCT:
        if not _match_keys(token, column, slots, tape, plan, error):
            return False
        put_present(out, column)
        key, count = plan.keys + _KEY * word(own + _FIRST), word(own + _SECOND)
        for slot in range(slots, slots + WORD * count, WORD):
            below, value = word(key + _KEY_COLUMN), word(slot)
            key += _KEY
            if value == _NONE:
                put_null(out, below)
            elif not _put(value, below, slots + WORD * count, tape, plan, out, error):
                return False
        return True
    child, place = word(own + _CHILD), reserve(out, column)
    item, stop, count = token + 1, word(row + AFTER), NIL
    while item < stop:
        if rule == MAP:
            start = word(token_row(tape, item) + START)
            put_pair(out, child, start, word(token_row(tape, item) + END) - start)
            item += 1
        if not _put(item, child + 1 if rule == MAP else child, slots, tape, plan, out, error):
            return False
        item = word(token_row(tape, item) + AFTER)
        count += 1
    set_count(out, column, place, count)
    return True
