"""Kernels: functions over wire bytes, compiled by numba.

A kernel processes whole columns and creates no Python object per value. It is compiled for one explicit signature, at
its first call or by `compile_all`, and cached on disk (`penstock.kernel_cache`), so that later processes only load it.
Inputs are declared read-only: numba then accepts writable arrays too, and never compiles a second variant.

A kernel that can encounter a bad value returns a *verdict*: `FINE`, or the row and the number of the reason packed into
one integer by `blame`. `BadValueError.check` turns it into an exception. A kernel of a type that cannot hold all values
can also mark them, one byte for each value, and proceed; bytes that are not a value of the type are always blamed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba import types as nb

from penstock.kernel_cache import cached_njit
from penstock.sources.postgres.types.codec import REASON_BITS, Bytes, Ints

__all__ = [
    "FINE",
    "I16",
    "I32",
    "I64",
    "IN8",
    "IN32",
    "STRICT",
    "U8",
    "U64",
    "Kernel",
    "blame",
    "compile_all",
    "inlined",
    "kernel",
    "read16",
    "start",
    "uint",
    "unrolled",
]

_F = TypeVar("_F", bound=Callable[..., Any])

FINE = -1

IN8 = nb.Array(nb.uint8, 1, "C", readonly=True)
IN32 = nb.Array(nb.int32, 1, "C", readonly=True)
U8 = nb.uint8[::1]
U64 = nb.uint64[::1]
I16 = nb.int16[::1]
I32 = nb.int32[::1]
I64 = nb.int64[::1]

STRICT = np.empty(0, np.uint8)
"""Passed to a kernel in place of memory for marks: it then blames the first value that a type cannot hold."""

_all: list[Kernel] = []


class Kernel:
    """A function that is compiled (or loaded from the cache on disk) at its first call."""

    __slots__ = ("_compiled", "_function", "_signatures")

    def __init__(self, function: Callable[..., Any], signatures: tuple[Any, ...]) -> None:
        """Store the function and its signatures."""
        self._function = function
        self._signatures = list(signatures)
        self._compiled: Callable[..., Any] = self._first_call

    def __call__(self, *arguments: Any) -> Any:
        """Run it without the GIL."""
        return self._compiled(*arguments)

    def compile(self) -> None:
        """Compile it, or load it, unless that was done before."""
        if self._compiled == self._first_call:
            self._compiled = cached_njit(self._signatures, nogil=True)(self._function)

    def _first_call(self, *arguments: Any) -> Any:
        self.compile()
        return self._compiled(*arguments)


def kernel(*signatures: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel with its numba signatures."""

    def declare(function: Callable[..., Any]) -> Kernel:
        declared = Kernel(function, signatures)
        _all.append(declared)
        return declared

    return declare


def compile_all() -> None:
    """Compile every kernel declared so far, filling the cache on disk."""
    for declared in _all:
        declared.compile()


def inlined(function: _F) -> _F:
    """Declare a function that kernels call; LLVM inlines it."""
    return cast("_F", njit(function))


def unrolled(function: _F) -> _F:
    """Like `inlined`, but numba itself inlines it into its callers: no call, and no reference counting of arrays."""
    return cast("_F", njit(function, inline="always"))


@inlined
def blame(row: int, reason: int) -> int:
    """Return the verdict that `row` is bad for the reason of this number."""
    return (row << REASON_BITS) | reason


@inlined
def start(off: Ints, row: int) -> Any:
    """Return the offset of a value; the mask shows LLVM that no index is negative, so none wraps as in Python."""
    return np.int64(off[row]) & 0x7FFFFFFF


@inlined
def _read(buf: Bytes, at: int, width: int) -> Any:
    value = np.uint64(0)
    for k in range(width):
        value = (value << np.uint64(8)) | np.uint64(buf[at + k])
    return value


@inlined
def uint(buf: Bytes, at: int, width: int) -> Any:
    """Return `width` (2, 4 or 8) bytes in network order as uint64; constant widths become one load and a byte swap."""
    if width == 8:
        return _read(buf, at, 8)
    if width == 4:
        return _read(buf, at, 4)
    return _read(buf, at, 2)


@inlined
def read16(buf: Bytes, at: int) -> Any:
    """Return two bytes in network order, unsigned."""
    return (np.int64(buf[at]) << 8) | np.int64(buf[at + 1])
