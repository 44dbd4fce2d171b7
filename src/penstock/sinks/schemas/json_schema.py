"""JSON Schemas (draft 7) of Arrow fields, for the JSON that `penstock.formats.json.encoder` writes.

A nullable field may also be null, as Confluent's serializer describes it (``oneOf``); other fields are required.
Objects have no other properties than these: then a schema with a new column, which is nullable, reads all earlier
messages (compatibility BACKWARD). Schemas of Kafka Connect keep their names and parameters, with the property names of
Confluent's JsonSchemaConverter.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from penstock.sinks.schemas.connect import connect_metadata, physical_field, unsupported_type
from penstock.sinks.schemas.nested_values import is_list

__all__ = ["json_schema", "json_schema_text"]

_DRAFT = "http://json-schema.org/draft-07/schema#"
_PLAIN = {
    pa.bool_(): "boolean",
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.int64()), "integer"),
    **dict.fromkeys((pa.float32(), pa.float64()), "number"),
    **dict.fromkeys((pa.string(), pa.large_string(), pa.binary(), pa.large_binary()), "string"),
}
_BYTES = (pa.binary(), pa.large_binary())


def json_schema_text(record: pa.Field) -> str:
    """Return the schema of a record as JSON."""
    return json.dumps(json_schema(record), ensure_ascii=False, separators=(",", ":"))


def json_schema(record: pa.Field) -> dict[str, Any]:
    """Return the schema of a field of structs, whose name is the title."""
    field = physical_field(record)
    written = {"$schema": _DRAFT, "title": connect_metadata(record).name or record.name}
    return {**written, **_type(field), **_properties(field)}


def _nullable(field: pa.Field) -> dict[str, Any]:
    written = {**_type(field), **_properties(field)}
    return {"oneOf": [{"type": "null"}, written]} if field.nullable else written


def _type(field: pa.Field) -> dict[str, Any]:
    kind = field.type
    if pa.types.is_struct(kind):
        required = [one.name for one in kind if not one.nullable]
        return {
            "type": "object",
            "properties": {one.name: _nullable(one) for one in kind},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _nullable(kind.item_field)}
    if is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field)}
    if pa.types.is_decimal(kind):
        return {"type": "number"}
    if pa.types.is_timestamp(kind):
        return {"type": "string", **({"format": "date-time"} if kind.tz else {})}
    if pa.types.is_date32(kind):
        return {"type": "string", "format": "date"}
    if kind not in _PLAIN:
        raise unsupported_type(field, "a JSON Schema")
    return {"type": _PLAIN[kind], **({"contentEncoding": "base64"} if kind in _BYTES else {})}


def _properties(field: pa.Field) -> dict[str, Any]:
    metadata = connect_metadata(field)
    found = {
        "title": metadata.name or None,
        "connect.version": metadata.version,
        "connect.parameters": dict(metadata.parameters) or None,
        "default": metadata.default,
    }
    return {name: value for name, value in found.items() if value is not None}
