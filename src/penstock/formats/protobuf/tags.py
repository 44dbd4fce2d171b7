"""Protobuf's wire format: tags, and values of which only the wire type is known."""

from __future__ import annotations

from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.faults import BAD, blame
from penstock.formats.memory import WORD, half, set_word, word
from penstock.formats.problems import Problem
from penstock.formats.protobuf.ops import BEGIN, EIGHT, END, FOUR, MOST_DEPTH, SIZED, VARINT
from penstock.formats.wire import ENDED, varint

__all__ = ["number_at", "tag_at", "value_at", "well_formed"]

_TRUNCATED = constant(Problem.TRUNCATED)
_OVERLONG = constant(Problem.OVERLONG)
_LENGTH = constant(Problem.LENGTH)
_DEPTH = constant(Problem.DEPTH)
_FIELD_NUMBER = constant(Problem.FIELD_NUMBER)
_GROUP = constant(Problem.GROUP)
_MOST_NUMBER = (1 << 29) - 1
_MOST_DEPTH = constant(MOST_DEPTH)


@inner
def number_at(at: int, end: int, node: int, fault: int) -> tuple[int, int]:
    """Read a varint; the place after it is `BAD` if there is none."""
    number, after = varint(at, end)
    if after < 0:
        problem = _TRUNCATED if after == ENDED else _OVERLONG
        return number, blame(fault, problem, node, end if after == ENDED else at, NIL)
    return number, after


@inner
def tag_at(at: int, end: int, node: int, fault: int) -> tuple[int, int]:
    """Read a tag: a field's number and wire type."""
    tag, after = number_at(at, end, node, fault)
    if after >= 0 and (tag < 8 or tag >> 3 > _MOST_NUMBER):
        after = blame(fault, _FIELD_NUMBER, node, at, NIL)
    return tag, after


@inner
def value_at(at: int, end: int, tag: int, node: int, groups: int, fault: int) -> tuple[int, int, int]:
    """Read a value by its wire type: the number (of bytes, how many), its place, and the place after it."""
    wire = tag & 7
    if wire == VARINT:
        number, after = number_at(at, end, node, fault)
        return number, at, after
    if wire == SIZED:
        length, after = number_at(at, end, node, fault)
        if after < 0:
            return length, at, BAD
        if length < 0 or length > end - after:
            return length, at, blame(fault, _LENGTH, node, length, end - after)
        return length, after, after + length
    if wire in (EIGHT, FOUR):
        width = 8 if wire == EIGHT else 4
        if end - at < width:
            return NIL, at, blame(fault, _TRUNCATED, node, end, NIL)
        return (word(at) if wire == EIGHT else half(at)), at, at + width
    return NIL, at, _group_end(at, end, tag, node, groups, fault)


@inner
def _group_end(at: int, end: int, tag: int, node: int, groups: int, fault: int) -> int:
    """Return the place after a group, and all that is within it."""
    depth = 0
    while True:
        wire, number = tag & 7, tag >> 3
        if wire == VARINT:
            _, at = number_at(at, end, node, fault)
        elif wire == SIZED:
            length, at = number_at(at, end, node, fault)
            if at >= 0:
                if length < 0 or length > end - at:
                    return blame(fault, _LENGTH, node, length, end - at)
                at += length
        elif wire in (EIGHT, FOUR):
            width = 8 if wire == EIGHT else 4
            at = at + width if end - at >= width else blame(fault, _TRUNCATED, node, end, NIL)
        elif wire == BEGIN:
            if depth == MOST_DEPTH:
                return blame(fault, _DEPTH, node, _MOST_DEPTH, NIL)
            set_word(groups + WORD * depth, number)
            depth += 1
        elif wire == END:
            if depth == 0 or word(groups + WORD * (depth - 1)) != number:
                return blame(fault, _GROUP, node, at, NIL)
            depth -= 1
        else:
            return blame(fault, _FIELD_NUMBER, node, at, NIL)
        if at < 0 or depth == 0:
            return at
        tag, at = number_at(at, end, node, fault)
        if at < 0:
            return blame(fault, _GROUP, node, end, NIL)


@inner
def well_formed(at: int, end: int, node: int, groups: int, fault: int) -> bool:
    """Say whether a message of which nothing is wanted is one."""
    while at >= 0 and at < end:
        tag, at = tag_at(at, end, node, fault)
        if at >= 0:
            _, _, at = value_at(at, end, tag, node, groups, fault)
    return at >= 0
