"""TEXT and BYTES: a message is one value."""

from __future__ import annotations

import numpy as np

from penstock.formats.problems import CODE, A, Faults, Problem
from penstock.formats.sink import NIL, Bytes, Ints, Sink, compiled, put, put_null
from penstock.formats.wire import invalid_utf8

__all__ = ["walk_all"]

_FINE = np.int64(Problem.FINE)
_UTF8 = np.int64(Problem.UTF8)


@compiled
def walk_all(data: Bytes, start: Ints, end: Ints, is_text: bool, sink: Sink, faults: Faults) -> None:
    """Put every message as it is; of text, note where it is not UTF-8."""
    for index in range(len(start)):
        wrong = np.int64(-1)
        if is_text and faults[index, CODE] == _FINE:
            wrong = np.int64(invalid_utf8(data, start[index], end[index]))
            if wrong >= 0:
                faults[index, CODE] = _UTF8
                faults[index, A] = wrong - start[index]
        if faults[index, CODE] != _FINE:
            put_null(sink, 0)
        else:
            put(sink, 0, NIL, NIL)
            put(sink, 1, start[index], end[index] - start[index])
