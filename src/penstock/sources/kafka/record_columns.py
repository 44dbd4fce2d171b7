"""Columns of the records that Debezium writes as JSON, around those of the row: given, or told by some messages.

::

    {"before": row │ null, "after": row │ null, "source": {…}, "op": "u", …}         schemas.enable = false
    {"schema": …, "payload": {the same}}                                            schemas.enable = true

What stands around a row is the same whatever the table is, so it is known here, also where no message of a sample has
it. A row is the same before and after: its columns are told by all that stand in either place. Messages that bring
their schema are not looked at here: that says it all (`penstock.formats.json.connect_schema`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.formats.json.inference import inferred_columns

__all__ = ["JsonShape", "has_row", "in_payload", "record_of", "rows_of"]

_WRAPPED = {"schema", "payload"}
_TEXTS = ("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table", "file", "gtid")
_NUMBERS = ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "server_id", "pos", "row", "thread")
_SOURCE = pa.struct(
    [*(pa.field(name, pa.string()) for name in _TEXTS), *(pa.field(name, pa.int64()) for name in _NUMBERS)]
)
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64()), ("data_collection_order", pa.int64())])
_PLACES = ("before", "after")


@dataclass(frozen=True)
class JsonShape:
    """The type of a JSON text, and the paths in it that take any value as text."""

    type: pa.DataType
    raw: tuple[str, ...] = ()


def record_of(row: JsonShape) -> JsonShape:
    """Return the shape of records whose rows have a shape."""
    around = [("source", _SOURCE), ("op", pa.string()), ("ts_ms", pa.int64()), ("transaction", _TRANSACTION)]
    fields = [*((place, row.type) for place in _PLACES), *around]
    return JsonShape(pa.struct(fields), tuple(f"{place}.{path}" for place in _PLACES for path in row.raw))


def in_payload(shape: JsonShape) -> JsonShape:
    """Return the shape of messages that have another one as their payload."""
    return JsonShape(pa.struct([("payload", shape.type)]), tuple(f"payload.{path}" for path in shape.raw))


def has_row(message: bytes | None) -> bool:
    """Say whether a message is a record with a row in it."""
    return bool(_rows(_record(message)))


def rows_of(values: Iterable[bytes]) -> JsonShape:
    """Return the shape of the rows in records; `DefiniteError` where none of these messages is one."""
    rows = [row for value in values for row in _rows(_record(value))]
    if not rows:
        message = "columns cannot be told: no message of the sample is a record of Debezium with a row in it"
        raise DefiniteError(message, "Give the columns of the row: JSON COLUMNS (id bigint, …).")
    kind, raw = inferred_columns(json.dumps(row).encode() for row in rows)
    return JsonShape(kind, tuple(raw))


def _record(message: bytes | None) -> Any:
    """Return what a message says, out of its payload where it has one; None where it is no JSON."""
    try:
        found = json.loads(message) if message else None
    except (ValueError, RecursionError):
        return None
    return found["payload"] if isinstance(found, dict) and found.keys() == _WRAPPED else found


def _rows(record: Any) -> list[dict[str, Any]]:
    if not isinstance(record, dict) or "op" not in record:
        return []
    return [record[place] for place in _PLACES if isinstance(record.get(place), dict)]
