"""TEXT and BYTES: a message is one value."""

from __future__ import annotations

from penstock.formats.compiling import NIL, Ints, compiled, constant
from penstock.formats.faults import blame, fault_of, is_fine, settled
from penstock.formats.problems import Problem
from penstock.formats.sink import Sink, put_there, put_two
from penstock.formats.wire import invalid_utf8

__all__ = ["walk_all"]

_UTF8 = constant(Problem.UTF8)
_ROW, _VALUE = constant(0), constant(1)


@compiled
def walk_all(first: int, start: Ints, end: Ints, is_text: bool, sink: Sink, faults: int) -> int:
    """Put every message as it is; of text, note where it is not UTF-8."""
    for index in range(first, len(start)):
        fault = fault_of(faults, index)
        if is_text and is_fine(fault):
            wrong = invalid_utf8(start[index], end[index])
            if wrong >= 0:
                blame(fault, _UTF8, NIL, wrong, NIL)
        fine = is_fine(fault)
        if fine:
            put_there(sink, _ROW)
            put_two(sink, _VALUE, start[index], end[index] - start[index])
        if not settled(fine, fault, start[index], sink):
            return index
    return len(start)
