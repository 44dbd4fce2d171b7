"""What a base table says of itself in Delta's log: properties that `create` writes, and marks of later commits.

What the commits of a base table say of themselves, as ``userMetadata``: the position, or the chunk of a copy.
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
    "MAPPED",
    "SCHEMA",
    "WINDOW",
    "Copied",
    "State",
    "chunk_in",
    "described_by",
    "encoded",
    "incarnation_of",
    "is_mapped",
    "marked",
    "memory_in",
    "needs_mapping",
    "of_chunk",
    "of_position",
    "position_in",
    "state_of",
]

SCHEMA = "penstock.schema"
WINDOW = "penstock.window"
_INCARNATION = "penstock.incarnation"
_CREATED = "penstock.created"
_GENERATION = "penstock.generation"
_MAPPING = "delta.columnMapping.mode"
MAPPED = {_MAPPING: "name"}
"""Columns have other names in the files than in the table."""
_NEEDS_MAPPING = frozenset(" ,;{}()\n\t=")


class State(NamedTuple):
    """A Delta version, the position that it stands at, and the columns that it has."""

    version: int
    position: Lsn
    schema: TableSchema
    generation: int = 0
    """How often the table had been captured anew when it was copied."""
    memory: str | None = None
    """Of a table that a topic makes: what is to be known of the messages before it (`BaseTable.memory`)."""
    window: str | None = None
    """Of a table that is being copied in chunks: the id of its windows. It shows no position until that has ended."""


def described_by(
    schema: TableSchema, incarnation: str, position: Lsn, properties: Mapping[str, str], generation: int
) -> dict[str, str]:
    """Return the properties of a table that is created at a position; `properties` are those that others want."""
    mine = {
        _INCARNATION: incarnation,
        _CREATED: str(int(position)),
        SCHEMA: encoded(schema),
        _GENERATION: str(generation),
        "penstock.table": str(schema.table),
    }
    return {**_delta_properties(schema), **properties, **mine}


def _delta_properties(schema: TableSchema) -> dict[str, str]:
    found = {"delta.enableDeletionVectors": "true", **(MAPPED if needs_mapping(schema) else {})}
    indexed = indexed_columns(schema.columns, schema.key)
    if indexed > INDEXED_COLUMNS:
        found["delta.dataSkippingNumIndexedCols"] = str(indexed)
    return found


def incarnation_of(snapshot: Any) -> str | None:
    """Return the random id of the table in a snapshot of Delta; None where there is none of ours."""
    found = _option(snapshot.metadata().configuration().get(_INCARNATION))
    return None if found is None else str(found)


def state_of(snapshot: Any) -> State | None:
    """Return version and position, read together; None: no table yet."""
    incarnation = incarnation_of(snapshot)
    if incarnation is None:
        return None
    properties = snapshot.metadata().configuration()
    created, generation = (int(_option(properties.get(name))) for name in (_CREATED, _GENERATION))
    schema = _decoded(str(_option(properties.get(SCHEMA))))
    highest = marked(snapshot, incarnation)
    window = None if highest else _option(properties.get(WINDOW))
    return State(snapshot.version(), Lsn(max(created, highest)), schema, generation, window=window)


def is_mapped(snapshot: Any) -> bool:
    """Whether columns have other names in the files of a table."""
    return _option(snapshot.metadata().configuration().get(_MAPPING)) not in (None, "none")


def needs_mapping(schema: TableSchema) -> bool:
    """Whether a column has a name that Parquet files of Delta may not have."""
    return any(_NEEDS_MAPPING & set(name) for field in schema.columns for name in _names(field))


def _names(field: pa.Field) -> Iterator[str]:
    """Yield the name of a column, and those of the fields in it."""
    yield field.name
    for i in range(field.type.num_fields):
        yield from _names(field.type.field(i))


def encoded(schema: TableSchema) -> str:
    """Return a schema as a property holds it."""
    return base64.b64encode(schema.to_bytes()).decode("ascii")


def _decoded(text: str) -> TableSchema:
    return TableSchema.from_bytes(base64.b64decode(text))


def marked(snapshot: Any, application: str) -> int:
    """Return the highest position that a commit of an application is marked with; 0 for none.

    Delta repeats all marks in the checksum file of a version, which is read at once. Where a crash came between the
    commit and that file, they are found by a job over the whole log.
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


class Copied(NamedTuple):
    """How far the copy of a table in chunks is, by its last chunk."""

    number: int
    rows: int
    size: int
    """In bytes; both of all chunks so far."""
    upto: tuple[str, ...] | None
    """The last key; None: there is none behind it, the copy is whole."""
    high: Lsn


def of_position(incarnation: str, position: Lsn, memory: str | None = None) -> str:
    """Say that the table stands at a position with this commit, and what is to be known to go on from there."""
    told = {"incarnation": incarnation, "position": str(position)}
    return json.dumps({"penstock": told if memory is None else {**told, "memory": memory}})


def memory_in(text: str | None, incarnation: str) -> str | None:
    """Read what is to be known to go on; None for commits that say nothing of it."""
    memory = _mine(text, incarnation).get("memory")
    return None if memory is None else str(memory)


def position_in(text: str | None, incarnation: str) -> Lsn | None:
    """Read the position; None for the commits of others and of earlier incarnations."""
    position = _mine(text, incarnation).get("position")
    return None if position is None else Lsn.parse(position)


def of_chunk(incarnation: str, chunk: Copied) -> str:
    """Say how far a copy is with this commit."""
    told = {"incarnation": incarnation, "chunk": {**chunk._asdict(), "high": str(chunk.high)}}
    return json.dumps({"penstock": told})


def chunk_in(text: str | None, incarnation: str) -> Copied | None:
    """Read the chunk; None for other commits."""
    chunk = _mine(text, incarnation).get("chunk")
    if chunk is None:
        return None
    upto = None if chunk["upto"] is None else tuple(chunk["upto"])
    return Copied(chunk["number"], chunk["rows"], chunk["size"], upto, Lsn.parse(chunk["high"]))


def _mine(text: str | None, incarnation: str) -> dict[str, Any]:
    """Return what we wrote; nothing for what others did, and for other incarnations."""
    try:
        mine = json.loads(text or "")["penstock"]
        return dict(mine) if mine["incarnation"] == incarnation else {}
    except (ValueError, KeyError, TypeError):
        return {}
