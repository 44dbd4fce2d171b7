"""JSON that Kafka Connect writes with its schema (``schemas.enable``): each message is ``{schema, payload}``.

The schema of a message tells what JSON does not: the width of integers, and the logical type of a field
(`penstock.formats.logical_types`). It determines the columns of ``payload``. The text of ``schema`` is stored, to
detect messages with another schema.

| Connect | column |
|---|---|
| boolean, float, double, string | BOOLEAN, FLOAT, DOUBLE, STRING |
| int8, int16, int32; int64 | INT; BIGINT |
| bytes | STRING: base64, as Connect writes it |
| struct, array; map with text as keys | STRUCT, ARRAY; MAP |
| map with other keys, an unknown type | STRING: any value, as its JSON text |

The schema of later messages can differ from the one that determined the columns. A new field is ignored, as in all
JSON. But a field with another logical type has other values for the same thing: a time in milliseconds that arrives in
microseconds would be wrong by a factor of 1000, without notice. Such a message is rejected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.formats.format import LogicalType
from penstock.formats.logical_types import BASE64, ITEM, NAMES

__all__ = [
    "ConnectSchema",
    "connect_schema",
    "logical_types_of",
    "merge_schema_texts",
    "reject_changed_schemas",
    "schema_text",
]

_SCALARS = {
    "boolean": pa.bool_(),
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.string(),
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_MAX_DIGITS = 38
_BEGIN = re.compile(r'\s*\{\s*"schema"\s*:\s*')


@dataclass
class ConnectSchema:
    """A parsed Connect schema: the columns, the logical types of fields, and the text of the schema."""

    text: str
    columns: pa.DataType = field(default_factory=pa.null)
    logical_types: list[LogicalType] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    places: list[tuple[str, ...]] = field(default_factory=list)
    """The paths of all fields, as names from the root."""


def connect_schema(sample: Iterable[bytes]) -> ConnectSchema | None:
    """Return the schema of the last message of a sample; None if messages have no schema."""
    found = None
    for message in sample:
        try:
            loaded = json.loads(message.decode())
        except (ValueError, RecursionError):
            continue
        if not isinstance(loaded, dict) or loaded.keys() != {"schema", "payload"}:
            return None
        if isinstance(loaded["schema"], dict):
            found = message
    return None if found is None else _parse(found)


def logical_types_of(schema: Any) -> dict[tuple[str, ...], str | None]:
    """Return the logical type of each field of a schema, by path; None for a field without one."""
    result = ConnectSchema("")
    _type(schema, ("payload",), result)
    return {**dict.fromkeys(result.places), **dict(result.logical_types)}


def _parse(message: bytes) -> ConnectSchema:
    schema = json.loads(message.decode())["schema"]
    result = ConnectSchema(schema_text(message), raw=["schema"])
    payload = _type(schema, ("payload",), result)
    result.columns = pa.struct([pa.field("schema", pa.string()), pa.field("payload", payload)])
    return result


def schema_text(message: bytes) -> str:
    """Return the text of the schema, with which the message begins, exactly as written."""
    text = message.decode()
    begin = _BEGIN.match(text)
    return "" if begin is None else text[begin.end() : json.JSONDecoder().raw_decode(text, begin.end())[1]]


def merge_schema_texts(ours: str, theirs: str, places: Iterable[tuple[str, ...]], added: Collection[str]) -> str:
    """Return our schema with these fields of theirs, at the places that begin with ``payload``."""
    merged, other = json.loads(ours), json.loads(theirs)
    for place in places:
        into, found = _struct_at(merged, place[1:]), _struct_at(other, place[1:])
        if into is None or found is None:
            continue
        known = {field.get("field") for field in into["fields"]}
        new = [field for field in found["fields"] if field.get("field") in added and field.get("field") not in known]
        into["fields"] = [*into["fields"], *new]
    return json.dumps(merged)


def _struct_at(schema: Any, path: Iterable[str]) -> Any:
    for name in path:
        fields = schema.get("fields") or () if isinstance(schema, dict) else ()
        schema = next((field for field in fields if field.get("field") == name), None)
    return schema if isinstance(schema, dict) and isinstance(schema.get("fields"), list) else None


def _type(schema: Any, path: tuple[str, ...], result: ConnectSchema) -> pa.DataType:
    if not isinstance(schema, dict):
        message = f"schema in a message has no type for {'.'.join(path)}"
        raise DefiniteError(message, "Specify the columns (schema = 'payload STRUCT<…>'), or use FORMAT TEXT.")
    result.places.append(path)
    kind, name = schema.get("type"), schema.get("name")
    if kind == "bytes":
        result.logical_types.append((path, _decimal(schema.get("parameters")) if name == _DECIMAL else BASE64))
    elif name in NAMES:
        result.logical_types.append((path, str(name)))
    match kind:
        case "struct":
            fields = schema.get("fields") or []
            return pa.struct([pa.field(str(f["field"]), _type(f, (*path, str(f["field"])), result)) for f in fields])
        case "array":
            return pa.list_(pa.field("element", _type(schema.get("items"), (*path, ITEM), result)))
        case "map" if isinstance(schema.get("keys"), dict) and schema["keys"].get("type") == "string":
            value = _type(schema.get("values"), (*path, "value"), result)
            return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))
    if kind not in _SCALARS:
        result.raw.append(_raw_path(path))
        return pa.string()
    return _SCALARS[str(kind)]


def _raw_path(path: tuple[str, ...]) -> str:
    """Return a path in the notation of `ResolvedFormat.raw`."""
    return ".".join(path).replace(f".{ITEM}", ITEM)


def _decimal(parameters: Any) -> str:
    """Return the logical type of a decimal; one that does not fit a DECIMAL is kept as bytes."""
    given = parameters if isinstance(parameters, dict) else {}
    digits, scale = str(given.get("connect.decimal.precision", "")), str(given.get("scale", ""))
    if digits.isdigit() and scale.isdigit() and int(scale) <= int(digits) <= _MAX_DIGITS:
        return f"{_DECIMAL}({int(digits)},{int(scale)})"
    return BASE64


_PROBLEM = (
    "JSON: schema of the message has another logical type for {} than the table: re-read the topic from the "
    "beginning, or restore the logical type in the producer"
)


def reject_changed_schemas(rows: pa.StructArray, problems: pa.Array, expected: str) -> tuple[pa.StructArray, pa.Array]:
    """Reject messages whose ``schema`` gives a field another logical type than the `expected` schema."""
    texts = rows.field("schema")
    changes = {
        text: field_name
        for text in pc.unique(texts).to_pylist()
        if text and (field_name := _changed_field(text, expected))
    }
    if not changes:
        return rows, problems
    changed_index = pc.index_in(texts, pa.array(list(changes), pa.string()))
    messages = pa.array([_PROBLEM.format(field_name) for field_name in changes.values()])
    problems = pc.coalesce(problems, messages.take(changed_index))
    fields = [rows.field(i) for i in range(rows.type.num_fields)]
    rejected = pc.or_(pc.is_null(rows), pc.is_valid(changed_index))
    return pa.StructArray.from_arrays(fields, fields=list(rows.type), mask=rejected), problems


@lru_cache(maxsize=256)
def _changed_field(text: str, expected: str) -> str | None:
    """Return a field whose logical type differs between the two schemas; None if there is none."""
    if text == expected:
        return None
    now, before = _logical_types(text), _logical_types(expected)
    return next((".".join(path) for path in before if path in now and now[path] != before[path]), None)


def _logical_types(text: str) -> Mapping[tuple[str, ...], str | None]:
    try:
        return logical_types_of(json.loads(text))
    except (ValueError, RecursionError, DefiniteError):
        return {}
