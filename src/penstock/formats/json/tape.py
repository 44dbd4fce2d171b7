"""JSON text as a tape of tokens, checked on the way.

::

    {"a": [1, "x"]}      object ┬ key a ─ array ┬ number
                                │               └ string
                                └ each token knows where its text is and which token follows when it is passed over

The whole grammar is held to: what is not JSON is a problem, with the byte at which it stops being JSON. So are text
that is not UTF-8, escapes that stand for no character (half a surrogate pair), control characters in text, and the
same key twice in one object, of which other readers drop one without a word.

Text with escapes is written without them into the second half of the arena, at the same place; its first half is the
message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.problems import CODE, NODE, A, B, Problem
from penstock.formats.sink import NIL, Bytes, Ints, compiled, inner
from penstock.formats.text_values import is_number
from penstock.formats.wire import invalid_utf8

__all__ = [
    "ARRAY",
    "FALSE",
    "KEY",
    "NULL",
    "NUMBER",
    "OBJECT",
    "STRING",
    "TRUE",
    "Tape",
    "same_text",
    "tape_for",
    "text_hash",
    "tokens",
]

OBJECT, ARRAY, STRING, NUMBER, TRUE, FALSE, NULL, KEY = range(1, 9)

_EMPTY = np.int64(Problem.EMPTY)
_SYNTAX = np.int64(Problem.SYNTAX)
_TRAILING = np.int64(Problem.TRAILING)
_DEPTH = np.int64(Problem.DEPTH)
_UTF8 = np.int64(Problem.UTF8)
_ESCAPE = np.int64(Problem.ESCAPE)
_CONTROL = np.int64(Problem.CONTROL)
_DUPLICATE = np.int64(Problem.DUPLICATE)

_BAD = np.int64(-1)
_MOST_DEPTH = 200
_VALUE, _FIRST_VALUE, _NAME, _FIRST_NAME, _AFTER = range(5)
_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58
_FNV_START = np.uint64(14695981039346656037)
_FNV_PRIME = np.uint64(1099511628211)


class Tape(NamedTuple):
    """The tokens of one message at a time."""

    kind: Ints
    start: Ints
    """Where the text is, in the arena; of objects and arrays, where they begin in the message."""
    end: Ints
    after: Ints
    """The token that follows this one and all within it."""
    hash: Ints
    open: Ints
    """The objects and arrays around the place that is looked at."""
    seen: Ints
    """A table of the keys of one object, by hash, each row with the object's number: no row has to be cleared."""
    stamp: Ints


def tape_for(longest: int) -> Tape:
    """Make room for a message of so many bytes."""
    room = longest + 2
    table = 1 << max(4, int(longest).bit_length())
    kind, start, end, after, hashes = np.zeros((5, room), np.int64)
    seen = np.zeros((table, 2), np.int64)
    return Tape(kind, start, end, after, hashes, np.zeros(_MOST_DEPTH + 1, np.int64), seen, np.zeros(1, np.int64))


@inner
def _blame(fault: Ints, problem: int, at: int) -> int:
    fault[CODE] = problem
    fault[NODE] = 0
    fault[A] = at
    fault[B] = 0
    return _BAD


@inner
def _space(data: Bytes, at: int, end: int) -> int:
    while at < end and (data[at] == 32 or data[at] == 10 or data[at] == 13 or data[at] == 9):
        at += 1
    return at


@inner
def _add(tape: Tape, count: int, kind: int, start: int, end: int) -> int:
    tape.kind[count] = kind
    tape.start[count] = start
    tape.end[count] = end
    tape.after[count] = count + 1
    return count + 1


