"""Chunks for tests of the change log: small table histories, and the rows that a reader returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.changelog.chunk_codec import stored_schema
from penstock.changelog.interface import ChangeLogReader, Chunk, transaction_schema
from penstock.model import Image, TableName, TableSchema
from penstock.positions import Lsn

COLUMNS = pa.schema([("id", pa.int64()), ("name", pa.string())])
ORDERS = TableSchema(TableName("public", "orders"), COLUMNS, ("id",))
ITEMS = TableSchema(TableName("public", "items"), COLUMNS, ("id",))


@dataclass(frozen=True)
class Row:
    """One image: the LSN of its transaction (-1 while that is staged), its ordinal there, kind and values."""

    lsn: int
    ordinal: int
    image: Image
    values: tuple[Any, ...] | None
    unchanged: tuple[int, ...] | None = None


def inserted(lsn: int, ordinal: int = 0, name: str = "x") -> Row:
    """An INSERT with values that no other row has."""
    return Row(lsn, ordinal, Image.INSERTED, (lsn * 1000 + ordinal, name))


def chunk(schema: TableSchema, rows: Sequence[Row], version: int = 1) -> Chunk:
    """Make a chunk of a table; transaction `lsn` has xid ``lsn + 1`` and commit time ``lsn`` microseconds."""
    lsns = list(dict.fromkeys(row.lsn for row in rows))
    transactions = pa.RecordBatch.from_pylist(
        [{"lsn": lsn, "xid": lsn + 1, "committed_at": max(lsn, 0)} for lsn in lsns], transaction_schema()
    )
    images = pa.RecordBatch.from_pylist([_stored(schema, row, lsns) for row in rows], stored_schema(schema.columns))
    kinds = 0
    for row in rows:
        kinds |= 1 << row.image
    return Chunk(schema.table, version, transactions, images, kinds, any(row.unchanged for row in rows))


def _stored(schema: TableSchema, row: Row, lsns: list[int]) -> dict[str, Any]:
    return {
        "_tx": lsns.index(row.lsn),
        "_ordinal": row.ordinal,
        "_image": int(row.image),
        "_unchanged": None if row.unchanged is None else list(row.unchanged),
        "row": None if row.values is None else dict(zip(schema.columns.names, row.values, strict=True)),
    }


def batches(
    reader: ChangeLogReader, schema: TableSchema, after: int = 0, upto: int = 2**62, columns: pa.Schema | None = None
) -> list[pa.RecordBatch]:
    """Read a range, or the part of it that the log still retains."""
    start = max(after, reader.frontiers().valid)
    return list(reader.read(reader.extent(schema.table, Lsn(start), Lsn(upto)), columns))


def read(reader: ChangeLogReader, schema: TableSchema, after: int = 0, upto: int = 2**62) -> list[Row]:
    """Read a range back into rows."""
    found = []
    for batch in batches(reader, schema, after, upto):
        batch.validate(full=True)
        for row in batch.to_pylist():
            values = None if row["row"] is None else tuple(row["row"].values())
            unchanged = None if row["_unchanged"] is None else tuple(row["_unchanged"])
            found.append(Row(row["_lsn"], row["_ordinal"], Image(row["_image"]), values, unchanged))
    return found
