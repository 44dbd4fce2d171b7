"""JSON text as a tape of tokens, checked on the way.

::

    {"a": [1, "x"]}      object ┬ key a ─ array ┬ number
                                │               └ string
                                └ each token knows where its text is and which token follows when it is passed over

The whole grammar is held to: what is not JSON is a problem, with the byte at which it stops being JSON. So are text
that is not UTF-8, escapes that stand for no character (half a surrogate pair), control characters in text, and the
same key twice in one object, of which other readers drop one without a word.

Text with escapes is written without them into memory of the batch, at the same distance for all messages (`shift`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.faults import BAD, blame
from penstock.formats.json.strings import same_text, text_end, text_hash, unescaped
from penstock.formats.memory import WORD, byte, half, set_word, word
from penstock.formats.problems import Problem
from penstock.formats.text_values import is_number

__all__ = [
    "AFTER",
    "ARRAY",
    "BEGIN",
    "END",
    "FALSE",
    "HASH",
    "KEY",
    "KIND",
    "MOST_DEPTH",
    "NULL",
    "NUMBER",
    "OBJECT",
    "SEEN",
    "START",
    "STOP",
    "STRING",
    "TOKEN",
    "TRUE",
    "Tape",
    "token_row",
    "tokens",
]

OBJECT, ARRAY, STRING, NUMBER, TRUE, FALSE, NULL, KEY = (constant(kind) for kind in range(1, 9))

TOKEN = 64
"""How many bytes a token has: those of the numbers below, and some that are not used."""
KIND, START, END, AFTER, HASH, BEGIN, STOP = (constant(WORD * place) for place in range(7))
"""Its kind; where its text begins and ends, without quotes and escapes; the token that follows it and all within it; of
a key, its hash; where it begins and ends in the message."""
SEEN = 16
"""How many bytes a row of the keys that were seen has: the number of the object, and the token."""
MOST_DEPTH = constant(200)

_EMPTY = constant(Problem.EMPTY)
_SYNTAX = constant(Problem.SYNTAX)
_TRAILING = constant(Problem.TRAILING)
_DEPTH = constant(Problem.DEPTH)
_DUPLICATE = constant(Problem.DUPLICATE)

_VALUE, _FIRST_VALUE, _NAME, _FIRST_NAME, _AFTER = (constant(state) for state in range(5))
_QUOTE, _COMMA, _COLON, _CLOSE_OBJECT, _CLOSE_ARRAY, _OPEN_OBJECT, _OPEN_ARRAY = 34, 44, 58, 125, 93, 123, 91
_TRUE_TEXT, _NULL_TEXT, _FALS_TEXT = (int.from_bytes(text, "little") for text in (b"true", b"null", b"fals"))
_E = 101


class Tape(NamedTuple):
    """The tokens of one message at a time, by address."""

    rows: int
    open: int
    """The objects and arrays around the place that is looked at."""
    seen: int
    """A table of the keys of one object, by hash, each row with the object's number: no row has to be cleared."""
    mask: int
    """One less than the size of that table."""
    stamp: int
    """The number of the last object."""
    shift: int


@inner
def token_row(tape: Tape, token: int) -> int:
    """Return where the numbers of a token are."""
    return tape.rows + TOKEN * token


@inner
def tokens(begin: int, end: int, tape: Tape, fault: int) -> int:
    """Fill the tape with the message between `begin` and `end`; return the count of tokens, or -1 with the fault."""
    count, depth, state = NIL, NIL, _VALUE
    at = _space(begin, end)
    if at >= end:
        return blame(fault, _EMPTY, NIL, NIL, NIL)
    while True:
        at = _space(at, end)
        if state == _AFTER and depth == 0:
            return count if at >= end else blame(fault, _TRAILING, NIL, end - at, NIL)
        if at >= end:
            return blame(fault, _SYNTAX, NIL, at, NIL)
        character = byte(at)
        if state == _NAME or (state == _FIRST_NAME and character != _CLOSE_OBJECT):
            at = _key(at, end, count, tape, fault)
            count += 1
            state = _VALUE
        elif state == _AFTER and character == _COMMA:
            at += 1
            state = _NAME if word(word(tape.open + WORD * (depth - 1)) + KIND) == OBJECT else _VALUE
        elif character in (_CLOSE_OBJECT, _CLOSE_ARRAY):
            at = _closed(at, count, depth, state, tape, fault)
            depth -= 1
            state = _AFTER
        elif state == _AFTER:
            return blame(fault, _SYNTAX, NIL, at, NIL)
        elif character in (_OPEN_OBJECT, _OPEN_ARRAY):
            if depth >= MOST_DEPTH:
                return blame(fault, _DEPTH, NIL, MOST_DEPTH, NIL)
            set_word(tape.open + WORD * depth, token_row(tape, count))
            depth += 1
            _add(tape, count, OBJECT if character == _OPEN_OBJECT else ARRAY, at, at)
            count += 1
            at += 1
            state = _FIRST_NAME if character == _OPEN_OBJECT else _FIRST_VALUE
        else:
            at = _scalar(at, end, count, tape, fault)
            count += 1
            state = _AFTER
        if at < 0:
            return BAD


