"""Bytes of one column, copied from where spans point.

A span is a place and a size. A place of 0 or more lies in the messages, a negative one in the constants of the plan
(at ``-1 - place``). A negative size says that the place is a number, whose text has that many characters: this is how
a number of an enumeration is told that has no name.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.sink import Bytes, Ints, compiled, inner

__all__ = ["digits", "gathered"]


@compiled
def gathered(place: Ints, size: Ints, data: Bytes, constants: Bytes) -> Bytes:
    """Return the bytes of all spans, one after the other."""
    result = np.empty(np.abs(size).sum(), np.uint8)
    at = 0
    for index in range(len(place)):
        begin, length = place[index], size[index]
        if length < 0:
            _print(begin, -length, result, at)
            length = -length
        elif begin >= 0:
            result[at : at + length] = data[begin : begin + length]
        else:
            result[at : at + length] = constants[-1 - begin : -1 - begin + length]
        at += length
    return result


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
def _print(number: int, length: int, result: Bytes, at: int) -> None:
    rest = abs(number)
    for index in range(at + length - 1, at - 1, -1):
        result[index] = 48 + rest % 10
        rest //= 10
    if number < 0:
        result[at] = 45
