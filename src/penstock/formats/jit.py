"""Compilation of kernels with numba: entry points that Python calls, and the inner functions that they call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

from penstock.kernel_cache import cached_njit

__all__ = ["NIL", "Ints", "compiled", "constant", "inner"]

Ints = npt.NDArray[np.int64]

_F = TypeVar("_F", bound=Callable[..., Any])


def constant(number: int) -> int:
    """Return a number that kernels can pass to inner functions.

    numba compiles a function again for each literal argument. Python integers count as literals; numpy integers do not.
    """
    untyped: Any = np.int64(number)
    result: int = untyped
    return result


NIL = constant(0)


def compiled(function: _F) -> _F:
    """Compile at the first call, or load from the cache; the kernel runs without the GIL."""
    untyped: Any = cached_njit(nogil=True, error_model="numpy")(function)
    result: _F = untyped
    return result


def inner(function: _F) -> _F:
    """Compile as part of the kernels that call it; Python cannot call it.

    An inner function may call itself with arguments of the same types, literals (see `NIL`) included. Functions that
    call each other, or a function that calls itself with another type, crash when numba loads them from its cache.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    dispatcher: _F = njit(**options)(function)
    return dispatcher
