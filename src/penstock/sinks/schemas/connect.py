"""Schemas of Kafka Connect: the metadata of Arrow fields, and the schema that JsonConverter writes into each message.

Connect has few types; what a value means is a logical type: the name of a schema, with a version and parameters. Arrow
fields carry these as metadata:

| metadata | content |
|---|---|
| ``connect.name`` | the name of a logical type, or of the record of a struct |
| ``connect.version`` | an integer |
| ``connect.parameters`` | a JSON object of strings |
| ``connect.default`` | the default value, as JSON |
| ``connect.doc`` | a description |

Values of a field with a logical type may have an Arrow type that means the same; `physical_values` converts them:

| Arrow | logical type | Connect |
|---|---|---|
| DECIMAL | Decimal | bytes |
| DATE | Date, of Connect or Debezium | int32 |
| TIMESTAMP, TIMESTAMP_NTZ | MicroTimestamp; Timestamp | int64: microseconds; milliseconds |
| TIMESTAMP | ZonedTimestamp | string |

`as_connect` gives these logical types to fields without metadata, so that messages of any envelope have a schema which
Connect, and our own decoder, reads back as the same values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.formats.decimal_bytes import decimal_bytes
from penstock.sinks.schemas.nested_values import convert_values, converted_field, is_list
from penstock.sinks.schemas.record_names import CONNECT_NAME, CONNECT_VERSION

__all__ = [
    "DECIMAL",
    "PRECISION",
    "ConnectMetadata",
    "as_connect",
    "connect_field",
    "connect_metadata",
    "connect_schema_object",
    "connect_schema_text",
    "is_connect",
    "physical_field",
    "physical_values",
    "unsupported_type",
]

DECIMAL = "org.apache.kafka.connect.data.Decimal"
PRECISION = "connect.decimal.precision"
_PARAMETERS, _DEFAULT, _DOC = b"connect.parameters", b"connect.default", b"connect.doc"
_DATES = ("io.debezium.time.Date", "org.apache.kafka.connect.data.Date")
_MICROS, _ZONED = "io.debezium.time.MicroTimestamp", "io.debezium.time.ZonedTimestamp"
_MILLIS = ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp")
_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
}


@dataclass(frozen=True)
class ConnectMetadata:
    """What Arrow types cannot say about a Connect schema."""

    name: str = ""
    version: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    default: Any = None
    """The default as a JSON value; bytes are base64. None for no default."""
    doc: str = ""


def connect_metadata(field: pa.Field) -> ConnectMetadata:
    """Return Connect's metadata of a field."""
    held = field.metadata or {}
    return ConnectMetadata(
        held.get(CONNECT_NAME, b"").decode(),
        int(held[CONNECT_VERSION]) if CONNECT_VERSION in held else None,
        json.loads(held[_PARAMETERS]) if _PARAMETERS in held else {},
        json.loads(held[_DEFAULT]) if _DEFAULT in held else None,
        held.get(_DOC, b"").decode(),
    )


def connect_field(field: pa.Field, metadata: ConnectMetadata) -> pa.Field:
    """Return a field with Connect's metadata in addition to its own."""
    added: dict[bytes, str] = {CONNECT_NAME: metadata.name} if metadata.name else {}
    if metadata.version is not None:
        added[CONNECT_VERSION] = str(metadata.version)
    if metadata.parameters:
        added[_PARAMETERS] = json.dumps(dict(metadata.parameters))
    if metadata.default is not None:
        added[_DEFAULT] = json.dumps(metadata.default)
    if metadata.doc:
        added[_DOC] = metadata.doc
    return field.with_metadata({**(field.metadata or {}), **added}) if added else field


def is_connect(field: pa.Field) -> bool:
    """Return whether a field has a named schema of Connect."""
    return CONNECT_NAME in (field.metadata or {})


def unsupported_type(field: pa.Field, schema: str) -> UsageError:
    """Return the error for a column whose type a kind of schema cannot represent."""
    message = f"column {field.name!r} has type {field.type}, which {schema} cannot represent"
    return UsageError(message, "Exclude the column from the sink.")


