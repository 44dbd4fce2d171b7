"""How kernels are compiled: those that Python calls, and the functions of which they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["NIL", "Ints", "compiled", "constant", "inner"]

Ints = npt.NDArray[np.int64]

_F = TypeVar("_F", bound=Callable[..., Any])


def constant(number: int) -> int:
    """Return a number for kernels to hand on to inner functions.

    numba compiles a function anew for each literal that it is called with, and constants of Python's own type count as
    literals; those of numpy's do not.
    """
    made: Any = np.int64(number)
    result: int = made
    return result


NIL = constant(0)


def compiled(function: _F) -> _F:
    """Compile at the first call, or load from the cache beside the source; it runs without the GIL.

    numba keys its cache on the file of this function, not on those of functions called from it: after a change of these
    while developing, delete ``__pycache__``.
    """
    made: Any = njit(cache=True, nogil=True, error_model="numpy")(function)
    result: _F = made
    return result


def inner(function: _F) -> _F:
    """Compile as a part of the kernels that call it; Python cannot call it.

    It may call itself, with arguments of the same types, literals (see `NIL`) included. Two that call each other, or
    one that calls itself with another type, crash when numba loads them from its cache.
    """
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "error_model": "numpy"}
    made: _F = njit(**options)(function)
    return made
