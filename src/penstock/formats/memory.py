"""Memory access by address, and the bits of numbers: how kernels read messages and plans, and write columns.

Kernels receive memory locations as plain integers. Arrays would be ten times slower: numba counts references to an
array whenever it is passed to a function, and a kernel would pass a dozen of them, several times per value. Passing an
integer costs nothing.

There are no bounds checks here. Code that reads a message compares the address with its end first; code that reads a
table uses valid row numbers. Python determines the addresses (`address`), and keeps the arrays alive until the kernel
has returned and spans have been copied.

Bit operations reinterpret floating-point numbers as integers, and count trailing zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = [
    "WORD",
    "address",
    "byte",
    "copy",
    "double_bits",
    "half",
    "low_zeros",
    "set_byte",
    "set_half",
    "set_word",
    "single_bits",
    "single_value",
    "word",
]

WORD = 8
"""Size of a number in a table, in bytes."""
_INT64 = ir.IntType(64)


def address(array: npt.NDArray[Any]) -> int:
    """Return the address of an array's items, which must be contiguous."""
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _load_function(bits: int) -> Callable[[int], int]:
    def load(typing_context: Any, at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return value if bits == 64 else builder.zext(value, _INT64)

        return types.int64(types.int64), code

    untyped: Any = intrinsic(load)
    function: Callable[[int], int] = untyped
    return function


def _store_function(bits: int) -> Callable[[int, int], None]:
    def store(typing_context: Any, at: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place, number = arguments
            pointer = builder.inttoptr(place, ir.IntType(bits).as_pointer())
            builder.store(number if bits == 64 else builder.trunc(number, ir.IntType(bits)), pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    untyped: Any = intrinsic(store)
    function: Callable[[int, int], None] = untyped
    return function


byte = _load_function(8)
"""The byte at an address, 0 to 255."""
half = _load_function(32)
"""The four bytes at an address, little-endian, unsigned."""
word = _load_function(64)
"""The eight bytes at an address, little-endian, signed."""
set_byte = _store_function(8)
set_half = _store_function(32)
set_word = _store_function(64)

_memcpy: Any = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))
copy: Callable[[int, int, int], int] = _memcpy
"""Copy bytes: destination address, source address, size."""


# -- bits --------------------------------------------------------------------------------------------------------------


def _same_bits(source: Any, target: Any, result: Any) -> Callable[[Any], Any]:
    """Return a function that reinterprets the bits of one type as another."""

    def cast(typing_context: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = arguments[0]
            if source == types.int64 and result == types.float32:
                value = builder.trunc(value, ir.IntType(32))
            bits = builder.bitcast(value, target)
            return builder.zext(bits, ir.IntType(64)) if target == ir.IntType(32) else bits

        return result(source), code

    untyped: Any = intrinsic(cast)
    function: Callable[[Any], Any] = untyped
    return function


double_bits = _same_bits(types.float64, ir.IntType(64), types.int64)
single_bits = _same_bits(types.float32, ir.IntType(32), types.int64)
single_value = _same_bits(types.int64, ir.FloatType(), types.float32)
"""The 32-bit float whose bits are the lower half of an integer."""


def _low_zeros(typing_context: Any, number: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), code


_untyped: Any = intrinsic(_low_zeros)
low_zeros: Callable[[int], int] = _untyped
"""Count trailing zero bits; 64 for zero."""
