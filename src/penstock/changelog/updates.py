"""The shape in which users add up changes: a row came (``_diff`` +1) or went (-1).

::

    INSERTED            +1 row
    DELETED             -1 row
    BEFORE, UPDATED     -1 old row, +1 new row

The sum of ``_diff`` per distinct row, over a history from its beginning, is the table. For that to hold, what goes must
be exactly what came: so every image must carry its whole row. An UPDATED one that left values out (TOAST) gets them
from the old row right before it. An image that has no whole old row cannot be told this way: replica identities other
than FULL, and a TRUNCATE, which says of no row that it went. Such a batch is refused, with the way out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.lsn_text import lsn_text
from penstock.errors import DefiniteError, UsageError
from penstock.model import Image, TableName

__all__ = ["OWN_COLUMNS", "updates", "updates_schema", "whole_rows"]

_OWN = [
    pa.field("_diff", pa.int32(), nullable=False),
    pa.field("_lsn", pa.string(), nullable=False),
    pa.field("_ordinal", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
]


OWN_COLUMNS = frozenset(field.name for field in _OWN)
"""The columns that stand beside those of a row."""


def updates_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of `updates`: the row's columns, then how many more of it there are, and of which change."""
    taken = OWN_COLUMNS & {name.lower() for name in columns.names}
    if taken:
        message = f"as updates, the columns of a row stand beside ours, and it has a column {min(taken)!r} of its own"
        raise UsageError(message, "Read it with rows=changes, or exclude that column from the source.")
    return pa.schema([*columns, *_OWN])


def updates(images: pa.RecordBatch, table: TableName) -> pa.RecordBatch:
    """Return one row per image, in order; refuse images of `table` that do not hold what went."""
    columns = pa.schema(list(images.schema.field("row").type))
    diff = np.where(images.column("_image").to_numpy() >= Image.UPDATED, 1, -1).astype(np.int32)
    arrays = [
        *whole_rows(images, table),
        pa.array(diff),
        lsn_text(images.column("_lsn")),
        *(images.column(name) for name in ("_ordinal", "_xid", "_committed_at")),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=updates_schema(columns))


def whole_rows(images: pa.RecordBatch, table: TableName) -> list[pa.Array]:
    """Return the columns of all images, whole; refuse images of `table` that are not.

    A value that was left out is that of the image before, which is the old row.
    """
    _refuse_what_cannot_be_told(images.column("_image").to_numpy(), table)
    columns = images.column("row").flatten()
    unchanged = images.column("_unchanged")
    if unchanged.null_count == len(unchanged):
        return list(columns)
    rows, left_out = pc.list_parent_indices(unchanged).to_numpy(), unchanged.flatten().to_numpy()
    return [_from_the_row_before(values, rows[left_out == index]) for index, values in enumerate(columns)]


def _from_the_row_before(values: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    if not len(rows):
        return values
    source = np.arange(len(values))
    source[rows] -= 1
    return values.take(pa.array(source))


def _refuse_what_cannot_be_told(kind: npt.NDArray[np.int8], table: TableName) -> None:
    if (kind == Image.TRUNCATE).any():
        message = f"{table} was truncated: as updates, each row that went would have to be told"
        raise DefiniteError(message, "Read it with rows=changes, which tells a truncate as one change.")
    updated = kind == Image.UPDATED
    alone = updated & np.concatenate([[True], kind[:-1] != Image.BEFORE])[: len(kind)]
    if alone.any() or np.isin(kind, (Image.BEFORE_KEY, Image.DELETED_KEY)).any():
        message = f"changes of {table} do not hold the whole old row: as updates, it would have to be told that it went"
        name = f"{_quoted(table.schema)}.{_quoted(table.name)}"
        remedy = (
            f"Of a table of Postgres, run upstream: ALTER TABLE {name} REPLICA IDENTITY FULL; then start the query "
            "again from a later position, with a new checkpoint. Or read it with rows=changes."
        )
        raise DefiniteError(message, remedy)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
