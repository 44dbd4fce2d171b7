"""real, double precision."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.sources.postgres.types import BadValueError

Decode = Callable[..., Any]

REAL, DOUBLE = 700, 701


def bits(array: Any) -> list[bytes]:
    width = array.type.bit_width // 8
    return [bytes(array.buffers()[1])[k * width : (k + 1) * width][::-1] for k in range(len(array))]


def nearest_float32(value: str) -> Any:
    """By exact arithmetic: the closest float32, ties to the even mantissa."""
    exact = Fraction(value)
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    near = [x for x in near if np.isfinite(x)]
    return min(near, key=lambda x: (abs(Fraction(float(x)) - exact), int(np.float32(x).view(np.uint32)) & 1))


@given(st.lists(st.binary(min_size=8, max_size=8)))
@example([bytes.fromhex(h) for h in ("7ff0000000000001", "fff8000000000123", "8000000000000000", "0000000000000001")])
def test_binary_double_is_bit_exact(binary: Decode, values: Any) -> None:
    assert bits(binary(DOUBLE, values)) == values


@given(st.lists(st.binary(min_size=4, max_size=4)))
@example([bytes.fromhex(h) for h in ("7f800001", "ffc00123", "80000000", "00000001")])
def test_binary_real_is_bit_exact(binary: Decode, values: Any) -> None:
    assert bits(binary(REAL, values)) == values


@settings(max_examples=500)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
@example([0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 2.225073858507201e-308, 1.7976931348623157e308])
def test_shortest_text_of_a_double(text: Decode, values: Any) -> None:
    assert bits(text(DOUBLE, [repr(v).encode() for v in values])) == [struct.pack(">d", v) for v in values]


@settings(max_examples=1000)
@given(st.integers(0, 2**64 - 1), st.integers(-345, 310))
def test_any_digits_round_to_the_nearest_double(text: Decode, digits: int, exponent: int) -> None:
    value = f"{digits}e{exponent}"
    expected = float(value)
    if math.isinf(expected) or (expected == 0 and digits):
        with pytest.raises(BadValueError, match="range"):
            text(DOUBLE, [value.encode()])
    else:
        assert text(DOUBLE, [value.encode()]).to_pylist() == [expected]


@settings(max_examples=500)
@given(st.integers(0, 2**53 - 1), st.integers(-300, 300), st.sampled_from(["", "0", "00001", "9"]))
def test_ties_and_their_neighbours(text: Decode, mantissa: int, power: int, tail: str) -> None:
    """Exactly between two doubles, written out in full, and just above."""
    value = Fraction(2 * mantissa + 1) * Fraction(2) ** power / 2
    digits, exponent = value.numerator, 0
    if value.denominator > 1:
        exponent = value.denominator.bit_length() - 1
        digits = value.numerator * 5**exponent
    literal = f"{digits}{tail}e-{exponent + len(tail)}"
    assert text(DOUBLE, [literal.encode()]).to_pylist() == [float(literal)]


@settings(max_examples=500)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(1.401298464324817e-45)
@example(3.4028234663852886e38)
@example(-0.0)
def test_shortest_text_of_a_real(text: Decode, value: Any) -> None:
    literal = str(np.float32(value))
    assert bits(text(REAL, [literal.encode()])) == [struct.pack(">f", value)]


@settings(max_examples=1000)
@given(st.integers(1, 2**64 - 1), st.integers(-60, 19))
@example(16777217, 0)
@example(16777217000000001, -9)
@example(16777216999999999, -9)
@example(1677721700000000000, -11)
def test_any_digits_round_once_to_the_nearest_real(text: Decode, digits: int, exponent: int) -> None:
    literal = f"{digits}e{exponent}"
    if Fraction(literal) >= Fraction(2**25 - 1) * 2**103 or Fraction(literal) <= Fraction(1, 2**150):
        with pytest.raises(BadValueError, match="range"):
            text(REAL, [literal.encode()])
    else:
        assert text(REAL, [literal.encode()]).to_pylist() == [nearest_float32(literal)]


@settings(max_examples=500)
@given(st.integers(2**23, 2**24 - 1), st.integers(-140, 100), st.sampled_from([-1, 0, 1]))
def test_real_ties(text: Decode, mantissa: int, power: int, nudge: int) -> None:
    """Halfway between two floats, plus or minus less than a double can represent."""
    value = (Fraction(2 * mantissa + 1) + Fraction(nudge, 10**30)) * Fraction(2) ** power / 2
    scale = 260
    literal = f"{value.numerator * 10**scale // value.denominator}e-{scale}"
    assert text(REAL, [literal.encode()]).to_pylist() == [nearest_float32(literal)]


@pytest.mark.parametrize("oid", [REAL, DOUBLE])
def test_specials(text: Decode, oid: int) -> None:
    array = text(oid, [b"NaN", b"Infinity", b"-Infinity", b"-0", None, -2, b"0.000e500", b"1e+2", b"1E2"])
    assert str(array.to_pylist()) == "[nan, inf, -inf, -0.0, None, None, 0.0, 100.0, 100.0]"


@pytest.mark.parametrize("oid", [REAL, DOUBLE])
@pytest.mark.parametrize(
    "bad",
    b"|-|.|1.|.5|1.e5|1e|1e+|e5|1e5.5|1..2|1.2.3|nan|-NaN|inf|infinity|Infinit|Infinityy|+1| 1|1 |1x|1_0|--1".split(
        b"|"
    ),
)
def test_malformed_text(text: Decode, oid: int, bad: bytes) -> None:
    with pytest.raises(BadValueError, match="malformed") as caught:
        text(oid, [b"1.5", None, bad])
    assert caught.value.row == 2


def test_out_of_range_names_the_first_row(text: Decode) -> None:
    for oid, values in ((DOUBLE, (b"1e309", b"1e-400", b"-1e99999999999999999999")), (REAL, (b"1e39", b"1e-60"))):
        for bad in values:
            with pytest.raises(BadValueError, match="range") as caught:
                text(oid, [b"1", b"12345678901234567890123", bad, b"1e999", b"malformed"])
            assert caught.value.row == 2


@pytest.mark.parametrize(("oid", "size"), [(REAL, 8), (REAL, 3), (DOUBLE, 4), (DOUBLE, 0)])
def test_wrong_width(binary: Decode, oid: int, size: int) -> None:
    with pytest.raises(BadValueError, match="length"):
        binary(oid, [bytes(size)])
