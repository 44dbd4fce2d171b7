"""Protobuf's wire format: tags, values by wire type, and the occurrences of each field in a message.

All occurrences of a field are chained from its slot::

    slot of a field     first, last ──┐
    occurrences         place, number, next ─▶ place, number, next ─▶ ...

A nested message uses the memory after that of the messages around it, and releases it when it ends: a kernel passes on
two addresses, of the first free slot and of the first free occurrence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.formats.binary_values import ENDED, varint
from penstock.formats.decode_errors import FAILED, ErrorCode, set_error
from penstock.formats.jit import NIL, constant, inner
from penstock.formats.memory import WORD, address, half, set_word, word
from penstock.formats.protobuf.ops import EGROUP, I32, I64, LEN, MAX_DEPTH, SGROUP, VARINT

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
    "is_well_formed",
    "last_occurrence",
    "tag_at",
    "value_at",
]

_TRUNCATED = constant(ErrorCode.TRUNCATED)
_OVERLONG = constant(ErrorCode.OVERLONG)
_LENGTH = constant(ErrorCode.LENGTH)
_DEPTH = constant(ErrorCode.DEPTH)
_FIELD_NUMBER = constant(ErrorCode.FIELD_NUMBER)
_GROUP = constant(ErrorCode.GROUP)
_MAX_NUMBER = (1 << 29) - 1
_MAX_DEPTH = constant(MAX_DEPTH)


@inner
def _number_at(at: int, end: int, node: int, error: int) -> tuple[int, int]:
    """Read a varint; return `FAILED` as the address after it if there is none."""
    number, after = varint(at, end)
    if after < 0:
        code = _TRUNCATED if after == ENDED else _OVERLONG
        return number, set_error(error, code, node, end if after == ENDED else at, NIL)
    return number, after


@inner
def tag_at(at: int, end: int, node: int, error: int) -> tuple[int, int]:
    """Read a tag: a field number and a wire type."""
    tag, after = _number_at(at, end, node, error)
    if after >= 0 and (tag < 8 or tag >> 3 > _MAX_NUMBER):
        after = set_error(error, _FIELD_NUMBER, node, at, NIL)
    return tag, after


@inner
def value_at(at: int, end: int, tag: int, node: int, groups: int, error: int) -> tuple[int, int, int]:
    """Read a value by its wire type: the number (for bytes, their size), its address, and the address after it."""
    wire = tag & 7
    if wire == VARINT:
        number, after = _number_at(at, end, node, error)
        return number, at, after
    if wire == LEN:
        length, after = _number_at(at, end, node, error)
        if after < 0:
            return length, at, FAILED
        if length < 0 or length > end - after:
            return length, at, set_error(error, _LENGTH, node, length, end - after)
        return length, after, after + length
    if wire in (I64, I32):
        width = 8 if wire == I64 else 4
        if end - at < width:
            return NIL, at, set_error(error, _TRUNCATED, node, end, NIL)
        return (word(at) if wire == I64 else half(at)), at, at + width
    return NIL, at, _group_end(at, end, tag, node, groups, error)


@inner
def _group_end(at: int, end: int, tag: int, node: int, groups: int, error: int) -> int:
    """Return the address after a group and all fields within it."""
    depth = 0
    while True:
        wire, number = tag & 7, tag >> 3
        if wire == VARINT:
            _, at = _number_at(at, end, node, error)
        elif wire == LEN:
            length, at = _number_at(at, end, node, error)
            if at >= 0:
                if length < 0 or length > end - at:
                    return set_error(error, _LENGTH, node, length, end - at)
                at += length
        elif wire in (I64, I32):
            width = 8 if wire == I64 else 4
            at = at + width if end - at >= width else set_error(error, _TRUNCATED, node, end, NIL)
        elif wire == SGROUP:
            if depth == MAX_DEPTH:
                return set_error(error, _DEPTH, node, _MAX_DEPTH, NIL)
            set_word(groups + WORD * depth, number)
            depth += 1
        elif wire == EGROUP:
            if depth == 0 or word(groups + WORD * (depth - 1)) != number:
                return set_error(error, _GROUP, node, at, NIL)
            depth -= 1
        else:
            return set_error(error, _FIELD_NUMBER, node, at, NIL)
        if at < 0 or depth == 0:
            return at
        tag, at = _number_at(at, end, node, error)
        if at < 0:
            return set_error(error, _GROUP, node, end, NIL)


@inner
def is_well_formed(at: int, end: int, node: int, groups: int, error: int) -> bool:
    """Return whether a message whose content is not needed is well-formed."""
    while at >= 0 and at < end:
        tag, at = tag_at(at, end, node, error)
        if at >= 0:
            _, _, at = value_at(at, end, tag, node, groups, error)
    return at >= 0


# -- occurrences -------------------------------------------------------------------------------------------------------

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
