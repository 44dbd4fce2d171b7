"""An Avro schema as JSON text again, complete in itself: every name is defined where it is first used."""

from __future__ import annotations

import json
from typing import Any

from penstock.formats.avro.schema import AvroField, AvroType

__all__ = ["avro_text"]


def avro_text(schema: AvroType) -> str:
    """Write a schema, with all that it refers to, as one text."""
    return json.dumps(_written(schema, set()), ensure_ascii=False)


def _written(schema: AvroType, defined: set[str]) -> Any:
    if schema.name:
        if schema.name in defined:
            return schema.name
        defined.add(schema.name)
    match schema.kind:
        case "union":
            return [_written(branch, defined) for branch in schema.branches]
        case "record":
            fields = [_field(one, defined) for one in schema.fields]
            written = {"type": "record", "name": schema.name, "aliases": list(schema.aliases), "fields": fields}
            return _meant(written, schema)
        case "enum":
            return {"type": "enum", "name": schema.name, "symbols": schema.symbols}
        case "array":
            return {"type": "array", "items": _written(schema.inner, defined)}
        case "map":
            return {"type": "map", "values": _written(schema.inner, defined)}
        case "fixed":
            return _logical({"type": "fixed", "name": schema.name, "size": schema.size}, schema)
    told = schema.logical or schema.meaning
    return _meant(_logical({"type": schema.kind}, schema), schema) if told else schema.kind


def _field(one: AvroField, defined: set[str]) -> dict[str, Any]:
    written = {"name": one.name, "type": _written(one.type, defined), "aliases": list(one.aliases)}
    return written | ({"default": one.default} if one.has_default else {})


def _logical(written: dict[str, Any], schema: AvroType) -> dict[str, Any]:
    if not schema.logical:
        return written
    digits = {"precision": schema.precision, "scale": schema.scale} if schema.logical == "decimal" else {}
    return {**written, "logicalType": schema.logical, **digits}


def _meant(written: dict[str, Any], schema: AvroType) -> dict[str, Any]:
    return {**written, "connect.name": schema.meaning} if schema.meaning else written
