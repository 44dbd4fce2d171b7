"""Schemas of Kafka Connect, as they stand beside the payload of a JSON message: the columns that they describe.

``{"type": "struct", "fields": [{"field": "id", "type": "int32", "optional": false}, …]}``. Bytes are text in base64 in
JSON, and stay so; a map whose keys are no text is an array of pairs, and taken as its JSON text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["ConnectType", "connect_type"]

_SCALARS = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "string": pa.string(),
    "bytes": pa.string(),
}


@dataclass(frozen=True)
class ConnectType:
    """A type, and the paths in it that take any value as its JSON text."""

    type: pa.DataType
    raw: tuple[str, ...]


def connect_type(schema: Any) -> ConnectType | None:
    """Return the type that a schema describes; None where it is none of Connect's."""
    raw: list[str] = []
    found = _type(schema, "", raw)
    return None if found is None else ConnectType(found, tuple(raw))


def _type(schema: Any, path: str, raw: list[str]) -> pa.DataType | None:
    if not isinstance(schema, dict):
        return None
    match schema.get("type"):
        case "struct":
            return _struct(schema.get("fields"), path, raw)
        case "array":
            item = _type(schema.get("items"), f"{path}[]", raw)
            return None if item is None else pa.list_(pa.field("element", item))
        case "map":
            return _map(schema, path, raw)
    return _SCALARS.get(str(schema.get("type")))


def _struct(fields: Any, path: str, raw: list[str]) -> pa.DataType | None:
    if not isinstance(fields, list) or not fields:
        return None
    found = []
    for field in fields:
        name = field.get("field") if isinstance(field, dict) else None
        kind = None if name is None else _type(field, f"{path}.{name}" if path else str(name), raw)
        if kind is None:
            return None
        found.append(pa.field(str(name), kind))
    return pa.struct(found)


def _map(schema: dict[str, Any], path: str, raw: list[str]) -> pa.DataType | None:
    if _type(schema.get("keys"), path, raw) != pa.string():
        raw.append(path)
        return pa.string()
    value = _type(schema.get("values"), f"{path}.value", raw)
    return None if value is None else pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))
