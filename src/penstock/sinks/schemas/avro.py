"""Avro schemas of Arrow fields.

| Arrow | Avro |
|---|---|
| BOOLEAN, FLOAT, DOUBLE, STRING, BINARY | boolean, float, double, string, bytes |
| SMALLINT, INT; BIGINT | int; long |
| DECIMAL | bytes, decimal |
| DATE; TIMESTAMP; TIMESTAMP_NTZ | date; timestamp-micros; local-timestamp-micros |
| STRUCT, ARRAY | record, array |
| MAP | map; keys become text |
| a nullable field | a union with null, whose default is null |

A new column is nullable, so a schema with it reads messages without it (compatibility BACKWARD).

A schema of Kafka Connect (`penstock.sinks.schemas.connect`) becomes what Connect's AvroConverter registers: properties
``connect.…`` with everything that Avro has no word for. If the default of an optional field is not null, null is the
second member of its union.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa

from penstock.errors import UsageError
from penstock.sinks.schemas.connect import (
    DECIMAL,
    PRECISION,
    ConnectMetadata,
    connect_metadata,
    is_connect,
    physical_field,
    physical_values,
    unsupported_type,
)
from penstock.sinks.schemas.nested_values import convert_values, converted_field, is_list
from penstock.sinks.schemas.record_names import distinct_names, record_name, valid_full_name, valid_name

__all__ = ["avro_schema", "avro_schema_text", "avro_values"]

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
}
_NARROW = {pa.int8(): "int8", pa.int16(): "int16"}
_DEFAULT_PRECISION = 64
_LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
    DECIMAL: "decimal",
}


def avro_schema_text(record: pa.Field) -> str:
    """Return the schema of a record as JSON."""
    return json.dumps(avro_schema(record), ensure_ascii=False, separators=(",", ":"))


def avro_schema(record: pa.Field) -> dict[str, Any]:
    """Return the schema of a field of structs; its name, or that of its Connect schema, is the name of the record."""
    field = converted_field(physical_field(record), _microseconds, _text)
    schema: dict[str, Any] = _Writer(is_connect(record)).record(field, connect_metadata(record).name or record.name, "")
    return schema


def avro_values(values: pa.Array, record: pa.Field) -> pa.Array:
    """Return values with the column types of the schema."""
    physical = physical_values(values, record)
    return convert_values(physical, record.with_type(physical.type), _microseconds, _text)


def _microseconds(values: pa.Array, _field: pa.Field) -> pa.Array:
    is_other = pa.types.is_timestamp(values.type) and values.type.unit != "us"
    return values.cast(pa.timestamp("us", values.type.tz)) if is_other else values


def _text(keys: pa.Array, _field: pa.Field) -> pa.Array:
    return keys if pa.types.is_string(keys.type) else keys.cast(pa.string())


class _Writer:
    """Writes one schema; a record that occurs again is a reference to its name."""

    def __init__(self, connect: bool) -> None:
        self._connect = connect
        self._defined: dict[str, pa.DataType] = {}

    def record(self, field: pa.Field, name: str, namespace: str) -> Any:
        full_name = valid_full_name(name)
        space, _, simple = full_name.rpartition(".")
        if full_name in self._defined:
            if not self._defined[full_name].equals(field.type, check_metadata=True):
                message = f"two different records have the name {full_name} in the Avro schema"
                raise UsageError(message, "Rename or exclude one of the columns in the sink.")
            return simple if space == namespace else full_name
        self._defined[full_name] = field.type
        if not field.type.num_fields:
            raise unsupported_type(field, "an Avro schema")
        names = distinct_names((one.name for one in field.type), valid_name, "the Avro schema")
        fields = [self._field(one, names[one.name], full_name) for one in field.type]
        within = {} if space == namespace else {"namespace": space}
        written = {"type": "record", "name": simple, **within, "fields": fields}
        return {**written, **self._properties(field, connect_metadata(field))}

    def _field(self, field: pa.Field, name: str, around: str) -> dict[str, Any]:
        default = connect_metadata(field).default if self._connect else None
        kind = self._nullable(field, around)
        if default is not None:
            return {"name": name, "type": kind, "default": _default(field, default)}
        return {"name": name, "type": kind, **({"default": None} if field.nullable else {})}

    def _nullable(self, field: pa.Field, around: str) -> Any:
        kind = self._type(field, around)
        if not field.nullable:
            return kind
        has_default = self._connect and connect_metadata(field).default is not None
        return [kind, "null"] if has_default else ["null", kind]

    def _type(self, field: pa.Field, around: str) -> Any:
        kind, namespace = field.type, around.rpartition(".")[0]
        if pa.types.is_struct(kind):
            return self.record(field, self._record_name(field, around), namespace)
        if is_list(kind):
            return self._with_properties(
                {"type": "array", "items": self._below(field, kind.value_field, around)}, field
            )
        if pa.types.is_map(kind):
            return self._with_properties({"type": "map", "values": self._below(field, kind.item_field, around)}, field)
        written = _scalar(field)
        if self._connect and kind in _NARROW:
            written["connect.type"] = _NARROW[kind]
        written = self._with_properties(written, field)
        return written["type"] if len(written) == 1 else written

    def _below(self, field: pa.Field, inner: pa.Field, around: str) -> Any:
        """Return the type of items or values; a record among them has the name of the field itself."""
        named = inner if is_connect(inner) or record_name(inner) else inner.with_name(field.name)
        return self._nullable(named, around)

    def _record_name(self, field: pa.Field, around: str) -> str:
        if name := connect_metadata(field).name:
            return name
        namespace, _, simple = around.rpartition(".")
        name = record_name(field) or f"{simple}_{valid_name(field.name)}"
        return f"{namespace}.{name}" if namespace else name

    def _with_properties(self, written: dict[str, Any], field: pa.Field) -> dict[str, Any]:
        metadata = connect_metadata(field)
        if not self._connect:
            return written
        logical = _LOGICAL.get(metadata.name)
        added = self._properties(field, metadata) | ({"logicalType": logical} if logical else {})
        return {**written, **added}

    def _properties(self, field: pa.Field, metadata: ConnectMetadata) -> dict[str, Any]:
        """Return Connect's properties of a schema, in the order of AvroConverter."""
        if not self._connect:
            return {}
        found = {
            "connect.doc": metadata.doc or None,
            "connect.version": metadata.version,
            "connect.parameters": dict(metadata.parameters) or None,
            "connect.default": None if metadata.default is None else _default(field, metadata.default),
            "connect.name": metadata.name or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def _scalar(field: pa.Field) -> dict[str, Any]:
    kind, metadata = field.type, connect_metadata(field)
    if metadata.name == DECIMAL:
        precision = int(metadata.parameters.get(PRECISION, _DEFAULT_PRECISION))
        return {"type": "bytes", "scale": int(metadata.parameters["scale"]), "precision": precision}
    if pa.types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if kind not in _PLAIN:
        raise unsupported_type(field, "an Avro schema")
    return {"type": _PLAIN[kind]}


def _default(field: pa.Field, default: Any) -> Any:
    """Return a default as Avro writes it: bytes as characters of the same numbers."""
    is_bytes = pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)
    return base64.b64decode(default).decode("latin-1") if is_bytes else default
