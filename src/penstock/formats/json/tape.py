"""Tokenize and validate JSON text; the tokens of a message form a tape.

::

    {"a": [1, "x"]}      object ┬ key a ─ array ┬ number
                                │               └ string
                                └ each token has the address of its text and the token that follows it when skipped

The tokenizer enforces the whole grammar: text that is not JSON is an error, with its byte offset. So are invalid UTF-8,
invalid escapes (half a surrogate pair), control characters in strings, and duplicate keys in an object, of which other
parsers silently drop one.

Strings with escapes are decoded into memory of the batch, at the same distance from the original for all messages
(`shift`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.formats.decode_errors import FAILED, ErrorCode, set_error
from penstock.formats.jit import NIL, constant, inner
from penstock.formats.json.strings import same_text, string_end, text_hash, unescape
from penstock.formats.memory import WORD, byte, half, set_word, word
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
    "MAX_DEPTH",
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
    "tokenize",
]

OBJECT, ARRAY, STRING, NUMBER, TRUE, FALSE, NULL, KEY = (constant(kind) for kind in range(1, 9))

TOKEN = 64
"""Size of a token in bytes: the numbers below, and padding."""
KIND, START, END, AFTER, HASH, BEGIN, STOP = (constant(WORD * place) for place in range(7))
"""Its kind; start and end of its text, without quotes and escapes; the token that follows it and all tokens within it;
the hash of a key; its start and end in the message.
"""
SEEN = 16
"""Size of a row in the table of keys seen, in bytes: the number of the object, and the token."""
MAX_DEPTH = constant(200)

_EMPTY = constant(ErrorCode.EMPTY)
_SYNTAX = constant(ErrorCode.SYNTAX)
_TRAILING = constant(ErrorCode.TRAILING)
_DEPTH = constant(ErrorCode.DEPTH)
_DUPLICATE = constant(ErrorCode.DUPLICATE)

_VALUE, _FIRST_VALUE, _NAME, _FIRST_NAME, _AFTER = (constant(state) for state in range(5))
_QUOTE, _COMMA, _COLON, _CLOSE_OBJECT, _CLOSE_ARRAY, _OPEN_OBJECT, _OPEN_ARRAY = 34, 44, 58, 125, 93, 123, 91
_TRUE_TEXT, _NULL_TEXT, _FALS_TEXT = (int.from_bytes(text, "little") for text in (b"true", b"null", b"fals"))
_E = 101


class Tape(NamedTuple):
    """The tokens of one message at a time, by address."""

    rows: int
    open: int
    """The open objects and arrays."""
    seen: int
    """A hash table of the keys of one object; rows have the object's number, so that they need not be cleared."""
    mask: int
    """The size of that table minus one."""
    stamp: int
    """The number of the last object."""
    shift: int


@inner
def token_row(tape: Tape, token: int) -> int:
    """Return the address of a token."""
    return tape.rows + TOKEN * token


@inner
def tokenize(begin: int, end: int, tape: Tape, error: int) -> int:
    """Fill the tape from the message between `begin` and `end`; return the token count, or -1 with the error set."""
    count, depth, state = NIL, NIL, _VALUE
    at = _skip_space(begin, end)
    if at >= end:
        return set_error(error, _EMPTY, NIL, NIL, NIL)
    while True:
        at = _skip_space(at, end)
        if state == _AFTER and depth == 0:
            return count if at >= end else set_error(error, _TRAILING, NIL, end - at, NIL)
        if at >= end:
            return set_error(error, _SYNTAX, NIL, at, NIL)
        character = byte(at)
        if state == _NAME or (state == _FIRST_NAME and character != _CLOSE_OBJECT):
            at = _add_key(at, end, count, tape, error)
            count += 1
            state = _VALUE
        elif state == _AFTER and character == _COMMA:
            at += 1
            state = _NAME if word(word(tape.open + WORD * (depth - 1)) + KIND) == OBJECT else _VALUE
        elif character in (_CLOSE_OBJECT, _CLOSE_ARRAY):
            at = _close(at, count, depth, state, tape, error)
            depth -= 1
            state = _AFTER
        elif state == _AFTER:
            return set_error(error, _SYNTAX, NIL, at, NIL)
        elif character in (_OPEN_OBJECT, _OPEN_ARRAY):
            if depth >= MAX_DEPTH:
                return set_error(error, _DEPTH, NIL, MAX_DEPTH, NIL)
            set_word(tape.open + WORD * depth, token_row(tape, count))
            depth += 1
            _add(tape, count, OBJECT if character == _OPEN_OBJECT else ARRAY, at, at)
            count += 1
            at += 1
            state = _FIRST_NAME if character == _OPEN_OBJECT else _FIRST_VALUE
        else:
            at = _add_scalar(at, end, count, tape, error)
            count += 1
            state = _AFTER
        if at < 0:
            return FAILED


