"""One value of text into its column: what CSV fields and JSON scalars have in common.

The kind of a column, and the numbers that belong to it, are worked out once from its Arrow type (`scalar_rule`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.compiling import NIL, constant, inner
from penstock.formats.faults import blame
from penstock.formats.problems import Problem
from penstock.formats.sink import Sink, put, put_two
from penstock.formats.text_values import date_days, decimal_value, float_problem, integer_value, timestamp_micros

__all__ = [
    "BOOLEAN",
    "DATE",
    "DECIMAL",
    "FLOATING",
    "INTEGER",
    "LOCAL_TIMESTAMP",
    "STRING",
    "TIMESTAMP",
    "put_number",
    "put_time",
    "scalar_rule",
]

# What a column takes, and the two numbers that belong to it.
BOOLEAN = 1
INTEGER = 2  # bits
FLOATING = 3  # bits
DECIMAL = 4  # precision, scale
STRING = 5
DATE = 6
TIMESTAMP = 7
LOCAL_TIMESTAMP = 8

_FINE = constant(Problem.FINE)


def scalar_rule(kind: pa.DataType, path: str) -> tuple[int, int, int]:
    """Return how text becomes a value of this type."""
    if pa.types.is_decimal(kind):
        return DECIMAL, kind.precision, kind.scale
    if pa.types.is_timestamp(kind):
        return (TIMESTAMP if kind.tz else LOCAL_TIMESTAMP), 0, 0
    for is_kind, rule in _RULES:
        if is_kind(kind):
            return rule, kind.bit_width if rule in (INTEGER, FLOATING) else 0, 0
    message = f"column {path!r} has a type that is not read from text: {kind}"
    raise UsageError(message, "Use BOOLEAN, a number, STRING, DATE or a timestamp; in JSON also ARRAY, MAP, STRUCT.")


@inner
def put_number(at: int, end: int, rule: int, first: int, second: int, column: int, sink: Sink, fault: int) -> bool:
    """Put text that is known to be a number; False with the fault noted."""
    problem = _FINE
    if rule == INTEGER:
        number, problem = integer_value(at, end, first)
        if problem == _FINE:
            put(sink, column, number)
    elif rule == FLOATING:
        problem = float_problem(at, end, first)
        if problem == _FINE:
            put_two(sink, column, at, end - at)
    else:
        high, low, problem = decimal_value(at, end, first, second)
        if problem == _FINE:
            put_two(sink, column, high, np.int64(low))
    return problem == _FINE or blame(fault, problem, column, first, second) >= 0


@inner
def put_time(at: int, end: int, rule: int, column: int, sink: Sink, fault: int) -> bool:
    """Put a date or a time; False with the fault noted."""
    if rule == DATE:
        number, problem = date_days(at, end)
    else:
        number, problem = timestamp_micros(at, end, rule == TIMESTAMP)
    if problem == _FINE:
        put(sink, column, number)
        return True
    return blame(fault, problem, column, NIL, NIL) >= 0


_RULES = (
    (pa.types.is_boolean, BOOLEAN),
    (pa.types.is_signed_integer, INTEGER),
    (pa.types.is_floating, FLOATING),
    (pa.types.is_string, STRING),
    (pa.types.is_date32, DATE),
)
