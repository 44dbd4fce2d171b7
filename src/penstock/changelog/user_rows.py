"""The shape in which users read changes: one row each, before and after, made from images, column by column.

The shape in which users add up changes: a row came (``_diff`` +1) or went (-1).

::

    INSERTED            +1 row
    DELETED             -1 row
    BEFORE, UPDATED     -1 old row, +1 new row

The sum of ``_diff`` per distinct row, over a history from its beginning, is the table. For that to hold, what goes must
be exactly what came: so every image must carry its whole row. An UPDATED one that left values out (TOAST) gets them
from the old row right before it. An image that has no whole old row cannot be told this way: replica identities other
than FULL, and a TRUNCATE, which says of no row that it went. Such a batch is refused, with the way out.

Positions as Postgres writes them (``16/B374D848``), a column at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import DefiniteError, UsageError
from penstock.model import Image, TableName

__all__ = ["OWN_COLUMNS", "changes", "changes_schema", "lsn_text", "updates", "updates_schema", "whole_rows"]

_OPS = {
    Image.TRUNCATE: "truncate",
    Image.DELETED: "delete",
    Image.DELETED_KEY: "delete",
    Image.UPDATED: "update",
    Image.INSERTED: "insert",
    Image.COPIED: "snapshot",
}
_NAMES = pa.array([_OPS.get(image) for image in Image], pa.string())


def changes_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of `changes`.

    A row of a snapshot is of no transaction: it has the position, and neither ordinal, xid nor time.
    ``before`` holds what the replica identity gives: the old row, its key, or nothing. ``_unchanged`` names the
    columns of ``after`` that were not sent because they did not change (TOAST); they are null there.
    """
    row = pa.struct(list(columns))
    return pa.schema(
        [
            pa.field("_op", pa.string(), nullable=False),
            pa.field("_lsn", pa.string(), nullable=False),
            pa.field("_ordinal", pa.int64()),
            pa.field("_xid", pa.int64()),
            pa.field("_committed_at", pa.timestamp("us", "UTC")),
            pa.field("_unchanged", pa.list_(pa.string())),
            pa.field("before", row),
            pa.field("after", row),
        ]
    )


def changes(images: pa.RecordBatch) -> pa.RecordBatch:
    """Pair each change's images: one row per change."""
    kind = images.column("_image").to_numpy()
    row, columns = images.column("row"), images.schema.field("row").type
    first = (kind == Image.BEFORE) | (kind == Image.BEFORE_KEY)
    last = np.flatnonzero(~first)
    old = np.isin(kind[last], (Image.DELETED, Image.DELETED_KEY))
    paired = np.concatenate([[False], first])[last]  # the image before this one is its old row
    before = _take(row, np.where(old, last, last - 1), old | paired)
    after = _take(row, last, kind[last] >= Image.UPDATED)
    kept = images if len(last) == len(images) else images.take(pa.array(last))
    arrays = [
        pc.take(_NAMES, kept.column("_image")),
        lsn_text(kept.column("_lsn")),
        *(kept.column(name) for name in ("_ordinal", "_xid", "_committed_at")),
        _column_names(kept.column("_unchanged"), [field.name for field in columns]),
        before,
        after,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=changes_schema(pa.schema(list(columns))))


def _take(row: pa.StructArray, index: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> pa.Array:
    """Take rows, null where none is there; all or none of them, the usual case, cost nothing."""
    if not there.any():
        return pa.nulls(len(index), row.type)
    if len(index) == len(row) and there.all():  # then they are all rows, in order
        return row
    return row.take(pa.array(index, mask=~there))


def _column_names(unchanged: pa.Array, names: list[str]) -> pa.Array:
    if unchanged.null_count == len(unchanged):
        return pa.nulls(len(unchanged), pa.list_(pa.string()))
    values = pc.take(pa.array(names, pa.string()), unchanged.values)
    return pa.ListArray.from_arrays(unchanged.offsets, values, mask=unchanged.is_null())


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
        hint = (
            f"Of a table of Postgres, run upstream: ALTER TABLE {name} REPLICA IDENTITY FULL; then start the query "
            "again from a later position, with a new checkpoint. Or read it with rows=changes."
        )
        raise DefiniteError(message, hint)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS = np.arange(28, -4, -4, dtype=np.int64)


def lsn_text(lsn: pa.Array) -> pa.Array:
    """Write LSNs as text; rows of one transaction share one, so each is written once."""
    encoded = lsn.dictionary_encode()
    return pc.take(_written(encoded.dictionary.to_numpy()), encoded.indices)


def _written(lsns: np.ndarray) -> pa.StringArray:
    """Write both halves in hexadecimal, without leading zeros, and a slash between them."""
    high, high_kept = _hexadecimal(lsns >> 32)
    low, low_kept = _hexadecimal(lsns & 0xFFFFFFFF)
    slash = np.full((len(lsns), 1), ord("/"), np.uint8)
    kept = np.concatenate([high_kept, np.ones((len(lsns), 1), np.bool_), low_kept], axis=1)
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    text = np.concatenate([high, slash, low], axis=1)[kept]
    return pa.StringArray.from_buffers(len(lsns), pa.py_buffer(offsets), pa.py_buffer(text))


def _hexadecimal(halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eight digits for each, and which of them to keep: from the first that is not zero, and the last."""
    digits = (halves[:, None] >> _SHIFTS) & 0xF
    kept = np.logical_or.accumulate(digits != 0, axis=1)
    kept[:, -1] = True
    return _DIGITS[digits], kept
