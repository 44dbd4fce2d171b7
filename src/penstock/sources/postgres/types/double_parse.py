"""Decimal digits and a power of ten → the nearest double, for kernels.

Three methods, each either exact or not applied:

1. Clinger: integers up to 2^53 and 10^±22 are doubles themselves, so one multiplication or division rounds once.
2. Eisel–Lemire: the digits times a 128-bit truncated power of ten. The truncation can change the result only if the
   bits below the mantissa are all ones, or lie exactly between two doubles; in both cases it gives up.
3. The second result is False: subnormals, overflow, and the rare cases above are left to the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.sources.postgres.types.kernel import inlined

__all__ = ["nearest_double", "product"]

_LEAST, _MOST = -342, 308


def _power(exponent: int) -> int:
    """Return 10^exponent as its 128 leading bits, truncated."""
    if exponent >= 0:
        exact: int = 10**exponent
        shift = 128 - exact.bit_length()
        return exact << shift if shift >= 0 else exact >> -shift
    inverse: int = 10**-exponent
    quotient = (1 << (inverse.bit_length() + 128)) // inverse
    return quotient >> (quotient.bit_length() - 128)


_POWERS = [_power(exponent) for exponent in range(_LEAST, _MOST + 1)]
_HIGH = np.array([power >> 64 for power in _POWERS], np.uint64)
_LOW = np.array([power & (2**64 - 1) for power in _POWERS], np.uint64)
_EXACT = np.array([float(10**k) for k in range(23)], np.float64)

_1 = np.uint64(1)
_9 = np.uint64(9)
_32 = np.uint64(32)
_52 = np.uint64(52)
_53 = np.uint64(53)
_63 = np.uint64(63)
_MASK9 = np.uint64(0x1FF)
_MASK32 = np.uint64(2**32 - 1)
_MASK52 = np.uint64(2**52 - 1)
_ALL = np.uint64(2**64 - 1)


@inlined
def product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the 128 bits of a × b, high and low."""
    a0, a1 = a & _MASK32, a >> _32
    b0, b1 = b & _MASK32, b >> _32
    low = a0 * b0
    middle = a1 * b0 + (low >> _32)
    other = a0 * b1 + (middle & _MASK32)
    return a1 * b1 + (middle >> _32) + (other >> _32), (other << _32) | (low & _MASK32)


@inlined
def _leading_zeros(value: Any) -> int:
    zeros = 0
    step = 32
    while step:
        if value >> np.uint64(64 - step) == np.uint64(0):
            value <<= np.uint64(step)
            zeros += step
        step >>= 1
    return zeros


@inlined
def _eisel_lemire(digits: Any, exponent: int) -> tuple[float, bool]:
    if exponent < _LEAST or exponent > _MOST:
        return 0.0, False
    zeros = _leading_zeros(digits)
    digits <<= np.uint64(zeros)
    high, low = product(digits, _HIGH[exponent - _LEAST])
    if high & _MASK9 == _MASK9 and low + digits < digits:
        more, rest = product(digits, _LOW[exponent - _LEAST])
        low += more
        if low < more:
            high += _1
        if high & _MASK9 == _MASK9 and low == _ALL and rest + digits < digits:
            return 0.0, False
    top = high >> _63
    mantissa = high >> (top + _9)
    if low == np.uint64(0) and high & _MASK9 == np.uint64(0) and mantissa & np.uint64(3) == _1:
        return 0.0, False
    mantissa = (mantissa + (mantissa & _1)) >> _1
    biased = ((217706 * exponent) >> 16) + 64 + 1023 - zeros - (1 - np.int64(top))
    if mantissa >> _53:
        mantissa >>= _1
        biased += 1
    if biased < 1 or biased > 2046:
        return 0.0, False
    return np.uint64((np.uint64(biased) << _52) | (mantissa & _MASK52)).view(np.float64), True


@inlined
def nearest_double(digits: Any, exponent: int) -> tuple[float, bool]:
    """Return the double nearest to digits × 10^exponent (`digits` is uint64) and whether it was found."""
    if digits == np.uint64(0):
        return 0.0, True
    if digits >> _53 == np.uint64(0) and -22 <= exponent <= 22:
        value = np.float64(digits)
        return (value / _EXACT[-exponent] if exponent < 0 else value * _EXACT[exponent]), True
    return _eisel_lemire(digits, exponent)