@inner
def _skip_space(at: int, end: int) -> int:
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
def _add_key(at: int, end: int, token: int, tape: Tape, error: int) -> int:
    """Add the key of an object; return the address after its colon."""
    if byte(at) != _QUOTE:
        return set_error(error, _SYNTAX, NIL, at, NIL)
    at = _add_string(at, end, token, KEY, tape, error)
    if at < 0:
        return FAILED
    row = token_row(tape, token)
    set_word(row + HASH, text_hash(word(row + START), word(row + END)))
    at = _skip_space(at, end)
    if at >= end or byte(at) != _COLON:
        return set_error(error, _SYNTAX, NIL, at, NIL)
    return at + 1


@inner
def _close(at: int, count: int, depth: int, state: int, tape: Tape, error: int) -> int:
    """Close the innermost object or array; return the address after it."""
    of_object = byte(at) == _CLOSE_OBJECT
    if depth == 0 or (state != _AFTER and state != (_FIRST_NAME if of_object else _FIRST_VALUE)):
        return set_error(error, _SYNTAX, NIL, at, NIL)
    row = word(tape.open + WORD * (depth - 1))
    if word(row + KIND) != (OBJECT if of_object else ARRAY):
        return set_error(error, _SYNTAX, NIL, at, NIL)
    set_word(row + AFTER, count)
    set_word(row + END, at + 1)
    set_word(row + STOP, at + 1)
    if of_object:
        twice = _duplicate(row + TOKEN, token_row(tape, count), tape)
        if twice >= 0:
            return set_error(error, _DUPLICATE, NIL, word(twice + BEGIN), NIL)
    return at + 1


@inner
def _add_scalar(at: int, end: int, token: int, tape: Tape, error: int) -> int:
    """Add a value that contains no others; return the address after it."""
    if byte(at) == _QUOTE:
        return _add_string(at, end, token, STRING, tape, error)
    kind, stop = NUMBER, at + 4
    text = half(at) if end - at >= 4 else NIL
    if text == _TRUE_TEXT:
        kind = TRUE
    elif text == _NULL_TEXT:
        kind = NULL
    elif text == _FALS_TEXT:
        kind, stop = FALSE, at + 5
        if stop > end or byte(at + 4) != _E:
            return set_error(error, _SYNTAX, NIL, at, NIL)
    else:
        stop = is_number(at, end)
        if stop < 0:
            return set_error(error, _SYNTAX, NIL, at, NIL)
    _add(tape, token, kind, at, stop)
    return stop


@inner
def _add_string(at: int, end: int, token: int, kind: int, tape: Tape, error: int) -> int:
    """Add the string whose opening quote is at `at`; return the address after its closing quote."""
    stop, escaped = string_end(at + 1, end, error)
    if stop < 0:
        return FAILED
    _add(tape, token, kind, at, stop + 1)
    row, start = token_row(tape, token), at + 1
    if escaped:
        start += tape.shift
        set_word(row + END, unescape(at + 1, stop, start, error))
        if word(row + END) < 0:
            return FAILED
    else:
        set_word(row + END, stop)
    set_word(row + START, start)
    return stop + 1


@inner
def _duplicate(key: int, stop: int, tape: Tape) -> int:
    """Return the row of a duplicate key of an object, or -1."""
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
    return FAILED
