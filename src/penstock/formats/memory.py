"""Memory by address: how kernels read messages and plans, and write columns.

Kernels get places in memory as plain numbers. Arrays would do the same at a tenth of the speed: numba counts references
to an array wherever it is handed on, and a kernel hands on a dozen of them, several times per value. A number costs
nothing.

There are no bounds here. Who reads a message has compared the place with its end; who reads a table knows its rows.
Python makes the addresses (`address`), and holds the arrays until the kernel has returned and spans have been copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["WORD", "address", "byte", "copy", "half", "set_byte", "set_half", "set_word", "word"]

WORD = 8
"""How many bytes a number has in a table."""
_INT64 = ir.IntType(64)


def address(array: npt.NDArray[Any]) -> int:
    """Return where the items of an array begin; they stand one behind the other."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _loading(bits: int) -> Callable[[int], int]:
    def load(typing_context: Any, at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return value if bits == 64 else builder.zext(value, _INT64)

        return types.int64(types.int64), code

    made: Any = intrinsic(load)
    function: Callable[[int], int] = made
    return function


def _storing(bits: int) -> Callable[[int, int], None]:
    def store(typing_context: Any, at: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place, number = arguments
            pointer = builder.inttoptr(place, ir.IntType(bits).as_pointer())
            builder.store(number if bits == 64 else builder.trunc(number, ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    made: Any = intrinsic(store)
    function: Callable[[int, int], None] = made
    return function


byte = _loading(8)
"""The byte at an address, 0 to 255."""
half = _loading(32)
"""The four bytes at an address, least first, without a sign."""
word = _loading(64)
"""The eight bytes at an address, least first, as a signed number."""
set_byte = _storing(8)
set_half = _storing(32)
set_word = _storing(64)

_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
copy: Callable[[int, int, int], int] = _memcpy
"""Copy to an address, from an address, so many bytes."""
