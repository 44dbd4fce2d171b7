"""Faults as kernels see them: four numbers per message, by address; and how a message ends.

All kernels have the same frame. A message that has a fault already (there is none, or its schema is unknown) is not
looked at; one at which a fault is found is taken back. ::

    for index in range(first, len(start)):
        fault = fault_of(faults, index)
        fine = is_fine(fault) and ...put the message, or blame it...
        if not settled(fine, fault, start[index], sink):
            return index
"""

from __future__ import annotations

from penstock.formats.compiling import constant, inner
from penstock.formats.memory import WORD, set_word, word
from penstock.formats.problems import CODE, NODE, PLACED, A, B, Problem
from penstock.formats.sink import Sink, kept, put_null, taken_back

__all__ = ["BAD", "blame", "fault_of", "is_fine", "settled"]

BAD = constant(-1)
"""What functions return that found a fault, where others return a place."""

_FINE = constant(Problem.FINE)
_PLACED = constant(sum(1 << problem for problem in PLACED))
_CODE, _NODE, _A, _B = (constant(WORD * place) for place in (CODE, NODE, A, B))
_ROOT = constant(0)


@inner
def fault_of(faults: int, index: int) -> int:
    """Return where the fault of a message is."""
    return faults + 4 * WORD * index


@inner
def is_fine(fault: int) -> bool:
    """Say whether nothing is wrong with a message so far."""
    return word(fault + _CODE) == _FINE


@inner
def blame(fault: int, problem: int, node: int, a: int, b: int) -> int:
    """Note a fault; places in the message are addresses until the message is settled."""
    set_word(fault + _CODE, problem)
    set_word(fault + _NODE, node)
    set_word(fault + _A, a)
    set_word(fault + _B, b)
    return BAD


@inner
def settled(fine: bool, fault: int, start: int, sink: Sink) -> bool:
    """End a message that begins at `start`; False if columns had no room for it."""
    if not fine:
        code = word(fault + _CODE)
        if code > 0 and (_PLACED >> code) & 1:
            set_word(fault + _A, word(fault + _A) - start)
        taken_back(sink)
        put_null(sink, _ROOT)
    return kept(sink)