# -- values ------------------------------------------------------------------------------------------------------------


def physical_field(field: pa.Field) -> pa.Field:
    """Return a field with the Arrow type of `physical_values`."""
    return converted_field(field, _physical)


def physical_values(values: pa.Array, field: pa.Field) -> pa.Array:
    """Return values of which those with a logical type have the Arrow type of the Connect schema.

    Values in dictionaries stay there: encoders write each of them once.
    """
    return convert_values(values, field, _physical)


def _physical(values: pa.Array, field: pa.Field) -> pa.Array:
    kind, name = values.type, connect_metadata(field).name
    if pa.types.is_decimal128(kind) and name == DECIMAL:
        return _only_valid(decimal_bytes(values), values)
    if pa.types.is_date32(kind) and name in _DATES:
        return values.cast(pa.int32())
    if pa.types.is_timestamp(kind) and name == _MICROS:
        return _micros(values)
    if pa.types.is_timestamp(kind) and name in _MILLIS:
        return _only_valid(pa.array(pc.fill_null(_micros(values), 0).to_numpy() // 1000), values)
    if pa.types.is_timestamp(kind) and name == _ZONED:
        texts = values.cast(pa.timestamp("us", "UTC")).cast(pa.string())
        return pc.replace_substring(texts, " ", "T", max_replacements=1)
    return values


def _micros(values: pa.Array) -> pa.Array:
    return values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64())


def _only_valid(converted: pa.Array, values: pa.Array) -> pa.Array:
    """Return converted values; null where `values` are null."""
    if not values.null_count:
        return converted
    return pc.if_else(values.is_valid(), converted, pa.scalar(None, converted.type))


def as_connect(field: pa.Field) -> pa.Field:
    """Return a field with logical types for all values that Connect has no type for."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([as_connect(one) for one in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(kind.key_field, as_connect(kind.item_field)))
    if is_list(kind):
        return field.with_type(pa.list_(as_connect(kind.value_field)))
    return field if is_connect(field) else connect_field(field, _logical_type(kind))


def _logical_type(kind: pa.DataType) -> ConnectMetadata:
    if pa.types.is_decimal128(kind):
        return ConnectMetadata(DECIMAL, 1, {"scale": str(kind.scale), PRECISION: str(kind.precision)})
    if pa.types.is_date32(kind):
        return ConnectMetadata(_DATES[0], 1)
    if pa.types.is_timestamp(kind):
        return ConnectMetadata(_ZONED if kind.tz else _MICROS, 1)
    return ConnectMetadata()


# -- schemas -----------------------------------------------------------------------------------------------------------


def connect_schema_text(field: pa.Field) -> str:
    """Return the schema of a record as JsonConverter writes it."""
    return json.dumps(connect_schema_object(field), ensure_ascii=False, separators=(",", ":"))


def connect_schema_object(field: pa.Field) -> dict[str, Any]:
    """Return the schema of a field, with physical types; the order of properties is that of JsonConverter."""
    metadata = connect_metadata(field)
    written = {**_type(field), "optional": field.nullable}
    added = {"name": metadata.name, "version": metadata.version, "doc": metadata.doc}
    written |= {name: value for name, value in added.items() if value not in ("", None)}
    if metadata.parameters:
        written["parameters"] = dict(metadata.parameters)
    if metadata.default is not None:
        written["default"] = metadata.default
    return written


def _type(field: pa.Field) -> dict[str, Any]:
    kind = field.type
    if pa.types.is_struct(kind):
        return {"type": "struct", "fields": [{**connect_schema_object(one), "field": one.name} for one in kind]}
    if pa.types.is_map(kind):
        keys, values = connect_schema_object(kind.key_field), connect_schema_object(kind.item_field)
        return {"type": "map", "keys": keys, "values": values}
    if is_list(kind):
        return {"type": "array", "items": connect_schema_object(kind.value_field)}
    if kind not in _TYPES:
        raise unsupported_type(field, "a schema of Kafka Connect")
    return {"type": _TYPES[kind]}
