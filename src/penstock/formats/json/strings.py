"""Strings in JSON messages: find their end, decode escapes, hash and compare.

Strings are scanned eight bytes at a time. A byte is *special* if it is a quote, a backslash, a control character or not
ASCII; one subtraction on all eight bytes sets a bit at each special byte. A borrow can set bits above such a byte,
never below it, so the lowest bit is always correct.
"""

from __future__ import annotations

from penstock.formats.binary_values import invalid_utf8
from penstock.formats.decode_errors import FAILED, ErrorCode, set_error
from penstock.formats.jit import NIL, compiled, constant, inner
from penstock.formats.memory import byte, low_zeros, set_byte, word

__all__ = ["same_text", "string_end", "text_hash", "unescape"]

_SYNTAX = constant(ErrorCode.SYNTAX)
_UTF8 = constant(ErrorCode.UTF8)
_ESCAPE = constant(ErrorCode.ESCAPE)
_CONTROL = constant(ErrorCode.CONTROL)

_QUOTE, _BACKSLASH = 34, 92
_EACH = constant(0x0101010101010101)
_HIGH = constant(-0x7F7F7F7F7F7F7F80)
_QUOTES, _BACKSLASHES, _SPACES = constant(_EACH * 34), constant(_EACH * 92), constant(_EACH * 32)
_HASH_START = constant(-3750763034362895579)
_HASH_PRIME = constant(1099511628211)


@inner
def string_end(at: int, end: int, error: int) -> tuple[int, bool]:
    """Return the closing quote of a string that begins at `at`, or -1 with the error set; and if it has escapes."""
    stop, escaped, ascii_only = at, False, True
    while stop < end:
        if end - stop >= 8:
            found = _special(word(stop))
            if found == 0:
                stop += 8
                continue
            stop += low_zeros(found) >> 3
        character = byte(stop)
        if character == _QUOTE:
            wrong = FAILED if ascii_only and not escaped else invalid_utf8(at, stop)
            return (stop if wrong < 0 else set_error(error, _UTF8, NIL, wrong, NIL)), escaped
        if character < 32:
            return set_error(error, _CONTROL, NIL, stop, NIL), escaped
        if character == _BACKSLASH:
            escaped = True
            stop += 1
        elif character >= 128:
            ascii_only = False
        stop += 1
    return set_error(error, _SYNTAX, NIL, end, NIL), escaped


@inner
def _special(eight: int) -> int:
    """Set the highest bit of each special byte."""
    quote, backslash = eight ^ _QUOTES, eight ^ _BACKSLASHES
    low = ((quote - _EACH) & ~quote) | ((backslash - _EACH) & ~backslash) | ((eight - _SPACES) & ~eight)
    return (low | eight) & _HIGH


@inner
def unescape(at: int, end: int, to: int, error: int) -> int:
    """Write a string with its escapes decoded; return the end of the output, or -1 with the error set."""
    while at < end:
        if byte(at) != _BACKSLASH:
            set_byte(to, byte(at))
            at, to = at + 1, to + 1
            continue
        letter = byte(at + 1)
        plain = _plain_escape(letter)
        if plain >= 0:
            set_byte(to, plain)
            at, to = at + 2, to + 1
            continue
        code = _hex4(at + 2, end) if letter == 117 else FAILED
        wide = 6
        if code >= 0xD800 and code <= 0xDBFF and at + 12 <= end and byte(at + 6) == _BACKSLASH and byte(at + 7) == 117:
            low = _hex4(at + 8, end)
            if low >= 0xDC00 and low <= 0xDFFF:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                wide = 12
        if code < 0 or (code >= 0xD800 and code <= 0xDFFF):
            return set_error(error, _ESCAPE, NIL, at, NIL)
        to = _put_utf8(to, code)
        at += wide
    return to


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
def _hex4(at: int, end: int) -> int:
    if at + 4 > end:
        return -1
    code = NIL
    for place in range(at, at + 4):
        digit = byte(place)
        low = digit | 32
        if digit >= 48 and digit <= 57:
            code = code * 16 + digit - 48
        elif low >= 97 and low <= 102:
            code = code * 16 + low - 87
        else:
            return -1
    return code


@inner
def _put_utf8(to: int, code: int) -> int:
    if code < 0x80:
        set_byte(to, code)
        return to + 1
    if code < 0x800:
        set_byte(to, 0xC0 | (code >> 6))
        set_byte(to + 1, 0x80 | (code & 63))
        return to + 2
    if code < 0x10000:
        set_byte(to, 0xE0 | (code >> 12))
        set_byte(to + 1, 0x80 | ((code >> 6) & 63))
        set_byte(to + 2, 0x80 | (code & 63))
        return to + 3
    set_byte(to, 0xF0 | (code >> 18))
    set_byte(to + 1, 0x80 | ((code >> 12) & 63))
    set_byte(to + 2, 0x80 | ((code >> 6) & 63))
    set_byte(to + 3, 0x80 | (code & 63))
    return to + 4


@compiled
def text_hash(at: int, end: int) -> int:
    """Hash text similar to FNV-1a, eight bytes at a time."""
    result = _HASH_START
    while end - at >= 8:
        result = (result ^ word(at)) * _HASH_PRIME
        result ^= result >> 32
        at += 8
    rest = NIL
    while at < end:
        rest = rest << 8 | byte(at)
        at += 1
    result = (result ^ rest) * _HASH_PRIME
    return result ^ result >> 32


@inner
def same_text(at: int, end: int, other: int, size: int) -> bool:
    """Compare text with another of the given size."""
    if end - at != size:
        return False
    while end - at >= 8:
        if word(at) != word(other):
            return False
        at, other = at + 8, other + 8
    while at < end:
        if byte(at) != byte(other):
            return False
        at, other = at + 1, other + 1
    return True
