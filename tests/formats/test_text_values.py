"""Numbers in text are parsed as by Python's `decimal` and `float`, or are rejected."""

from __future__ import annotations

import random
from decimal import Context, Decimal, Inexact

import pytest
from tests.formats.conftest import decoded

from penstock.formats import JsonFormat, resolve


def texts(rng: random.Random, count: int) -> list[str]:
    """Return numbers in JSON's grammar: short and long ones, with zeros at either end, points and exponents."""
    found = []
    for _ in range(count):
        whole = str(rng.randrange(10 ** rng.choice((1, 2, 5, 9, 18, 19, 25, 38))))
        point = "." + "0" * rng.randrange(3) + str(rng.randrange(10 ** rng.choice((1, 2, 6, 20))))
        exponent = f"{rng.choice('eE')}{rng.choice(('', '+', '-'))}{rng.randrange(rng.choice((3, 30, 400)))}"
        parts = [rng.choice(("", "-")), whole, rng.choice(("", point)), rng.choice(("", "", exponent))]
        found.append("".join(parts))
    return found


@pytest.mark.parametrize(("precision", "scale"), [(5, 0), (9, 2), (18, 18), (19, 3), (38, 10)])
def test_decimals_are_exact_or_rejected(precision: int, scale: int) -> None:
    numbers = texts(random.Random(precision), 1200)
    resolved = resolve(JsonFormat(columns=f"DECIMAL({precision},{scale})"))
    result = decoded(resolved, *(number.encode() for number in numbers))
    exactly = Context(prec=2000, traps=[Inexact])
    valid = 0
    for number, found, problem in zip(
        numbers, result.rows.field("value").to_pylist(), result.problems.to_pylist(), strict=True
    ):
        unscaled = Decimal(number).scaleb(scale, exactly)
        if unscaled == unscaled.to_integral_value(context=exactly) and abs(unscaled) < 10**precision:
            valid += 1
            assert (found, problem) == (Decimal(number), None)
        else:
            assert found is None
            assert "does not fit" in str(problem) or "digits after the decimal point" in str(problem)
    assert valid > 20


def test_floating_point_numbers_are_the_nearest_or_rejected() -> None:
    numbers = texts(random.Random(4), 3000)
    result = decoded(resolve(JsonFormat(columns="DOUBLE")), *(number.encode() for number in numbers))
    valid = 0
    for number, found, problem in zip(
        numbers, result.rows.field("value").to_pylist(), result.problems.to_pylist(), strict=True
    ):
        if problem is None:
            valid += 1
            assert repr(found) == repr(float(number))
            continue
        digits = Decimal(number).normalize().as_tuple().digits
        whole = number.lstrip("-").isdigit() and int(float(number)) != int(number)
        extreme = float(number) in (float("inf"), float("-inf")) or abs(float(number)) < 5e-324 or "e" in number.lower()
        assert len(digits) > 17 or whole or extreme, (number, problem)
    assert valid > 1000


def test_more_digits_than_128_bits_hold_do_not_wrap_around() -> None:
    numbers = [str(first) + "0" * zeros for first in range(1, 100) for zeros in (37, 38, 39, 40)]
    numbers = [number for number in numbers if len(number) > 38] + ["9" * 39, "34" + "9" * 37, "1e38", "5e39"]
    result = decoded(resolve(JsonFormat(columns="DECIMAL(38,0)")), *(number.encode() for number in numbers))
    assert result.rows.null_count == len(numbers)