@inner
def tokens(data: Bytes, begin: int, end: int, arena: Bytes, tape: Tape, fault: Ints) -> int:
    """Fill the tape with the message between `begin` and `end`; return the count of tokens, or -1 with the fault."""
    count, depth, state = 0, 0, _VALUE
    at = _space(data, begin, end)
    if at >= end:
        return _blame(fault, _EMPTY, NIL)
    while True:
        at = _space(data, at, end)
        if state == _AFTER and depth == 0:
            return count if at >= end else _blame(fault, _TRAILING, end - at)
        if at >= end:
            return _blame(fault, _SYNTAX, at - begin)
        byte = data[at]
        if byte == 125 or byte == 93:
            inside = tape.kind[tape.open[depth - 1]] if depth else 0
            first = _FIRST_NAME if byte == 125 else _FIRST_VALUE
            if inside != (OBJECT if byte == 125 else ARRAY) or (state != _AFTER and state != first):
                return _blame(fault, _SYNTAX, at - begin)
            depth -= 1
            at += 1
            closed = tape.open[depth]
            tape.after[closed] = count
            tape.end[closed] = at
            if byte == 125:
                twice = _duplicate(arena, closed, count, tape)
                if twice >= 0:
                    return _blame(fault, _DUPLICATE, (tape.start[twice] % len(data)) - 1 - begin)
            state = _AFTER
        elif state == _AFTER:
            if byte != _COMMA:
                return _blame(fault, _SYNTAX, at - begin)
            at += 1
            state = _NAME if tape.kind[tape.open[depth - 1]] == OBJECT else _VALUE
        elif state in (_NAME, _FIRST_NAME):
            if byte != _QUOTE:
                return _blame(fault, _SYNTAX, at - begin)
            at = _string(data, begin, at + 1, end, arena, tape, count, KEY, fault)
            if at < 0:
                return _BAD
            tape.hash[count] = text_hash(arena, tape.start[count], tape.end[count])
            count += 1
            at = _space(data, at, end)
            if at >= end or data[at] != _COLON:
                return _blame(fault, _SYNTAX, at - begin)
            at += 1
            state = _VALUE
        elif byte == 123 or byte == 91:
            if depth >= _MOST_DEPTH:
                fault[A] = _MOST_DEPTH
                fault[CODE] = _DEPTH
                return _BAD
            tape.open[depth] = count
            depth += 1
            count = _add(tape, count, OBJECT if byte == 123 else ARRAY, at, at)
            at += 1
            state = _FIRST_NAME if byte == 123 else _FIRST_VALUE
        else:
            at = _scalar(data, begin, at, end, arena, tape, count, fault)
            if at < 0:
                return _BAD
            count += 1
            state = _AFTER


@inner
def _scalar(data: Bytes, begin: int, at: int, end: int, arena: Bytes, tape: Tape, count: int, fault: Ints) -> int:
    byte = data[at]
    if byte == _QUOTE:
        return _string(data, begin, at + 1, end, arena, tape, count, STRING, fault)
    kind, length = 0, 4
    if end - at >= 4 and byte == 116 and data[at + 1] == 114 and data[at + 2] == 117 and data[at + 3] == 101:
        kind = TRUE
    elif end - at >= 4 and byte == 110 and data[at + 1] == 117 and data[at + 2] == 108 and data[at + 3] == 108:
        kind = NULL
    elif end - at >= 5 and byte == 102 and data[at + 1] == 97 and data[at + 2] == 108 and data[at + 3] == 115:
        kind, length = (FALSE if data[at + 4] == 101 else 0), 5
    else:
        stop = is_number(data, at, end)
        if stop >= 0:
            kind, length = NUMBER, stop - at
    if kind == 0:
        return _blame(fault, _SYNTAX, at - begin)
    _add(tape, count, kind, at, at + length)
    return at + length


@inner
def _string(
    data: Bytes, begin: int, at: int, end: int, arena: Bytes, tape: Tape, count: int, kind: int, fault: Ints
) -> int:
    """Add the text that begins at `at`, behind its quote; return the place after the other quote."""
    stop, escaped = at, False
    while stop < end and data[stop] != _QUOTE:
        if data[stop] < 32:
            return _blame(fault, _CONTROL, stop - begin)
        if data[stop] == _BACKSLASH:
            escaped = True
            stop += 1
        stop += 1
    if stop >= end:
        return _blame(fault, _SYNTAX, end - begin)
    wrong = invalid_utf8(data, at, stop)
    if wrong >= 0:
        return _blame(fault, _UTF8, wrong - begin)
    if not escaped:
        _add(tape, count, kind, at, stop)
        return stop + 1
    to = len(data) + at
    length = _unescaped(data, at, stop, arena, to)
    if length < 0:
        return _blame(fault, _ESCAPE, -1 - length - begin)
    _add(tape, count, kind, to, to + length)
    return stop + 1


