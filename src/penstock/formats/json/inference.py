"""Columns of JSON messages, inferred once from a sample.

Integers are BIGINT (beyond 64 bits DECIMAL(38,0)), other numbers DOUBLE, objects STRUCT, arrays ARRAY. Where messages
of the sample disagree, or say nothing because all have null there, the column takes any value, as its JSON text: then
nothing is guessed. Dates are text: that a string looks like one says little.

Of Debezium's records it is known that ``before`` and ``after`` are rows of one table. They get one type, also where the
sample has only one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from penstock.errors import DefiniteError

__all__ = ["inferred_columns"]

_REMEDY = "Give the columns (schema = 'id BIGINT, …'), or take the topic as TEXT."
_ANY = "any"
_RECORD = {"before", "after", "source", "op"}
_Shape = Any  # a scalar's name, ("list", shape), ("struct", {name: shape}), or None where nothing is known


def inferred_columns(sample: Iterable[bytes]) -> tuple[pa.DataType, list[str]]:
    """Return the type of the messages, and the paths of columns that take any value as text."""
    shape: _Shape = None
    usable = 0
    for message in sample:
        try:
            found = json.loads(message.decode())
        except (ValueError, RecursionError):
            continue
        usable += 1
        shape = _merged(shape, _shape(found))
    if not usable or shape is None:
        what = "no message of the sample is JSON with a value" if not usable else "the sample holds nothing but null"
        msg = f"columns cannot be inferred: {what}"
        raise DefiniteError(msg, _REMEDY)
    shape = _one_row(shape)
    raw: list[str] = []
    return _type(shape, "" if _is(shape, "struct") else "value", raw), raw


def _shape(value: Any) -> _Shape:
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int():
            return "bigint" if -(2**63) <= value < 2**63 else "decimal" if abs(value) < 10**38 else _ANY
        case float():
            return "double"
        case str():
            return "string"
        case dict():
            return ("struct", {key: _shape(item) for key, item in value.items()}) if value else _ANY
    merged: _Shape = None
    for item in value:
        merged = _merged(merged, _shape(item))
    return ("list", merged)


def _merged(one: _Shape, other: _Shape) -> _Shape:
    if one is None or one == other:
        return other
    if other is None:
        return one
    if _is(one, "struct") and _is(other, "struct"):
        names = dict.fromkeys([*one[1], *other[1]])
        return ("struct", {name: _merged(one[1].get(name), other[1].get(name)) for name in names})
    if _is(one, "list") and _is(other, "list"):
        return ("list", _merged(one[1], other[1]))
    both = {one, other} if isinstance(one, str) and isinstance(other, str) else set()
    if both and both <= {"bigint", "decimal"}:
        return "decimal"
    return "double" if both and both <= {"bigint", "double"} else _ANY


def _one_row(shape: _Shape) -> _Shape:
    if not _is(shape, "struct") or not shape[1].keys() >= _RECORD:
        return shape
    row = _merged(shape[1]["before"], shape[1]["after"])
    return ("struct", {**shape[1], "before": row, "after": row})


def _is(shape: _Shape, kind: str) -> bool:
    return isinstance(shape, tuple) and shape[0] == kind


def _type(shape: _Shape, path: str, raw: list[str]) -> pa.DataType:
    if _is(shape, "struct"):
        fields = shape[1].items()
        return pa.struct([pa.field(name, _type(one, f"{path}.{name}" if path else name, raw)) for name, one in fields])
    if _is(shape, "list"):
        return pa.list_(pa.field("element", _type(shape[1], f"{path}[]", raw)))
    if shape is None or shape == _ANY:
        raw.append(path)
        return pa.string()
    return _TYPES[shape]


_TYPES = {
    "boolean": pa.bool_(),
    "bigint": pa.int64(),
    "decimal": pa.decimal128(38, 0),
    "double": pa.float64(),
    "string": pa.string(),
}
