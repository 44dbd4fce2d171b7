"""Write a value given as text to its column: the part that CSV fields and JSON scalars have in common.

The rule of a column, with its two parameters, is derived once from its Arrow type (`scalar_rule`).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.errors import UsageError
from penstock.formats.column_writer import ColumnWriter, put, put_pair
from penstock.formats.decode_errors import ErrorCode, set_error
from penstock.formats.jit import NIL, constant, inner
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

# Rules: the values that a column accepts, and the parameters of the rule.
BOOLEAN = 1
INTEGER = 2  # bits
FLOATING = 3  # bits
DECIMAL = 4  # precision, scale
STRING = 5
DATE = 6
TIMESTAMP = 7
LOCAL_TIMESTAMP = 8

_OK = constant(ErrorCode.OK)


def scalar_rule(kind: pa.DataType, path: str) -> tuple[int, int, int]:
    """Return the rule that converts text to this type, with its two parameters."""
    if pa.types.is_decimal(kind):
        return DECIMAL, kind.precision, kind.scale
    if pa.types.is_timestamp(kind):
        return (TIMESTAMP if kind.tz else LOCAL_TIMESTAMP), 0, 0
    for is_kind, rule in _RULES:
        if is_kind(kind):
            return rule, kind.bit_width if rule in (INTEGER, FLOATING) else 0, 0
    message = f"column {path!r} has type {kind}, which cannot be parsed from text"
    raise UsageError(
        message, "Use BOOLEAN, a numeric type, STRING, DATE or a timestamp type; in JSON also ARRAY, MAP or STRUCT."
    )


@inner
def put_number(
    at: int, end: int, rule: int, first: int, second: int, column: int, out: ColumnWriter, error: int
) -> bool:
    """Write text that is known to be a number; return False if an error was set."""
    code = _OK
    if rule == INTEGER:
        number, code = integer_value(at, end, first)
        if code == _OK:
            put(out, column, number)
    elif rule == FLOATING:
        code = float_problem(at, end, first)
        if code == _OK:
            put_pair(out, column, at, end - at)
    else:
        high, low, code = decimal_value(at, end, first, second)
        if code == _OK:
            put_pair(out, column, high, np.int64(low))
    return code == _OK or set_error(error, code, column, first, second) >= 0


@inner
def put_time(at: int, end: int, rule: int, column: int, out: ColumnWriter, error: int) -> bool:
    """Write a date or a timestamp; return False if an error was set."""
    if rule == DATE:
        number, code = date_days(at, end)
    else:
        number, code = timestamp_micros(at, end, rule == TIMESTAMP)
    if code == _OK:
        put(out, column, number)
        return True
    return set_error(error, code, column, NIL, NIL) >= 0


_RULES = (
    (pa.types.is_boolean, BOOLEAN),
    (pa.types.is_signed_integer, INTEGER),
    (pa.types.is_floating, FLOATING),
    (pa.types.is_string, STRING),
    (pa.types.is_date32, DATE),
)
