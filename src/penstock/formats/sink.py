"""Where kernels put values: columns in flat arrays, each with a counter of its own.

A kernel walks a message in the order of its bytes and puts each value at the end of the column it belongs to. So the
order of fields in the message does not matter, only that each column gets one entry per entry of its parent.

Every batch is walked twice. The first walk only counts, and finds out which messages are corrupt: whatever such a
message had put is taken back by restoring the counters, and one null row stands in its place. The second walk writes,
into arrays that have the right size. Nothing of a corrupt message is ever in the output.

An entry is three numbers: whether it is there, and two of which the meaning is that of the column's `Store`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["NIL", "Bytes", "Ints", "Sink", "compiled", "inner", "put", "put_null", "reserve"]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

NIL = np.int64(0)
"""Zero, as an argument of inner functions. numba compiles a function anew for each literal that it is called with, and
constants of Python's own type count as literals; those of numpy's do not."""

_F = TypeVar("_F", bound=Callable[..., Any])


def compiled(function: _F) -> _F:
    """Compile at the first call, or load from the cache beside the source; it runs without the GIL.

    numba keys its cache on the file of this function, not on those of functions called from it: after a change of these
    while developing, delete ``__pycache__``.
    """
    made: _F = njit(cache=True, nogil=True, error_model="numpy")(function)
    return made


def inner(function: _F) -> _F:
    """Compile as a part of the kernels that call it; Python cannot call it.

    It may call itself, with arguments of the same types, literals (see `NIL`) included. Two that call each other, or
    one that calls itself with another type, crash when numba loads them from its cache.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    made: _F = njit(**options)(function)
    return made


class Sink(NamedTuple):
    """All columns of a batch. `valid`, `value` and `size` are empty on the walk that only counts."""

    count: Ints
    """For each column, where its next entry goes."""
    valid: Bytes
    value: Ints
    size: Ints
    null_at: Ints
    """For each column, where its part of `nulls` begins; one more at the end."""
    nulls: Ints
    """The columns that get an entry when that column is null: itself and, below a struct, its fields."""


@inner
def put(sink: Sink, column: int, value: int, size: int) -> None:
    """Add one entry."""
    at = sink.count[column]
    sink.count[column] = at + 1
    if sink.valid.size:
        sink.valid[at] = 1
        sink.value[at] = value
        sink.size[at] = size


@inner
def reserve(sink: Sink, column: int) -> int:
    """Add one entry whose value, a count of items, is set later; return where."""
    at = sink.count[column]
    sink.count[column] = at + 1
    if sink.valid.size:
        sink.valid[at] = 1
    return at


@inner
def put_null(sink: Sink, column: int) -> None:
    """Add a null, also to the fields of a struct."""
    for index in range(sink.null_at[column], sink.null_at[column + 1]):
        sink.count[sink.nulls[index]] += 1
