"""The data model that all layers share: tables, their schemas, and the row images that make up a change.

An *image* is one row in a change. An INSERT has one (the new row), a DELETE has one (the old row, or only its key), an
UPDATE has the new row and, if the replica identity provides it, the old row or its key before it. The change log
stores images; the formats that users read (`changes`, `updates`) are derived from them on reading.
"""

from __future__ import annotations

import base64
import enum
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import pyarrow as pa

__all__ = [
    "COUNT",
    "FROM",
    "GONE",
    "OWN_PREFIX",
    "RESCUED",
    "SHARD",
    "UNCHANGED",
    "Image",
    "IncludedColumn",
    "TableName",
    "TableSchema",
    "base_type_name",
    "copied_images",
    "enum_labels",
    "image_schema",
    "is_not_null",
    "is_rescuable",
    "is_rescued",
    "is_reserved",
    "missing_value",
    "rescued_field",
    "rescued_index",
    "rescued_type",
    "type_name",
    "with_base_type_name",
    "with_enum_labels",
    "with_missing",
    "with_not_null",
    "with_type_name",
]

OWN_PREFIX = "_penstock_"
"""Begins the names of the columns that Penstock adds to those of a table while it reads or merges it."""
GONE, UNCHANGED, FROM, COUNT = (f"{OWN_PREFIX}{name}" for name in ("gone", "unchanged", "from", "count"))
"""The columns that a net change has besides those of the table: see `penstock.tables.fold`."""


def is_reserved(column: str) -> bool:
    """Return whether a column of a table must not have this name, in any case."""
    return column.lower().startswith(OWN_PREFIX)


SHARD = "penstock_shard"
"""The column that identifies the shard of a row, and is part of the key; a table of a shard must not have it."""


# -- rescued values ----------------------------------------------------------------------------------------------------
# A source may keep values that the type of their column cannot hold: the column is null in that row, and a map has the
# text of the value. The text of a column belongs to its value: where an image omits the value (TOAST), it omits the
# text, and both are taken from the same earlier row. So the map of an image has texts of the sent columns only.

RESCUED = "_rescued"
"""The column with the texts of such values, by the names of their columns; null in a row without any."""
_RESCUED_MARK = b"penstock.rescued"


def rescued_type() -> pa.DataType:
    """Return the type of `RESCUED`."""
    return pa.map_(pa.string(), pa.string())


def rescued_field() -> pa.Field:
    """Return the field of `RESCUED`. Its mark distinguishes it from an upstream column of that name."""
    return pa.field(RESCUED, rescued_type(), metadata={_RESCUED_MARK: b"true"})


def is_rescued(field: pa.Field) -> bool:
    """Return whether this is the field of `RESCUED`; a sink may have renamed it."""
    return _RESCUED_MARK in (field.metadata or {})


def rescued_index(fields: Iterable[pa.Field]) -> int | None:
    """Return the index of `RESCUED` among the columns of a table; None if the table has none."""
    return next((index for index, field in enumerate(fields) if is_rescued(field)), None)


def is_rescuable(kind: pa.DataType) -> bool:
    """Return whether a column of this type may have values that the type cannot hold."""
    is_type = pa.types
    return bool(
        is_type.is_temporal(kind) or is_type.is_decimal(kind) or is_type.is_list(kind) or is_type.is_struct(kind)
    )


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
        """Parse the output of `__str__`; raise `ValueError` for other texts."""
        found = _TABLE_NAME.fullmatch(text)
        if found is None:
            message = f"invalid table name {text!r}: expected schema.table"
            raise ValueError(message)
        quoted, schema, name = found.groups()
        return cls(quoted.replace('""', '"') if quoted else schema, name)

    def __str__(self) -> str:
        """Return ``schema.name``, for messages and for keys in the catalog, never for SQL text.

        Only a schema with a dot or a quote is in double quotes: without them, it would be another table's name.
        """
        schema = self.schema
        if "." in schema or '"' in schema:
            schema = '"' + schema.replace('"', '""') + '"'
        return f"{schema}.{self.name}"


_TABLE_NAME = re.compile(r'(?:"((?:[^"]|"")+)"|([^".]+))\.(.+)', re.DOTALL)


