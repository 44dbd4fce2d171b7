"""The state of a base table in Delta's log: table properties written by `create`, and metadata of later commits.

The ``userMetadata`` of a commit holds either the position it reaches or the chunk of an incremental snapshot it adds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.model import TableSchema
from penstock.positions import Lsn
from penstock.tables.parquet_files import INDEXED_COLUMNS, indexed_columns

__all__ = [
    "COLUMN_MAPPING",
    "SCHEMA",
    "WINDOW",
    "ChunkProgress",
    "State",
    "chunk_from",
    "chunk_metadata",
    "encode_schema",
    "incarnation_of",
    "is_mapped",
    "last_txn_version",
    "memory_from",
    "needs_mapping",
    "position_from",
    "position_metadata",
    "state_of",
    "table_properties",
]

SCHEMA = "penstock.schema"
WINDOW = "penstock.window"
_INCARNATION = "penstock.incarnation"
_CREATED = "penstock.created"
_GENERATION = "penstock.generation"
_MAPPING = "delta.columnMapping.mode"
COLUMN_MAPPING = {_MAPPING: "name"}
"""The table property that gives columns other names in files than in the table."""
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


class State(NamedTuple):
    """A Delta version, its position and its columns."""

    version: int
    position: Lsn
    schema: TableSchema
    generation: int = 0
    """How many times the table had been captured again when its snapshot was taken."""
    memory: str | None = None
    """For a table from a topic: the envelope state after the messages it contains (`BaseTable.memory`)."""
    window: str | None = None
    """For a table with an unfinished incremental snapshot: the id of its windows. It exposes no position until then."""


def table_properties(
    schema: TableSchema, incarnation: str, position: Lsn, properties: Mapping[str, str], generation: int
) -> dict[str, str]:
    """Return the properties of a table created at a position; `properties` are additional ones from the caller."""
    mine = {
        _INCARNATION: incarnation,
        _CREATED: str(int(position)),
        SCHEMA: encode_schema(schema),
        _GENERATION: str(generation),
        "penstock.table": str(schema.table),
    }
    return {**_delta_properties(schema), **properties, **mine}


def _delta_properties(schema: TableSchema) -> dict[str, str]:
    found = {"delta.enableDeletionVectors": "true", **(COLUMN_MAPPING if needs_mapping(schema) else {})}
    indexed = indexed_columns(schema.columns, schema.key)
    if indexed > INDEXED_COLUMNS:
        found["delta.dataSkippingNumIndexedCols"] = str(indexed)
    return found


def incarnation_of(snapshot: Any) -> str | None:
    """Return the random id of the table in a Delta snapshot, or None if Penstock did not create it."""
    found = _option(snapshot.metadata().configuration().get(_INCARNATION))
    return None if found is None else str(found)


def state_of(snapshot: Any) -> State | None:
    """Return version and position, read together, or None if there is no table."""
    incarnation = incarnation_of(snapshot)
    if incarnation is None:
        return None
    properties = snapshot.metadata().configuration()
    created, generation = (int(_option(properties.get(name))) for name in (_CREATED, _GENERATION))
    schema = _decoded(str(_option(properties.get(SCHEMA))))
    highest = last_txn_version(snapshot, incarnation)
    window = None if highest else _option(properties.get(WINDOW))
    return State(snapshot.version(), Lsn(max(created, highest)), schema, generation, window=window)


def is_mapped(snapshot: Any) -> bool:
    """Return whether a table has other column names in its files."""
    return _option(snapshot.metadata().configuration().get(_MAPPING)) not in (None, "none")


def needs_mapping(schema: TableSchema) -> bool:
    """Return whether a column has a name that Delta does not allow in Parquet files."""
    return any(_NEEDS_MAPPING & set(name) for field in schema.columns for name in _names(field))


def _names(field: pa.Field) -> Iterator[str]:
    """Yield the name of a column and of all fields nested in it."""
    yield field.name
    for i in range(field.type.num_fields):
        yield from _names(field.type.field(i))


def encode_schema(schema: TableSchema) -> str:
    """Encode a schema as the value of a table property."""
    return base64.b64encode(schema.to_bytes()).decode("ascii")


def _decoded(text: str) -> TableSchema:
    return TableSchema.from_bytes(base64.b64decode(text))


def last_txn_version(snapshot: Any, application: str) -> int:
    """Return the highest ``txn`` version committed for an application, or 0.

    Delta repeats all ``txn`` entries in the checksum file of a version, which is cheap to read. If a crash prevented
    that file from being written after the commit, a job reads the entries from the whole log.
    """
    checksum = _option(snapshot.checksumOpt())
    known = _option(checksum.setTransactions()) if checksum else None
    if known is None:
        found = _option(snapshot.transactions().get(application))
        return int(found or 0)
    marks = (known.apply(i) for i in range(known.size()))
    return max((int(mark.version()) for mark in marks if mark.appId() == application), default=0)


def _option(value: Any) -> Any:
    """Unwrap a Scala Option."""
    return value.get() if value.isDefined() else None


class ChunkProgress(NamedTuple):
    """Progress of an incremental snapshot, as of its last chunk."""

    number: int
    rows: int
    size: int
    """In bytes; both `rows` and `size` count all chunks so far."""
    upto: tuple[str, ...] | None
    """The last key copied; None if the snapshot is complete."""
    high: Lsn


def position_metadata(incarnation: str, position: Lsn, memory: str | None = None) -> str:
    """Return the user metadata of a commit that reaches a position, with the envelope state to resume from."""
    metadata = {"incarnation": incarnation, "position": str(position)}
    return json.dumps({"penstock": metadata if memory is None else {**metadata, "memory": memory}})


def memory_from(text: str | None, incarnation: str) -> str | None:
    """Parse the envelope state in user metadata; None if there is none."""
    memory = _mine(text, incarnation).get("memory")
    return None if memory is None else str(memory)


def position_from(text: str | None, incarnation: str) -> Lsn | None:
    """Parse the position in user metadata; None for commits of other writers and earlier incarnations."""
    position = _mine(text, incarnation).get("position")
    return None if position is None else Lsn.parse(position)


def chunk_metadata(incarnation: str, chunk: ChunkProgress) -> str:
    """Return the user metadata of a commit that adds a chunk of an incremental snapshot."""
    metadata = {"incarnation": incarnation, "chunk": {**chunk._asdict(), "high": str(chunk.high)}}
    return json.dumps({"penstock": metadata})


def chunk_from(text: str | None, incarnation: str) -> ChunkProgress | None:
    """Parse the chunk in user metadata; None for other commits."""
    chunk = _mine(text, incarnation).get("chunk")
    if chunk is None:
        return None
    upto = None if chunk["upto"] is None else tuple(chunk["upto"])
    return ChunkProgress(chunk["number"], chunk["rows"], chunk["size"], upto, Lsn.parse(chunk["high"]))


def _mine(text: str | None, incarnation: str) -> dict[str, Any]:
    """Return the metadata that Penstock wrote; empty for other writers and other incarnations."""
    try:
        mine = json.loads(text or "")["penstock"]
        return dict(mine) if mine["incarnation"] == incarnation else {}
    except (ValueError, KeyError, TypeError):
        return {}
