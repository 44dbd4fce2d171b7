"""Columns of JSON messages: inferred from a sample, or derived from a JSON Schema.

Inferred once from a sample: integers are BIGINT (beyond 64 bits DECIMAL(38,0)), other numbers DOUBLE, objects STRUCT,
arrays ARRAY. If messages of the sample disagree, or all have null, nothing is guessed: the column accepts any value and
holds its JSON text. Dates are text, because a string that looks like a date need not be one. In Debezium records
``before`` and ``after`` are rows of the same table, so they get the same type, even if the sample has only one of them.

From a JSON Schema, as registries store it: an object with ``properties`` is a STRUCT, one with only a schema for
``additionalProperties`` a MAP; integer is BIGINT, number DOUBLE, and a type combined with ``null`` is that type. A
schema with several types, or none, becomes a column that accepts any value and holds its JSON text. Only the structure
is used: lengths, patterns and ``required`` are up to the writer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from penstock.errors import DefiniteError

__all__ = ["inferred_columns", "json_schema_columns"]

_HINT = "Specify the columns (schema = 'id BIGINT, …'), or use FORMAT TEXT."
_ANY = "any"
_RECORD = {"before", "after", "source", "op"}
_Shape = Any  # a scalar's name, ("list", shape), ("struct", {name: shape}), or None if unknown


def inferred_columns(sample: Iterable[bytes]) -> tuple[pa.DataType, list[str]]:
    """Return the type of the messages, and the paths of columns that hold any value as JSON text."""
    shape: _Shape = None
    usable = 0
    for message in sample:
        try:
            found = json.loads(message.decode())
        except (ValueError, RecursionError):
            continue
        usable += 1
        shape = _merge(shape, _shape(found))
    if not usable or shape is None:
        what = "no message of the sample is valid JSON" if not usable else "all messages of the sample are null"
        msg = f"columns cannot be inferred: {what}"
        raise DefiniteError(msg, _HINT)
    shape = _with_row_type(shape)
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
        merged = _merge(merged, _shape(item))
    return ("list", merged)


def _merge(one: _Shape, other: _Shape) -> _Shape:
    if one is None or one == other:
        return other
    if other is None:
        return one
    if _is(one, "struct") and _is(other, "struct"):
        names = dict.fromkeys([*one[1], *other[1]])
        return ("struct", {name: _merge(one[1].get(name), other[1].get(name)) for name in names})
    if _is(one, "list") and _is(other, "list"):
        return ("list", _merge(one[1], other[1]))
    both = {one, other} if isinstance(one, str) and isinstance(other, str) else set()
    if both and both <= {"bigint", "decimal"}:
        return "decimal"
    return "double" if both and both <= {"bigint", "double"} else _ANY


def _with_row_type(shape: _Shape) -> _Shape:
    if not _is(shape, "struct") or not shape[1].keys() >= _RECORD:
        return shape
    row = _merge(shape[1]["before"], shape[1]["after"])
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


_SCALARS = {"boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string()}
_BRANCHES = ("oneOf", "anyOf")


def json_schema_columns(text: str, references: Mapping[str, str]) -> tuple[pa.DataType, list[str]]:
    """Return the type of the messages, and the paths of columns that hold any value as JSON text.

    `references` are the texts of other schemas, by the name with which this one references them.
    """
    loaded = _load(text)
    reader = _Reader(loaded, {name: _load(other) for name, other in references.items()})
    kind = reader.type(loaded, "", (), loaded)
    if kind is None:
        kind = reader.any("value")
    return kind, reader.raw if pa.types.is_struct(kind) else [path or "value" for path in reader.raw]


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        message = "JSON Schema is not valid JSON"
        raise DefiniteError(message, "Register a valid JSON Schema.") from error


class _Reader:
    def __init__(self, root: Any, others: Mapping[str, Any]) -> None:
        self._root = root
        self._others = others
        self.raw: list[str] = []

    def any(self, path: str) -> pa.DataType:
        self.raw.append(path)
        return pa.string()

    def type(self, schema: Any, path: str, above: tuple[int, ...], document: Any) -> pa.DataType | None:
        """Return the type that a schema describes; None if it specifies none."""
        if not isinstance(schema, dict):
            return None
        if id(schema) in above:
            message = f"JSON Schema is recursive at {path!r}, which columns do not support"
            raise DefiniteError(message, "Specify the columns (schema = 'id BIGINT, …'), or use FORMAT TEXT.")
        within = (*above, id(schema))
        if "$ref" in schema:
            target, document = self._target(str(schema["$ref"]), document)
            return self.type(target, path, within, document)
        for branches in _BRANCHES:
            if isinstance(schema.get(branches), list):
                candidates = [
                    one for one in schema[branches] if not (isinstance(one, dict) and one.get("type") == "null")
                ]
                return self.type(candidates[0], path, within, document) if len(candidates) == 1 else None
        return self._plain(schema, path, within, document)

    def _plain(self, schema: dict[str, Any], path: str, above: tuple[int, ...], document: Any) -> pa.DataType | None:
        kinds = schema.get("type", "object" if "properties" in schema else None)
        candidates = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind != "null"]
        if len(candidates) != 1:
            return None
        match candidates[0]:
            case "object":
                return self._object(schema, path, above, document)
            case "array":
                item = f"{path}[]"
                kind = self.type(schema.get("items"), item, above, document)
                return pa.list_(pa.field("element", kind if kind is not None else self.any(item)))
        return _SCALARS.get(str(candidates[0]))

    def _object(self, schema: dict[str, Any], path: str, above: tuple[int, ...], document: Any) -> pa.DataType | None:
        if isinstance(properties := schema.get("properties"), dict) and properties:
            return pa.struct([pa.field(n, self._below(one, path, n, above, document)) for n, one in properties.items()])
        if isinstance(more := schema.get("additionalProperties"), dict):
            value = self._below(more, path, "value", above, document)
            return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))
        return None

    def _below(self, schema: Any, path: str, name: str, above: tuple[int, ...], document: Any) -> pa.DataType:
        below = f"{path}.{name}" if path else name
        kind = self.type(schema, below, above, document)
        return kind if kind is not None else self.any(below)

    def _target(self, reference: str, document: Any) -> tuple[Any, Any]:
        name, _, pointer = reference.partition("#")
        if name:
            document = self._others.get(name)
        found = document
        for step in filter(None, pointer.split("/")):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, dict) else None
        if found is None:
            message = f"JSON Schema references {reference!r}, which does not exist"
            raise DefiniteError(message, "Register the schema with all its references.")
        return found, document