@dataclass(frozen=True)
class TableSchema:
    """The columns of one version of a table, as Arrow fields, and which of them form its key."""

    table: TableName
    columns: pa.Schema
    key: tuple[str, ...]
    reader: str = ""
    """How the source decodes rows of this version, in a notation of its kind; empty if its config says so."""

    def added_to(self, earlier: TableSchema) -> list[pa.Field]:
        """Return the columns that were added after `earlier`."""
        return list(self.columns)[len(earlier.columns) :]

    def to_bytes(self) -> bytes:
        """Serialise as an Arrow schema that carries name and key as metadata."""
        metadata = {"schema": self.table.schema, "name": self.table.name, "key": "\0".join(self.key)}
        if self.reader:
            metadata["reader"] = self.reader
        return bytes(self.columns.with_metadata(metadata).serialize().to_pybytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Deserialise the output of `to_bytes`."""
        columns = pa.ipc.read_schema(pa.py_buffer(data))
        metadata = columns.metadata
        key = metadata[b"key"].decode()
        table = TableName(metadata[b"schema"].decode(), metadata[b"name"].decode())
        reader = metadata.get(b"reader", b"").decode()
        return cls(table, columns.remove_metadata(), tuple(key.split("\0")) if key else (), reader)


_MISSING = b"missing"


def with_missing(field: pa.Field, value: pa.Array) -> pa.Field:
    """Return the field of an added column, with the value that the column has in all earlier rows."""
    encoded = base64.b64encode(pa.RecordBatch.from_arrays([value], names=["value"]).serialize())
    return _with_metadata(field, _MISSING, encoded)


def missing_value(field: pa.Field) -> pa.Array:
    """Return, as an array of length one, the column's value in rows older than the column: null unless one was set."""
    encoded = (field.metadata or {}).get(_MISSING)
    if encoded is None:
        return pa.nulls(1, field.type)
    schema = pa.schema([("value", field.type)])
    return pa.ipc.read_record_batch(pa.py_buffer(base64.b64decode(encoded)), schema).column(0)


# -- upstream declarations ---------------------------------------------------------------------------------------------
# Metadata of fields: what an Arrow type does not tell about a column upstream. Logs of earlier versions do not have it.
# Schemas are compared without it: it describes the column when its capture began.

_TYPE, _BASE_TYPE, _ENUM, _NOT_NULL = b"postgres.type", b"postgres.base_type", b"postgres.enum", b"postgres.not_null"


def with_type_name(field: pa.Field, name: str) -> pa.Field:
    """Return the field of a column whose declared type upstream is `name`, as in ``numeric(10,2)``."""
    return _with_metadata(field, _TYPE, name.encode())


def type_name(field: pa.Field) -> str | None:
    """Return the declared type of a column, as Postgres prints it; None if it is unknown."""
    return _metadata(field, _TYPE)


def with_base_type_name(field: pa.Field, name: str) -> pa.Field:
    """Return the field of a column whose declared type is a domain over the type `name`."""
    return _with_metadata(field, _BASE_TYPE, name.encode())


def base_type_name(field: pa.Field) -> str | None:
    """Return the declared type of a column, or the type below it if it is a domain; None if it is unknown."""
    return _metadata(field, _BASE_TYPE) or type_name(field)


def with_enum_labels(field: pa.Field, labels: Sequence[str]) -> pa.Field:
    """Return the field of a column whose type is an enum, or an array of one, with these labels."""
    return _with_metadata(field, _ENUM, json.dumps(list(labels)).encode())


def enum_labels(field: pa.Field) -> list[str] | None:
    """Return the labels of an enum or of an array of an enum; None for other types."""
    labels = _metadata(field, _ENUM)
    return None if labels is None else list(json.loads(labels))


def with_not_null(field: pa.Field) -> pa.Field:
    """Return the field of a column that is declared NOT NULL. It stays nullable: upstream may drop the constraint."""
    return _with_metadata(field, _NOT_NULL, b"true")


def is_not_null(field: pa.Field) -> bool:
    """Return whether a column was declared NOT NULL when its capture began."""
    return _metadata(field, _NOT_NULL) == "true"


def _with_metadata(field: pa.Field, name: bytes, value: bytes) -> pa.Field:
    return field.with_metadata({**(field.metadata or {}), name: value})


def _metadata(field: pa.Field, name: bytes) -> str | None:
    value = (field.metadata or {}).get(name)
    return None if value is None else value.decode()


# -- images ------------------------------------------------------------------------------------------------------------


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
