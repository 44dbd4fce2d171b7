"""The five bytes that registries' serialisers put before a message: a zero, and the schema id.

Behind them Protobuf has the place of the message in its file: a count and that many indexes, as zigzag numbers; a
single zero stands for the first message.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.compiling import NIL, Ints, compiled, constant, inner
from penstock.formats.faults import blame, fault_of, is_fine
from penstock.formats.memory import byte
from penstock.formats.problems import Problem
from penstock.formats.wire import signed, varint

__all__ = ["INDEX_BITS", "read_ids", "read_indexes"]

INDEX_BITS = 15
"""A place in a file is packed into one number: up to four indexes, outermost last, and one more than each."""

_UNFRAMED = constant(Problem.UNFRAMED)
_MAGIC = constant(Problem.MAGIC)
_MESSAGE_INDEX = constant(Problem.MESSAGE_INDEX)
_MOST_INDEXES = 4
_NONE = constant(-1)


@compiled
def read_ids(start: Ints, end: Ints, faults: int) -> Ints:
    """Return the schema id of each message (-1 where there is none), and move `start` behind it."""
    ids = np.full(len(start), -1, np.int64)
    for index in range(len(start)):
        fault, at = fault_of(faults, index), start[index]
        if not is_fine(fault):
            continue
        if end[index] - at < 5:
            blame(fault, _UNFRAMED, NIL, NIL, NIL)
        elif byte(at) != 0:
            blame(fault, _MAGIC, NIL, byte(at), NIL)
        else:
            ids[index] = byte(at + 1) << 24 | byte(at + 2) << 16 | byte(at + 3) << 8 | byte(at + 4)
            start[index] = at + 5
    return ids


@compiled
def read_indexes(start: Ints, end: Ints, faults: int) -> Ints:
    """Return the place of each message in its file, packed, and move `start` behind it."""
    places = np.full(len(start), -1, np.int64)
    for index in range(len(start)):
        fault = fault_of(faults, index)
        if not is_fine(fault):
            continue
        place, after = _packed(start[index], end[index])
        if after < 0:
            blame(fault, _MESSAGE_INDEX, NIL, NIL, NIL)
        else:
            places[index], start[index] = place, after
    return places


@inner
def _packed(at: int, end: int) -> tuple[int, int]:
    raw, at = varint(at, end)
    count, packed = signed(raw), np.int64(0)
    if at < 0 or count < 0 or count > _MOST_INDEXES:
        return packed, _NONE
    for _ in range(count):
        raw, at = varint(at, end)
        step = signed(raw)
        if at < 0 or step < 0 or step >= (1 << INDEX_BITS) - 1:
            return packed, _NONE
        packed = packed << INDEX_BITS | (step + 1)
    return (packed if count else np.int64(1)), at
