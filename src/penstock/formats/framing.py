"""The five bytes that registries' serialisers put before a message: a zero, and the schema id.

Behind them Protobuf has the place of the message in its file: a count and that many indexes, as zigzag numbers; a
single zero stands for the first message.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.problems import CODE, A, Faults, Problem
from penstock.formats.sink import Bytes, Ints, compiled
from penstock.formats.wire import signed, varint

__all__ = ["INDEX_BITS", "read_ids", "read_indexes"]

INDEX_BITS = 15
"""A place in a file is packed into one number: up to four indexes, outermost last, and one more than each."""

_FINE = np.int64(Problem.FINE)
_UNFRAMED = np.int64(Problem.UNFRAMED)
_MAGIC = np.int64(Problem.MAGIC)
_MESSAGE_INDEX = np.int64(Problem.MESSAGE_INDEX)
_MOST_INDEXES = 4


@compiled
def read_ids(data: Bytes, start: Ints, end: Ints, faults: Faults) -> Ints:
    """Return the schema id of each message (-1 where there is none), and move `start` behind it."""
    ids = np.full(len(start), -1, np.int64)
    for index in range(len(start)):
        if faults[index, CODE] != _FINE:
            continue
        at = start[index]
        if end[index] - at < 5:
            faults[index, CODE] = _UNFRAMED
        elif data[at] != 0:
            faults[index, CODE] = _MAGIC
            faults[index, A] = data[at]
        else:
            number = np.int64(0)
            for place in range(at + 1, at + 5):
                number = number << 8 | np.int64(data[place])
            ids[index] = number
            start[index] = at + 5
    return ids


@compiled
def read_indexes(data: Bytes, start: Ints, end: Ints, faults: Faults) -> Ints:
    """Return the place of each message in its file, packed, and move `start` behind it."""
    places = np.full(len(start), -1, np.int64)
    for index in range(len(start)):
        if faults[index, CODE] != _FINE:
            continue
        at, packed = start[index], np.int64(0)
        raw, at = varint(data, at, end[index])
        count = signed(raw)
        if at < 0 or count < 0 or count > _MOST_INDEXES:
            faults[index, CODE] = _MESSAGE_INDEX
            continue
        for _ in range(count):
            raw, at = varint(data, at, end[index])
            step = signed(raw)
            if at < 0 or step < 0 or step >= (1 << INDEX_BITS) - 1:
                at = -1
                break
            packed = packed << INDEX_BITS | (step + 1)
        if at < 0:
            faults[index, CODE] = _MESSAGE_INDEX
            continue
        places[index] = packed if count else 1
        start[index] = at
    return places
