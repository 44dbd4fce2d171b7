"""Bit operations: reinterpret floating-point numbers as integers, and count trailing zeros."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["double_bits", "low_zeros", "single_bits", "single_value"]


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
