"""Columns of the records that Debezium writes as JSON, around those of the row: given, or told by some messages.

::

    {"before": row │ null, "after": row │ null, "source": {…}, "op": "u", …}         schemas.enable = false
    {"schema": …, "payload": {the same}}                                            schemas.enable = true

What stands around a row is the same whatever the table is, so it is known here. A row is the same before and after: its
columns are told by all that stand in either place, whichever of them a record has. Where a message brings its schema,
that tells the types, also those of columns that are null.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.json.inference import inferred_columns
from penstock.sources.kafka.connect_schema import connect_type

__all__ = ["JsonShape", "has_row", "key_of", "payload_of", "record_of", "shape_of_keys", "shape_of_rows"]

_WRAPPED = {"schema", "payload"}
_TEXTS = ("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table", "file", "gtid")
_NUMBERS = ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "server_id", "pos", "row", "thread")
_SOURCE = pa.struct(
    [*(pa.field(name, pa.string()) for name in _TEXTS), *(pa.field(name, pa.int64()) for name in _NUMBERS)]
)
_TRANSACTION = pa.struct(
    [("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())],
)
_MIXED = "some messages of the sample are {schema, payload}, and others are not"


@dataclass(frozen=True)
class JsonShape:
    """The type of a JSON text, the paths in it that take any value as text, and whether it is a payload."""

    type: pa.DataType
    raw: tuple[str, ...] = ()
    wrapped: bool = False


def record_of(row: JsonShape) -> JsonShape:
    """Return the shape of records whose rows have a shape."""
    fields = [
        *(pa.field(name, row.type) for name in ("before", "after")),
        *(pa.field("source", _SOURCE), pa.field("op", pa.string()), pa.field("ts_ms", pa.int64())),
        pa.field("transaction", _TRANSACTION),
    ]
    raw = tuple(f"{place}.{path}" for place in ("before", "after") for path in row.raw)
    return key_of(JsonShape(pa.struct(fields), raw, row.wrapped))


def key_of(shape: JsonShape) -> JsonShape:
    """Return a shape as it stands in a message: in its payload, where there is one."""
    if not shape.wrapped:
        return shape
    raw = tuple(f"payload.{path}" for path in shape.raw)
    return JsonShape(pa.struct([pa.field("payload", shape.type)]), raw, wrapped=True)


def payload_of(message: bytes | None) -> tuple[Any, Any]:
    """Return what a message says, and the schema that it brings; None for either that it has not."""
    try:
        found = json.loads(message) if message else None
    except (ValueError, RecursionError):
        return None, None
    if isinstance(found, dict) and set(found) == _WRAPPED:
        return found["payload"], found["schema"]
    return found, None


def has_row(message: bytes | None) -> bool:
    """Say whether a message is a record with a row in it."""
    record, _ = payload_of(message)
    return isinstance(record, dict) and any(isinstance(record.get(place), dict) for place in ("before", "after"))


def shape_of_rows(values: Iterable[bytes | None]) -> JsonShape:
    """Return the shape of the rows in records; `DefiniteError` where none of these messages is one."""
    found = [each for each in map(payload_of, values) if isinstance(each[0], dict) and "op" in each[0]]
    rows = [
        record[place] for record, _ in found for place in ("before", "after") if isinstance(record.get(place), dict)
    ]
    if not rows:
        message = "columns cannot be told: no message of the sample is a record of Debezium with a row in it"
        raise DefiniteError(message, "Give the columns of the row: JSON COLUMNS (id bigint, …).")
    schemas = [schema for record, schema in found if record.get("after") or record.get("before")]
    wrapped = _all_wrapped(schemas)
    told = _of_field(schemas[-1], "after") if wrapped else None
    return _shape(told, rows, wrapped)


def shape_of_keys(keys: Iterable[bytes | None]) -> JsonShape:
    """Return the shape of keys that Debezium writes."""
    found = [each for each in map(payload_of, keys) if each[0] is not None]
    if not found:
        message = "columns of keys cannot be told: no message of the sample has a key in JSON"
        raise DefiniteError(message, "Give them: KEY FORMAT JSON COLUMNS (id bigint).")
    wrapped = _all_wrapped([schema for _, schema in found])
    return _shape(found[-1][1] if wrapped else None, [key for key, _ in found], wrapped)


def _shape(schema: Any, values: Iterable[Any], wrapped: bool) -> JsonShape:
    if schema is not None and (told := connect_type(schema)) is not None:
        return JsonShape(told.type, told.raw, wrapped)
    kind, raw = inferred_columns(_texts(values))
    return JsonShape(kind, tuple(raw), wrapped)


def _texts(values: Iterable[Any]) -> Iterator[bytes]:
    return (json.dumps(value).encode() for value in values)


def _all_wrapped(schemas: list[Any]) -> bool:
    wrapped = [schema is not None for schema in schemas]
    if any(wrapped) and not all(wrapped):
        raise DefiniteError(_MIXED, "Give the columns, and SCHEMAS ENABLED where messages have both: JSON COLUMNS (…).")
    return all(wrapped)


def _of_field(schema: Any, name: str) -> Any:
    fields = schema.get("fields") if isinstance(schema, dict) else None
    named = (each for each in fields or () if isinstance(each, dict) and each.get("field") == name)
    return next(named, None)
