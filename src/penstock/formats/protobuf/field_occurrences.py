"""Index of the fields in a message: all occurrences of a field, chained from its slot.

::

    slot of a field     first, last ──┐
    occurrences         place, number, next ─▶ place, number, next ─▶ ...

A nested message uses the memory after that of the messages around it, and releases it when it ends: a kernel passes on
two addresses, of the first free slot and of the first free occurrence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import WORD, address, set_word, word
from penstock.formats.protobuf.ops import MAX_DEPTH

__all__ = [
    "NEXT",
    "NUMBER",
    "OCCURRENCE",
    "PLACE",
    "SLOT",
    "WIRE",
    "Scratch",
    "ScratchMemory",
    "add_occurrence",
    "chain",
    "first_occurrence",
    "last_occurrence",
]

SLOT = 16
"""Size of the slot of a field, in bytes: its first and its last occurrence."""
OCCURRENCE = 32
"""Size of an occurrence, in bytes: the numbers below."""
PLACE, NUMBER, NEXT, WIRE = (constant(place) for place in range(0, OCCURRENCE, WORD))
"""The address of its value; the value or, for bytes, their size; the next occurrence (0: none); the wire type."""


class Scratch(NamedTuple):
    """Memory for the open messages, by address."""

    slots: int
    occurrences: int
    groups: int
    """The field numbers of the open groups."""


class ScratchMemory:
    """Memory for messages of this size and nesting depth, with this total number of fields at all levels."""

    def __init__(self, longest: int, deepest: int, widest: int) -> None:
        self._slots = np.empty((widest + 1, SLOT // WORD), np.int64)
        # An occurrence takes at least two bytes of the message; each level has its own, and one for itself.
        self._occurrences = np.empty(((longest // 2 + 4) * (deepest + 1), OCCURRENCE // WORD), np.int64)
        self._groups = np.empty(MAX_DEPTH, np.int64)
        self.scratch = Scratch(address(self._slots), address(self._occurrences), address(self._groups))


@inner
def first_occurrence(slot: int) -> int:
    """Return the first occurrence of a field, or 0."""
    return word(slot)


@inner
def last_occurrence(slot: int) -> int:
    """Return the last occurrence of a field that has one."""
    return word(slot + WORD)


@inner
def chain(slot: int, free: int) -> None:
    """Append the occurrence at `free` to a slot."""
    set_word(free + NEXT, NIL)
    if word(slot) == 0:
        set_word(slot, free)
    else:
        set_word(word(slot + WORD) + NEXT, free)
    set_word(slot + WORD, free)


@inner
def add_occurrence(place: int, size: int, free: int) -> int:
    """Write an occurrence that is in no chain; return the address after it."""
    set_word(free + PLACE, place)
    set_word(free + NUMBER, size)
    set_word(free + NEXT, NIL)
    return free + OCCURRENCE