@inner
def _space(at: int, end: int) -> int:
    while at < end and byte(at) <= 32 and (byte(at) == 32 or byte(at) == 10 or byte(at) == 13 or byte(at) == 9):
        at += 1
    return at


@inner
def _add(tape: Tape, token: int, kind: int, begin: int, stop: int) -> None:
    row = token_row(tape, token)
    set_word(row + KIND, kind)
    set_word(row + START, begin)
    set_word(row + END, stop)
    set_word(row + AFTER, token + 1)
    set_word(row + BEGIN, begin)
    set_word(row + STOP, stop)


@inner
def _key(at: int, end: int, token: int, tape: Tape, fault: int) -> int:
    """Add the key of an object; return the place after its colon."""
    if byte(at) != _QUOTE:
        return blame(fault, _SYNTAX, NIL, at, NIL)
    at = _string(at, end, token, KEY, tape, fault)
    if at < 0:
        return BAD
    row = token_row(tape, token)
    set_word(row + HASH, text_hash(word(row + START), word(row + END)))
    at = _space(at, end)
    if at >= end or byte(at) != _COLON:
        return blame(fault, _SYNTAX, NIL, at, NIL)
    return at + 1


@inner
def _closed(at: int, count: int, depth: int, state: int, tape: Tape, fault: int) -> int:
    """End the innermost object or array; return the place after it."""
    of_object = byte(at) == _CLOSE_OBJECT
    if depth == 0 or (state != _AFTER and state != (_FIRST_NAME if of_object else _FIRST_VALUE)):
        return blame(fault, _SYNTAX, NIL, at, NIL)
    row = word(tape.open + WORD * (depth - 1))
    if word(row + KIND) != (OBJECT if of_object else ARRAY):
        return blame(fault, _SYNTAX, NIL, at, NIL)
    set_word(row + AFTER, count)
    set_word(row + END, at + 1)
    set_word(row + STOP, at + 1)
    if of_object:
        twice = _duplicate(row + TOKEN, token_row(tape, count), tape)
        if twice >= 0:
            return blame(fault, _DUPLICATE, NIL, word(twice + BEGIN), NIL)
    return at + 1


@inner
def _scalar(at: int, end: int, token: int, tape: Tape, fault: int) -> int:
    """Add a value that holds no others; return the place after it."""
    if byte(at) == _QUOTE:
        return _string(at, end, token, STRING, tape, fault)
    kind, stop = NUMBER, at + 4
    text = half(at) if end - at >= 4 else NIL
    if text == _TRUE_TEXT:
        kind = TRUE
    elif text == _NULL_TEXT:
        kind = NULL
    elif text == _FALS_TEXT:
        kind, stop = FALSE, at + 5
        if stop > end or byte(at + 4) != _E:
            return blame(fault, _SYNTAX, NIL, at, NIL)
    else:
        stop = is_number(at, end)
        if stop < 0:
            return blame(fault, _SYNTAX, NIL, at, NIL)
    _add(tape, token, kind, at, stop)
    return stop


@inner
def _string(at: int, end: int, token: int, kind: int, tape: Tape, fault: int) -> int:
    """Add the text that begins with the quote at `at`; return the place after the other quote."""
    stop, escaped = text_end(at + 1, end, fault)
    if stop < 0:
        return BAD
    _add(tape, token, kind, at, stop + 1)
    row, start = token_row(tape, token), at + 1
    if escaped:
        start += tape.shift
        set_word(row + END, unescaped(at + 1, stop, start, fault))
        if word(row + END) < 0:
            return BAD
    else:
        set_word(row + END, stop)
    set_word(row + START, start)
    return stop + 1


@inner
def _duplicate(key: int, stop: int, tape: Tape) -> int:
    """Return the row of a key that an object has a second time, or -1."""
    stamp = word(tape.stamp) + 1
    set_word(tape.stamp, stamp)
    while key < stop:
        start, end, place = word(key + START), word(key + END), word(key + HASH) & tape.mask
        row = tape.seen + SEEN * place
        while word(row) == stamp:
            other = word(row + WORD)
            if same_text(start, end, word(other + START), word(other + END) - word(other + START)):
                return key
            place = (place + 1) & tape.mask
            row = tape.seen + SEEN * place
        set_word(row, stamp)
        set_word(row + WORD, key)
        key = token_row(tape, word(key + TOKEN + AFTER))
    return BAD
