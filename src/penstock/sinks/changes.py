"""ENVELOPE CHANGES: one message for each change, with the row before and after it.

| field | content |
|---|---|
| op | ``insert``, ``update``, ``delete``, ``truncate``; ``snapshot`` for a row of the snapshot |
| table | the upstream table, ``public.orders`` |
| position | the position of the transaction, as Postgres prints an LSN |
| ordinal, xid, committed_at | the number of the change in its transaction, and the transaction; null in the snapshot |
| before | the old row, its key, or null: what the replica identity of the table provides |
| after | the new row; null for a deleted row |

The key of a message has the key columns of the new row, or of the old row if it was deleted. TRUNCATE has no key, and
neither has a table without key columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.user_rows import changes
from penstock.model import Image
from penstock.sinks.messages import SinkMessages, image_kinds, image_ordinals, some_columns
from penstock.sinks.schemas.record_names import with_record_name

__all__ = ["ROW_RECORD", "changes_messages"]

ROW_RECORD = "Row"
"""The name of the record of ``before`` and ``after`` in registered schemas."""

_OLD = (Image.BEFORE, Image.BEFORE_KEY)


def changes_messages(images: pa.RecordBatch, key: Sequence[str], columns: Sequence[str], table: str) -> SinkMessages:
    """Return the messages of images of whole changes of a table, with these columns as their keys and rows."""
    last = np.flatnonzero(~np.isin(image_kinds(images), _OLD))
    combined = changes(images)
    before, after = combined.column("before"), combined.column("after")
    rows = [_rows(before, columns), _rows(after, columns)]
    row = rows[0].type
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(combined), np.int8)), pa.array([table]))
    head = [combined.column("_op"), names, combined.column("_lsn")]
    transaction = [combined.column(name) for name in ("_ordinal", "_xid", "_committed_at")]
    values = pa.StructArray.from_arrays([*head, *transaction, *rows], fields=_fields(row))
    keys = _keys(before, after, key) if key else None
    return SinkMessages(images.column("_lsn").to_numpy()[last], image_ordinals(images)[last], values, keys)


def _fields(row: pa.StructType) -> list[pa.Field]:
    return [
        pa.field("op", pa.string(), nullable=False),
        pa.field("table", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("position", pa.string(), nullable=False),
        pa.field("ordinal", pa.int64()),
        pa.field("xid", pa.int64()),
        pa.field("committed_at", pa.timestamp("us", "UTC")),
        with_record_name(pa.field("before", row), ROW_RECORD),
        with_record_name(pa.field("after", row), ROW_RECORD),
    ]


def _rows(rows: pa.StructArray, columns: Sequence[str]) -> pa.StructArray:
    """Return some columns of rows; null where a row is null. An old row may have nulls in any column."""
    some = some_columns(rows, columns)
    fields = [field.with_nullable(True) for field in some.type]
    return pa.StructArray.from_arrays(some.flatten(), fields=fields, mask=rows.is_null())


def _keys(before: pa.StructArray, after: pa.StructArray, key: Sequence[str]) -> pa.StructArray:
    has_new, has_old = after.is_valid(), before.is_valid()
    fields = [after.type.field(name) for name in key]
    columns = [pc.if_else(has_new, after.field(name), before.field(name)) for name in key]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pc.invert(pc.or_(has_new, has_old)))
