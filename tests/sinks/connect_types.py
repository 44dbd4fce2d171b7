"""Arrow types of schemas that Kafka Connect writes into JSON messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from penstock.sinks.schemas.connect import ConnectMetadata, connect_field

_TYPES = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}


def arrow_field(schema: dict[str, Any]) -> pa.Field:
    """Return the field of a Connect schema; an outermost one has no name."""
    metadata = ConnectMetadata(
        schema.get("name", ""),
        schema.get("version"),
        schema.get("parameters", {}),
        schema.get("default"),
        schema.get("doc", ""),
    )
    return connect_field(pa.field(schema.get("field", "item"), _type(schema), schema["optional"]), metadata)


def _type(schema: dict[str, Any]) -> pa.DataType:
    match schema["type"]:
        case "struct":
            return pa.struct([arrow_field(one) for one in schema["fields"]])
        case "array":
            return pa.list_(arrow_field(schema["items"]))
        case "map":
            return pa.map_(arrow_field(schema["keys"]), arrow_field(schema["values"]))
    return _TYPES[schema["type"]]
