"""The header that schema registry serializers put before a message: a zero byte, and the schema id in four bytes.

For Protobuf, the index of the message type in its file follows: a count, and that many indexes, as zigzag varints. A
single zero denotes the first message of the file.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.binary_values import signed, varint
from penstock.formats.decode_errors import ErrorCode, error_record, is_ok, set_error
from penstock.formats.jit import NIL, Ints, compiled, constant, inner
from penstock.formats.memory import byte

__all__ = ["INDEX_BITS", "read_ids", "read_indexes"]

INDEX_BITS = 15
"""A message index is packed into one integer: up to four indexes, the outermost in the highest bits, each plus one."""

_UNFRAMED = constant(ErrorCode.UNFRAMED)
_MAGIC = constant(ErrorCode.MAGIC)
_MESSAGE_INDEX = constant(ErrorCode.MESSAGE_INDEX)
_MAX_INDEXES = 4
_NONE = constant(-1)


@compiled
def read_ids(start: Ints, end: Ints, errors: int) -> Ints:
    """Return the schema id of each message (-1: none), and advance `start` past it."""
    ids = np.full(len(start), -1, np.int64)
    for index in range(len(start)):
        error, at = error_record(errors, index), start[index]
        if not is_ok(error):
            continue
        if end[index] - at < 5:
            set_error(error, _UNFRAMED, NIL, NIL, NIL)
        elif byte(at) != 0:
            set_error(error, _MAGIC, NIL, byte(at), NIL)
        else:
            ids[index] = byte(at + 1) << 24 | byte(at + 2) << 16 | byte(at + 3) << 8 | byte(at + 4)
            start[index] = at + 5
    return ids


@compiled
def read_indexes(start: Ints, end: Ints, errors: int) -> Ints:
    """Return the packed message index of each message, and advance `start` past it."""
    places = np.full(len(start), -1, np.int64)
    for index in range(len(start)):
        error = error_record(errors, index)
        if not is_ok(error):
            continue
        place, after = _packed(start[index], end[index])
        if after < 0:
            set_error(error, _MESSAGE_INDEX, NIL, NIL, NIL)
        else:
            places[index], start[index] = place, after
    return places


@inner
def _packed(at: int, end: int) -> tuple[int, int]:
    raw, at = varint(at, end)
    count, packed = signed(raw), np.int64(0)
    if at < 0 or count < 0 or count > _MAX_INDEXES:
        return packed, _NONE
    for _ in range(count):
        raw, at = varint(at, end)
        step = signed(raw)
        if at < 0 or step < 0 or step >= (1 << INDEX_BITS) - 1:
            return packed, _NONE
        packed = packed << INDEX_BITS | (step + 1)
    return (packed if count else np.int64(1)), at
