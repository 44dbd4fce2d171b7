"""One value of text into its column: what CSV fields and JSON scalars have in common.

The kind of a column, and the numbers that belong to it, are worked out once from its Arrow type (`scalar_rule`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.problems import CODE, NODE, A, B, Problem
from penstock.formats.sink import NIL, Bytes, Ints, Sink, inner, put
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

_FINE = np.int64(Problem.FINE)


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
def put_number(
    data: Bytes, at: int, end: int, rule: int, first: int, second: int, column: int, sink: Sink, fault: Ints
) -> bool:
    """Put text that is known to be a number; False with the fault noted."""
    problem = _FINE
    if rule == INTEGER:
        number, problem = integer_value(data, at, end, first)
        if problem == _FINE:
            put(sink, column, number, NIL)
    elif rule == FLOATING:
        problem = float_problem(data, at, end, first)
        if problem == _FINE:
            put(sink, column, at, end - at)
    else:
        high, low, problem = decimal_value(data, at, end, first, second)
        if problem == _FINE:
            put(sink, column, high, np.int64(low))
    return _noted(problem, column, first, second, fault)


@inner
def put_time(data: Bytes, at: int, end: int, rule: int, column: int, sink: Sink, fault: Ints) -> bool:
    """Put a date or a time; False with the fault noted."""
    if rule == DATE:
        number, problem = date_days(data, at, end)
    else:
        number, problem = timestamp_micros(data, at, end, rule == TIMESTAMP)
    if problem == _FINE:
        put(sink, column, number, NIL)
    return _noted(problem, column, 0, 0, fault)


@inner
def _noted(problem: int, column: int, first: int, second: int, fault: Ints) -> bool:
    if problem == _FINE:
        return True
    fault[CODE] = problem
    fault[NODE] = column
    fault[A] = first
    fault[B] = second
    return False


_RULES = (
    (pa.types.is_boolean, BOOLEAN),
    (pa.types.is_signed_integer, INTEGER),
    (pa.types.is_floating, FLOATING),
    (pa.types.is_string, STRING),
    (pa.types.is_date32, DATE),
)
