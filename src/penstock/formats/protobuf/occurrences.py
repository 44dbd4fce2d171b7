"""Where the fields of a message are: each occurrence, chained to the slot of its field.

::

    slot of a field     first, last ──┐
    occurrences         place, number, next ─▶ place, number, next ─▶ ...

What a message needs lies behind what the messages around it need, and is given up when it ends: a kernel hands on two
addresses, that of the first free slot and that of the first free occurrence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.memory import WORD, address, set_word, word
from penstock.formats.protobuf.ops import MOST_DEPTH

__all__ = [
    "NEXT",
    "NUMBER",
    "OCCURRENCE",
    "PLACE",
    "SLOT",
    "WIRE",
    "Room",
    "Scratch",
    "alone",
    "chain",
    "first_of",
    "last_of",
]

SLOT = 16
"""How many bytes the slot of a field has: those of its first and its last occurrence."""
OCCURRENCE = 32
"""How many bytes an occurrence has: those of the numbers below."""
PLACE, NUMBER, NEXT, WIRE = (constant(place) for place in range(0, OCCURRENCE, WORD))
"""Where its value is; the value itself or, where that is bytes, how many; the next occurrence (0: none); wire type."""


class Scratch(NamedTuple):
    """Room for the messages that are open, by address."""

    slots: int
    occurrences: int
    groups: int
    """The numbers of the groups that are open."""


class Room:
    """Memory for messages of so many bytes, nested so deep, with so many fields at all levels together."""

    def __init__(self, longest: int, deepest: int, widest: int) -> None:
        self._slots = np.empty((widest + 1, SLOT // WORD), np.int64)
        # An occurrence takes two bytes at least; each level has some of its own, and one around itself.
        self._occurrences = np.empty(((longest // 2 + 4) * (deepest + 1), OCCURRENCE // WORD), np.int64)
        self._groups = np.empty(MOST_DEPTH, np.int64)
        self.scratch = Scratch(address(self._slots), address(self._occurrences), address(self._groups))


@inner
def first_of(slot: int) -> int:
    """Return the first occurrence of a field, or 0."""
    return word(slot)


@inner
def last_of(slot: int) -> int:
    """Return the last occurrence of a field that has one."""
    return word(slot + WORD)


@inner
def chain(slot: int, free: int) -> None:
    """Add the occurrence at `free` to a slot."""
    set_word(free + NEXT, NIL)
    if word(slot) == 0:
        set_word(slot, free)
    else:
        set_word(word(slot + WORD) + NEXT, free)
    set_word(slot + WORD, free)


@inner
def alone(place: int, size: int, free: int) -> int:
    """Make an occurrence that is in no chain; return the place behind it."""
    set_word(free + PLACE, place)
    set_word(free + NUMBER, size)
    set_word(free + NEXT, NIL)
    return free + OCCURRENCE
