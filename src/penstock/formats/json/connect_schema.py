"""JSON that Kafka Connect wrote with its schema (``schemas.enable``): each message is ``{schema, payload}``.

The schema of a message says what JSON cannot: which numbers are 32 bits wide, and what logical type a field
has (`penstock.formats.logical_types`). It becomes the columns of ``payload``; of ``schema`` the text is kept, so that a
message with another one is noticed.

| Connect | column |
|---|---|
| boolean, float, double, string | BOOLEAN, FLOAT, DOUBLE, STRING |
| int8, int16, int32; int64 | INT; BIGINT |
| bytes | STRING: base64, as Connect writes it |
| struct, array; map with text as keys | STRUCT, ARRAY; MAP |
| map with other keys, a type that is not known here | STRING: any value, as its JSON text |

Messages that bring their schema, and whose schema has become another one since the columns were settled.

A field that is new is passed over, as in all JSON. But a field that *means* something else now has other values for the
same thing: a time in milliseconds that comes in microseconds would be off by a thousand, and nothing would say so. Such
a message is a problem.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError
from penstock.formats.format import LogicalType
from penstock.formats.logical_types import BASE64, ITEM, NAMES

__all__ = ["ConnectSchema", "checked_schemas", "connect_schema", "logical_types_of"]

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
_MOST_DIGITS = 38
_BEGIN = re.compile(r'\s*\{\s*"schema"\s*:\s*')


@dataclass
class ConnectSchema:
    """What the schema of a message says: the columns, the logical types of some, and the schema as it is written."""

    text: str
    columns: pa.DataType = field(default_factory=pa.null)
    logical_types: list[LogicalType] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)
    places: list[tuple[str, ...]] = field(default_factory=list)
    """Where all fields are, by names from the top."""


def connect_schema(sample: Iterable[bytes]) -> ConnectSchema | None:
    """Return the schema that the last message of a sample has; None where messages have none."""
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
    return None if found is None else _read(found)


def logical_types_of(schema: Any) -> dict[tuple[str, ...], str | None]:
    """Return the logical type of each field of a schema, by its path; None for one that has none."""
    made = ConnectSchema("")
    _type(schema, ("payload",), made)
    return {**dict.fromkeys(made.places), **dict(made.logical_types)}


def _read(message: bytes) -> ConnectSchema:
    schema = json.loads(message.decode())["schema"]
    made = ConnectSchema(_text_of_schema(message), raw=["schema"])
    payload = _type(schema, ("payload",), made)
    made.columns = pa.struct([pa.field("schema", pa.string()), pa.field("payload", payload)])
    return made


def _text_of_schema(message: bytes) -> str:
    """Return the schema just as it stands in the message, which begins with it."""
    text = message.decode()
    begin = _BEGIN.match(text)
    return "" if begin is None else text[begin.end() : json.JSONDecoder().raw_decode(text, begin.end())[1]]


def _type(schema: Any, path: tuple[str, ...], made: ConnectSchema) -> pa.DataType:
    if not isinstance(schema, dict):
        message = f"the schema in a message does not say what {'.'.join(path)} is"
        raise DefiniteError(message, "Give the columns (schema = 'payload STRUCT<…>'), or take the topic as TEXT.")
    made.places.append(path)
    kind, name = schema.get("type"), schema.get("name")
    if kind == "bytes":
        made.logical_types.append((path, _decimal(schema.get("parameters")) if name == _DECIMAL else BASE64))
    elif name in NAMES:
        made.logical_types.append((path, str(name)))
    match kind:
        case "struct":
            fields = schema.get("fields") or []
            return pa.struct([pa.field(str(f["field"]), _type(f, (*path, str(f["field"])), made)) for f in fields])
        case "array":
            return pa.list_(pa.field("element", _type(schema.get("items"), (*path, ITEM), made)))
        case "map" if isinstance(schema.get("keys"), dict) and schema["keys"].get("type") == "string":
            value = _type(schema.get("values"), (*path, "value"), made)
            return pa.map_(pa.field("key", pa.string(), nullable=False), pa.field("value", value))
    if kind not in _SCALARS:
        made.raw.append(_raw_path(path))
        return pa.string()
    return _SCALARS[str(kind)]


def _raw_path(path: tuple[str, ...]) -> str:
    """Return a place the way `raw` of a resolved format names it."""
    return ".".join(path).replace(f".{ITEM}", ITEM)


def _decimal(parameters: Any) -> str:
    """Return the logical type of a decimal; without digits that a DECIMAL can hold, the bytes are all that is known."""
    told = parameters if isinstance(parameters, dict) else {}
    digits, scale = str(told.get("connect.decimal.precision", "")), str(told.get("scale", ""))
    if digits.isdigit() and scale.isdigit() and int(scale) <= int(digits) <= _MOST_DIGITS:
        return f"{_DECIMAL}({int(digits)},{int(scale)})"
    return BASE64


_PROBLEM = (
    "JSON: its schema has another logical type for {} than the one that the columns were made by: read the topic "
    "again from the start, or let the column be written as before"
)


def checked_schemas(rows: pa.StructArray, problems: pa.Array, known: str) -> tuple[pa.StructArray, pa.Array]:
    """Return rows and problems of messages that bring a ``schema``; `known` is the one that columns are made by."""
    texts = rows.field("schema")
    told = {text: changed for text in pc.unique(texts).to_pylist() if text and (changed := _changed(text, known))}
    if not told:
        return rows, problems
    foreign = pc.index_in(texts, pa.array(list(told), pa.string()))
    said = pa.array([_PROBLEM.format(changed) for changed in told.values()])
    problems = pc.coalesce(problems, said.take(foreign))
    fields = [rows.field(i) for i in range(rows.type.num_fields)]
    gone = pc.or_(pc.is_null(rows), pc.is_valid(foreign))
    return pa.StructArray.from_arrays(fields, fields=list(rows.type), mask=gone), problems


@lru_cache(maxsize=256)
def _changed(text: str, known: str) -> str | None:
    """Return a field that means another thing in one schema than in the other; None where there is none."""
    if text == known:
        return None
    now, before = _logical_types(text), _logical_types(known)
    return next((".".join(path) for path in before if path in now and now[path] != before[path]), None)


def _logical_types(text: str) -> Mapping[tuple[str, ...], str | None]:
    try:
        return logical_types_of(json.loads(text))
    except (ValueError, RecursionError, DefiniteError):
        return {}
