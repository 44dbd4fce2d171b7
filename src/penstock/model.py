"""The data model that all layers share: tables, their schemas, and the row images that make up a change.

An *image* is one row in a change. An INSERT has one (the new row), a DELETE has one (the old row, or only its key), an
UPDATE has the new row and, if the replica identity provides it, the old row or its key before it. The change log
stores images; the formats that users read (`changes`, `updates`) are derived from them on reading.
"""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass
from typing import NamedTuple, Self

import pyarrow as pa

__all__ = [
    "RESERVED",
    "SHARD",
    "Image",
    "IncludedColumn",
    "TableName",
    "TableSchema",
    "copied_images",
    "image_schema",
    "missing_value",
    "with_missing",
]

RESERVED = frozenset({"_gone", "_unchanged", "_from", "_count"})
"""Names of the columns that Penstock adds to those of a table; a table must not use them, in any case."""

SHARD = "penstock_shard"
"""The column that identifies the shard of a row, and is part of the key; a table of a shard must not have it."""


class IncludedColumn(NamedTuple):
    """Message metadata (``key``, ``partition``, ``offset``, ``timestamp``, ``headers``) included as a column."""

    what: str
    name: str


class Image(enum.IntEnum):
    """The kind of an image. Within one change, the old image precedes the new one; the numbers have the same order."""

    TRUNCATE = 0
    """No row: the table was emptied."""
    BEFORE = 1
    """The whole old row of an UPDATE (replica identity FULL)."""
    BEFORE_KEY = 2
    """Key columns of the old row of an UPDATE that changed the key; other columns are null."""
    DELETED = 3
    """The whole old row of a DELETE (replica identity FULL)."""
    DELETED_KEY = 4
    """Key columns of a deleted row; other columns are null."""
    UPDATED = 5
    """The new row of an UPDATE; columns listed in `_unchanged` keep their previous value."""
    INSERTED = 6
    """The new row of an INSERT."""
    COPIED = 7
    """A row of the table at the position, not a change. Only snapshots contain it; it is never in a log."""

    @property
    def asserts(self) -> bool:
        """Whether the row exists after this image (otherwise it is deleted)."""
        return self >= Image.UPDATED


@dataclass(frozen=True, order=True)
class TableName:
    """An upstream table, by schema and name."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``schema.name``; the schema must not contain a dot."""
        schema, dot, name = text.partition(".")
        if not dot or not schema or not name:
            message = f"invalid table name {text!r}: expected schema.table"
            raise ValueError(message)
        return cls(schema, name)

    def __str__(self) -> str:
        """Return ``schema.name``, unquoted: for messages and for keys in the catalog, never for SQL text."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class TableSchema:
    """The columns of one version of a table, as Arrow fields, and which of them form its key."""

    table: TableName
    columns: pa.Schema
    key: tuple[str, ...]

    def added_to(self, earlier: TableSchema) -> list[pa.Field]:
        """Return the columns that were added after `earlier`."""
        return list(self.columns)[len(earlier.columns) :]

    def to_bytes(self) -> bytes:
        """Serialise as an Arrow schema that carries name and key as metadata."""
        metadata = {"schema": self.table.schema, "name": self.table.name, "key": "\0".join(self.key)}
        return bytes(self.columns.with_metadata(metadata).serialize().to_pybytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Deserialise the output of `to_bytes`."""
        columns = pa.ipc.read_schema(pa.py_buffer(data))
        metadata = columns.metadata
        key = metadata[b"key"].decode()
        table = TableName(metadata[b"schema"].decode(), metadata[b"name"].decode())
        return cls(table, columns.remove_metadata(), tuple(key.split("\0")) if key else ())


_MISSING = b"missing"


def with_missing(field: pa.Field, value: pa.Array) -> pa.Field:
    """Return the field of an added column, with the value that the column has in all earlier rows."""
    encoded = base64.b64encode(pa.RecordBatch.from_arrays([value], names=["value"]).serialize())
    return field.with_metadata({**(field.metadata or {}), _MISSING: encoded})


def missing_value(field: pa.Field) -> pa.Array:
    """Return, as an array of length one, the column's value in rows older than the column: null unless one was set."""
    encoded = (field.metadata or {}).get(_MISSING)
    if encoded is None:
        return pa.nulls(1, field.type)
    schema = pa.schema([("value", field.type)])
    return pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(encoded)), schema).column(0)


def image_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema in which images of a table are read from the change log.

    ``_lsn`` is the commit end LSN. ``_ordinal`` is the change's number in its transaction; both images of an UPDATE
    share it, and numbers may be skipped (see `penstock.positions`). ``_unchanged`` lists the columns, by index, whose
    value was not sent because it did not change (TOAST).
    """
    return pa.schema(
        [
            pa.field("_lsn", pa.int64(), nullable=False),
            pa.field("_ordinal", pa.int64(), nullable=False),
            pa.field("_image", pa.int8(), nullable=False),
            pa.field("_xid", pa.int64(), nullable=False),
            pa.field("_committed_at", pa.timestamp("us", "UTC"), nullable=False),
            pa.field("_unchanged", pa.list_(pa.field("item", pa.int32(), nullable=False))),
            pa.field("row", pa.struct(list(columns))),
        ]
    )


def copied_images(rows: pa.RecordBatch, at: int) -> pa.RecordBatch:
    """Return rows of a table at a position as images of kind `Image.COPIED`, which belong to no transaction."""
    count = len(rows)
    schema = image_schema(rows.schema)
    arrays = [pa.nulls(count, field.type) for field in schema]
    arrays[0] = pa.repeat(pa.scalar(int(at), pa.int64()), count)
    arrays[2] = pa.repeat(pa.scalar(int(Image.COPIED), pa.int8()), count)
    arrays[6] = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field.with_nullable(True) for field in schema]))