@inner
def _unescaped(data: Bytes, at: int, end: int, arena: Bytes, to: int) -> int:
    """Write text without its escapes; return its length, or ``-1 - place`` of an escape that cannot be."""
    start = to
    while at < end:
        if data[at] != _BACKSLASH:
            arena[to] = data[at]
            at, to = at + 1, to + 1
            continue
        letter = data[at + 1]
        plain = _plain_escape(letter)
        if plain >= 0:
            arena[to] = plain
            at, to = at + 2, to + 1
            continue
        code = _hex4(data, at + 2, end) if letter == 117 else -1
        wide = 6
        if code >= 0xD800 and code <= 0xDBFF and at + 12 <= end and data[at + 6] == _BACKSLASH and data[at + 7] == 117:
            low = _hex4(data, at + 8, end)
            if low >= 0xDC00 and low <= 0xDFFF:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                wide = 12
        if code < 0 or (code >= 0xD800 and code <= 0xDFFF):
            return -1 - at
        to = _put_utf8(arena, to, code)
        at += wide
    return to - start


@inner
def _plain_escape(letter: int) -> int:
    if letter == 110:
        return 10
    if letter == 116:
        return 9
    if letter == 114:
        return 13
    if letter == 98:
        return 8
    if letter == 102:
        return 12
    return letter if letter in (_QUOTE, _BACKSLASH) or letter == 47 else -1


@inner
def _hex4(data: Bytes, at: int, end: int) -> int:
    if at + 4 > end:
        return -1
    code = 0
    for index in range(at, at + 4):
        byte = np.int64(data[index])
        low = byte | 32
        if byte >= 48 and byte <= 57:
            code = code * 16 + byte - 48
        elif low >= 97 and low <= 102:
            code = code * 16 + low - 87
        else:
            return -1
    return code


@inner
def _put_utf8(arena: Bytes, to: int, code: int) -> int:
    if code < 0x80:
        arena[to] = code
        return to + 1
    if code < 0x800:
        arena[to] = 0xC0 | (code >> 6)
        arena[to + 1] = 0x80 | (code & 63)
        return to + 2
    if code < 0x10000:
        arena[to] = 0xE0 | (code >> 12)
        arena[to + 1] = 0x80 | ((code >> 6) & 63)
        arena[to + 2] = 0x80 | (code & 63)
        return to + 3
    arena[to] = 0xF0 | (code >> 18)
    arena[to + 1] = 0x80 | ((code >> 12) & 63)
    arena[to + 2] = 0x80 | ((code >> 6) & 63)
    arena[to + 3] = 0x80 | (code & 63)
    return to + 4


@compiled
def text_hash(data: Bytes, at: int, end: int) -> int:
    """Hash text (FNV-1a)."""
    result = _FNV_START
    for index in range(at, end):
        result = (result ^ np.uint64(data[index])) * _FNV_PRIME
    return np.int64(result)


@inner
def same_text(one: Bytes, at: int, end: int, other: Bytes, place: int, size: int) -> bool:
    """Compare text byte by byte."""
    if end - at != size:
        return False
    index = 0
    while index < size and one[at + index] == other[place + index]:
        index += 1
    return index == size


@inner
def _duplicate(arena: Bytes, closed: int, count: int, tape: Tape) -> int:
    """Return a key that an object has a second time, or -1."""
    tape.stamp[0] += 1
    mask = len(tape.seen) - 1
    key = closed + 1
    while key < count:
        row = (tape.hash[key] ^ (tape.hash[key] >> 32)) & mask
        while tape.seen[row, 0] == tape.stamp[0]:
            other = tape.seen[row, 1]
            size = tape.end[other] - tape.start[other]
            if same_text(arena, tape.start[key], tape.end[key], arena, tape.start[other], size):
                return key
            row = (row + 1) & mask
        tape.seen[row, 0] = tape.stamp[0]
        tape.seen[row, 1] = key
        key = tape.after[key + 1]
    return -1
