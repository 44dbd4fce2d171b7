"""Column types of Avro types.

| Avro | column |
|---|---|
| boolean, int, long, float, double, string, bytes | BOOLEAN, INT, BIGINT, FLOAT, DOUBLE, STRING, BINARY |
| record, array, map | STRUCT, ARRAY, MAP |
| enum | STRING |
| fixed, duration, a uuid in 16 bytes | BINARY |
| decimal of up to 38 digits | DECIMAL |
| decimal of more digits | BINARY: the unscaled value, as written |
| date | DATE |
| timestamp-millis, timestamp-micros | TIMESTAMP |
| local-timestamp-millis, local-timestamp-micros | TIMESTAMP_NTZ |
| time-millis; time-micros, timestamp-nanos, local-timestamp-nanos | INT; BIGINT: the number, as written |
| uuid as text | STRING |
| union of null and one other type | that type, or null |
| union of several types | STRUCT with a field per member, of which one is not null |

A schema that is not a record becomes a struct with one column, ``value``. Recursive schemas are not supported. For
logical types of Kafka Connect in an Avro schema see `penstock.formats.logical_types`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.avro.schema import AvroType
from penstock.formats.format import LogicalType
from penstock.formats.logical_types import ITEM

__all__ = ["avro_columns", "avro_logical_types", "column_type", "is_wrapped", "member_name", "members"]

_MAX_DIGITS = 38

_PLAIN = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def avro_columns(schema: AvroType) -> pa.StructType:
    """Return the columns of messages with this schema."""
    kind = column_type(schema)
    return pa.struct([pa.field("value", kind)]) if is_wrapped(schema) else kind


def is_wrapped(schema: AvroType) -> bool:
    """Return whether the schema is not a record, so that its value gets a column of its own."""
    return [member.kind for member in members(schema)] != ["record"]


def members(schema: AvroType) -> list[AvroType]:
    """Return the members of a union other than null; for another type, the type itself."""
    if schema.kind != "union":
        return [schema]
    return [branch for branch in schema.branches if branch.kind != "null"]


def member_name(member: AvroType) -> str:
    """Return the column name of a union's member: its name or, without one, its type."""
    return member.simple_name or member.kind


def column_type(schema: AvroType, above: tuple[AvroType, ...] = ()) -> pa.DataType:
    """Return the column type of an Avro type; `above` are the enclosing records."""
    if schema.kind == "union":
        return _union(schema, above)
    if schema.logical == "decimal" and schema.precision <= _MAX_DIGITS:
        return pa.decimal128(schema.precision, schema.scale)
    if schema.logical in _LOGICAL:
        return _LOGICAL[schema.logical]
    match schema.kind:
        case "record":
            return _record(schema, above)
        case "array":
            return pa.list_(pa.field("element", column_type(schema.inner, above)))
        case "map":
            value = pa.field("value", column_type(schema.inner, above))
            return pa.map_(pa.field("key", pa.string(), nullable=False), value)
    return _PLAIN[schema.kind]


def _record(schema: AvroType, above: tuple[AvroType, ...]) -> pa.DataType:
    if schema in above:
        message = f"Avro record {schema.name} is recursive, which columns do not support"
        raise DefiniteError(message, "Use FORMAT BYTES, or specify a reader schema without the recursive field.")
    if not schema.fields:
        message = f"Avro record {schema.name} has no fields, but a STRUCT column requires at least one"
        raise DefiniteError(message, "Specify a reader schema without this record, or use FORMAT BYTES.")
    return pa.struct([pa.field(one.name, column_type(one.type, (*above, schema))) for one in schema.fields])


def _union(schema: AvroType, above: tuple[AvroType, ...]) -> pa.DataType:
    found = members(schema)
    if len(found) == 1:
        return column_type(found[0], above)
    if not found:
        return _PLAIN["null"]
    return pa.struct([pa.field(member_name(one), column_type(one, above)) for one in found])


def avro_logical_types(schema: AvroType) -> tuple[LogicalType, ...]:
    """Return Connect's logical types by path; the schema was converted to columns before, so it is not recursive."""
    return tuple(_logical_types(schema, ("value",) if is_wrapped(schema) else ()))


def _logical_types(schema: AvroType, path: tuple[str, ...]) -> Iterator[LogicalType]:
    if schema.connect_name:
        yield path, schema.connect_name
    elif schema.kind == "union":
        several = len(members(schema)) > 1
        for member in members(schema):
            yield from _logical_types(member, (*path, member_name(member)) if several else path)
    elif schema.kind == "record":
        for one in schema.fields:
            yield from _logical_types(one.type, (*path, one.name))
    elif schema.kind == "array":
        yield from _logical_types(schema.inner, (*path, ITEM))
