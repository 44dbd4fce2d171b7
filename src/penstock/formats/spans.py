"""Copy the bytes that the spans of a column point to.

A span is an address and a size: in a message, in the constants of a plan, or in memory that a kernel wrote. A negative
size means that the first number is an integer to be printed with that many characters: this is how an enum number
without a name is represented.
"""

from __future__ import annotations

from penstock.formats.jit import Ints, compiled, inner
from penstock.formats.memory import byte, copy, half, set_byte, set_half, set_word, word

__all__ = ["copy_spans", "digit_count", "total_size"]


@compiled
def total_size(size: Ints) -> int:
    """Return the total size of all spans, in bytes."""
    total = 0
    for index in range(len(size)):
        total += abs(size[index])
    return total


@compiled
def copy_spans(place: Ints, size: Ints, offsets: int, data: int) -> None:
    """Copy all spans, one after the other, to `data`; write the 32-bit offset of each to `offsets`."""
    at = data
    for index in range(len(place)):
        set_half(offsets + (index << 2), at - data)
        begin, length = place[index], size[index]
        if length < 0:
            _print_number(begin, -length, at)
            at -= length
        else:
            _copy_span(at, begin, length)
            at += length
    set_half(offsets + (len(place) << 2), at - data)


@inner
def _copy_span(to: int, begin: int, length: int) -> None:
    """Copy a span: most are short, and copying them inline is cheaper than a function call."""
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
def digit_count(number: int) -> int:
    """Count the characters of an integer's decimal text."""
    count = 1 if number >= 0 else 2
    number = abs(number)
    while number >= 10:
        number //= 10
        count += 1
    return count


@inner
def _print_number(number: int, length: int, to: int) -> None:
    rest = abs(number)
    for place in range(to + length - 1, to - 1, -1):
        set_byte(place, 48 + rest % 10)
        rest //= 10
    if number < 0:
        set_byte(to, 45)
