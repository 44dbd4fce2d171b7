"""Bytes of one column, copied from where spans point.

A span is an address and a size: in a message, among the constants of a plan, or in what a kernel wrote. A negative size
says that the first number is one to be printed, with that many characters: this is how a number of an enumeration is
told that has no name.
"""

from __future__ import annotations

from penstock.formats.compiling import Ints, compiled, inner
from penstock.formats.memory import byte, copy, half, set_byte, set_half, set_word, word

__all__ = ["digits", "gathered", "total_size"]


@compiled
def total_size(size: Ints) -> int:
    """Return how many bytes all spans have."""
    total = 0
    for index in range(len(size)):
        total += abs(size[index])
    return total


@compiled
def gathered(place: Ints, size: Ints, offsets: int, data: int) -> None:
    """Copy all spans, one after the other, to `data`; where each begins, in 32 bits, to `offsets`."""
    at = data
    for index in range(len(place)):
        set_half(offsets + (index << 2), at - data)
        begin, length = place[index], size[index]
        if length < 0:
            _print(begin, -length, at)
            at -= length
        else:
            _copied(at, begin, length)
            at += length
    set_half(offsets + (len(place) << 2), at - data)


@inner
def _copied(to: int, begin: int, length: int) -> None:
    """Copy a span: most are short, and cost less than the call of a function would."""
    if length > 32:
        copy(to, begin, length)
    elif length >= 8:
        last = length - 8
        for done in range(0, last, 8):
            set_word(to + done, word(begin + done))
        set_word(to + last, word(begin + last))
    elif length >= 4:
        ending = half(begin + length - 4)
        set_half(to, half(begin))
        set_half(to + length - 4, ending)
    else:
        for done in range(length):
            set_byte(to + done, byte(begin + done))


@inner
def digits(number: int) -> int:
    """Count the characters of a number's text."""
    count = 1 if number >= 0 else 2
    number = abs(number)
    while number >= 10:
        number //= 10
        count += 1
    return count


@inner
def _print(number: int, length: int, to: int) -> None:
    rest = abs(number)
    for place in range(to + length - 1, to - 1, -1):
        set_byte(place, 48 + rest % 10)
        rest //= 10
    if number < 0:
        set_byte(to, 45)
