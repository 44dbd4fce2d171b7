"""Values from Arrow → the text that Postgres prints, written after its manual, independently of the codecs."""

from __future__ import annotations

import math
from datetime import datetime
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from penstock.sources.postgres.types import PostgresType, TypeKind

__all__ = ["render"]

_BOX = 603


def render(kind: PostgresType, value: Any) -> str:
    """Print one value that is not null."""
    match kind.kind:
        case TypeKind.DOMAIN:
            return render(_part(kind), value)
        case TypeKind.ARRAY:
            return _array(_part(kind), value)
        case TypeKind.RANGE:
            return _range(_part(kind), value)
        case TypeKind.MULTIRANGE:
            return "{" + ",".join(_range(_part(_part(kind)), item) for item in value) + "}"
        case TypeKind.COMPOSITE:
            return "(" + ",".join(_field(part, value[name]) for name, part in kind.fields) + ")"
    return _scalar(kind, value)


def _part(kind: PostgresType) -> PostgresType:
    assert kind.of is not None
    return kind.of


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _doubled(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '""')


def _array(element: PostgresType, values: list[Any]) -> str:
    base = element
    while base.kind is TypeKind.DOMAIN:
        base = _part(base)
    comma = ";" if base.oid == _BOX else ","

    def item(value: Any) -> str:
        if value is None:
            return "NULL"
        text = render(element, value)
        special = any(c in text for c in '"\\{} \t\n\r\v\f' + comma)
        return f'"{_escaped(text)}"' if special or not text or text.upper() == "NULL" else text

    return "{" + comma.join(item(value) for value in values) + "}"


def _quoted(text: str, special: str) -> str:
    return f'"{_doubled(text)}"' if not text or any(c in text for c in special) else text


def _field(kind: PostgresType, value: Any) -> str:
    return "" if value is None else _quoted(render(kind, value), '"\\(), \t\n\r\v\f')


def _range(bound: PostgresType, value: dict[str, Any]) -> str:
    if value["empty"]:
        return "empty"
    lower, upper = (
        "" if value[side] is None else _quoted(render(bound, value[side]), '"\\()[], \t\n\r\v\f')
        for side in ("lower", "upper")
    )
    return f"{'[' if value['lower_inclusive'] else '('}{lower},{upper}{']' if value['upper_inclusive'] else ')'}"


def _scalar(kind: PostgresType, value: Any) -> str:
    if kind.name == "hstore":
        pairs = (f'"{_escaped(k)}"=>' + ("NULL" if v is None else f'"{_escaped(v)}"') for k, v in value)
        return ", ".join(pairs)
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, float):
        return _float(value, kind.oid == 700)
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(" ", "microseconds").rstrip("0").rstrip(".")
        return text + ("+00" if value.tzinfo else "")
    if isinstance(value, dict):
        return _interval(value["months"], value["days"], value["microseconds"])
    if isinstance(value, list):
        return " ".join(str(item) for item in value)
    return str(value)


def _float(value: float, single: bool) -> str:
    """The shortest digits strictly nearer to this float than to any other: Postgres does not rely on ties to even."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    size = np.float32(abs(value)) if single else np.float64(abs(value))
    exact, below = Fraction(float(size)), Fraction(float(np.nextafter(size, size.dtype.type(0))))
    greatest = size == np.finfo(size.dtype).max
    above = 2 * exact - below if greatest else Fraction(float(np.nextafter(size, size.dtype.type(np.inf))))
    least, most = (below + exact) / 2, (above + exact) / 2
    digits = next(text for p in range(17) for text in _near(float(size), p) if least < Fraction(text) < most)
    mantissa, _, power = digits.partition("e")
    exponent = int(power)
    sign = "-" if value < 0 else ""
    if exponent < -4 or exponent >= (6 if single else 15):
        return f"{sign}{mantissa}e{exponent:+03d}"
    return sign + f"{Decimal(digits):f}"


def _near(value: float, places: int) -> list[str]:
    """The two decimals with `places` digits around a float, the nearer one (the even one of a tie) first."""
    first = f"{value:.{places}e}"
    exact, context = Decimal(value), Context(prec=places + 1, Emin=-400, Emax=400)
    context.rounding = ROUND_UP if Decimal(first) <= exact else ROUND_DOWN
    return [first, f"{context.create_decimal(exact):.{places}e}"]


def _interval(months: int, days: int, micros: int) -> str:
    years, months = _toward_zero(months, 12)
    seconds, micros = _toward_zero(micros, 1_000_000)
    minutes, seconds = _toward_zero(seconds, 60)
    hours, minutes = _toward_zero(minutes, 60)
    day = "".join(f"{count}{letter}" for count, letter in ((years, "Y"), (months, "M"), (days, "D")) if count)
    time = "".join(f"{count}{letter}" for count, letter in ((hours, "H"), (minutes, "M")) if count)
    if seconds or micros:
        sign = "-" if seconds < 0 or micros < 0 else ""
        time += f"{sign}{abs(seconds)}.{abs(micros):06}".rstrip("0").rstrip(".") + "S"
    return "P" + day + (f"T{time}" if time else "" if day else "T0S")


def _toward_zero(value: int, by: int) -> tuple[int, int]:
    whole = abs(value) // by
    return (whole, value - whole * by) if value >= 0 else (-whole, value + whole * by)
