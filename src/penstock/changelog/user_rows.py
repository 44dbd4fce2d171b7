"""The row formats that users read: `changes`, one row per change, and `updates`, differences of row counts.

`changes` has the row before and after each change. `updates` has a row with ``_diff`` +1 for each row that was added
and -1 for each row that was removed::

    INSERTED            +1 row
    DELETED             -1 row
    BEFORE, UPDATED     -1 old row, +1 new row

The sum of ``_diff`` per distinct row, over the complete history, is the table. This requires that a removed row equals
the row that was added before, so every image must carry its whole row. An UPDATED image that omits values (TOAST) takes
them from the old row immediately before it. Images without a whole old row cannot be converted: replica identities
other than FULL, and a TRUNCATE, which does not list the removed rows. Such a batch is rejected with a hint.

`lsn_text` formats positions as Postgres does (``16/B374D848``). All conversions work on whole columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.rescued_texts import text_of, with_texts
from penstock.errors import DefiniteError, UsageError
from penstock.model import Image, TableName, rescued_index

__all__ = ["OWN_COLUMNS", "changes", "changes_schema", "lsn_text", "updates", "updates_schema", "whole_rows"]

_OPS = {
    Image.TRUNCATE: "truncate",
    Image.DELETED: "delete",
    Image.DELETED_KEY: "delete",
    Image.UPDATED: "update",
    Image.INSERTED: "insert",
    Image.COPIED: "snapshot",
}
_OP_NAMES = pa.array([_OPS.get(image) for image in Image], pa.string())


def changes_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of `changes`.

    A snapshot row belongs to no transaction: it has a position, but no ordinal, xid or commit time. ``before`` holds
    what the replica identity provides: the old row, its key, or nothing. ``_unchanged`` lists the columns of ``after``
    that Postgres did not send because they did not change (TOAST); they are null in ``after``.
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
    """Combine the images of each change into one row."""
    kind = images.column("_image").to_numpy()
    row, columns = images.column("row"), images.schema.field("row").type
    first = (kind == Image.BEFORE) | (kind == Image.BEFORE_KEY)
    last = np.flatnonzero(~first)
    old = np.isin(kind[last], (Image.DELETED, Image.DELETED_KEY))
    paired = np.concatenate([[False], first])[last]  # the previous image is the old row
    before = _take(row, np.where(old, last, last - 1), old | paired)
    after = _take(row, last, kind[last] >= Image.UPDATED)
    kept = images if len(last) == len(images) else images.take(pa.array(last))
    arrays = [
        pc.take(_OP_NAMES, kept.column("_image")),
        lsn_text(kept.column("_lsn")),
        *(kept.column(name) for name in ("_ordinal", "_xid", "_committed_at")),
        _column_names(kept.column("_unchanged"), [field.name for field in columns]),
        before,
        after,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=changes_schema(pa.schema(list(columns))))


def _take(row: pa.StructArray, index: npt.NDArray[np.int64], exists: npt.NDArray[np.bool_]) -> pa.Array:
    """Take rows, with null where `exists` is false; the common cases, all or none, copy nothing."""
    if not exists.any():
        return pa.nulls(len(index), row.type)
    if len(index) == len(row) and exists.all():  # `index` is then all rows, in order
        return row
    return row.take(pa.array(index, mask=~exists))


def _column_names(unchanged: pa.Array, names: list[str]) -> pa.Array:
    if unchanged.null_count == len(unchanged):
        return pa.nulls(len(unchanged), pa.list_(pa.string()))
    values = pc.take(pa.array(names, pa.string()), unchanged.values)
    return pa.ListArray.from_arrays(unchanged.offsets, values, mask=unchanged.is_null())


_ADDED = [
    pa.field("_diff", pa.int32(), nullable=False),
    pa.field("_lsn", pa.string(), nullable=False),
    pa.field("_ordinal", pa.int64()),
    pa.field("_xid", pa.int64()),
    pa.field("_committed_at", pa.timestamp("us", "UTC")),
]


OWN_COLUMNS = frozenset(field.name for field in _ADDED)
"""The columns that Penstock adds to those of a row."""


def updates_schema(columns: pa.Schema) -> pa.Schema:
    """Return the schema of `updates`: the row's columns, the difference, and the change that it comes from."""
    reserved = OWN_COLUMNS & {name.lower() for name in columns.names}
    if reserved:
        message = f"rows=updates adds a column {min(reserved)!r}, but the table already has a column of this name"
        raise UsageError(message, "Use rows=changes, or exclude that column from the source.")
    return pa.schema([*columns, *_ADDED])


def updates(images: pa.RecordBatch, table: TableName) -> pa.RecordBatch:
    """Return one row per image, in order; raise `DefiniteError` if images of `table` lack the removed rows."""
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
    """Return the columns of all images, complete; raise `DefiniteError` if images of `table` are not whole rows.

    An omitted value is that of the preceding image, which is the old row.
    """
    _reject_partial_rows(images.column("_image").to_numpy(), table)
    columns = images.column("row").flatten()
    unchanged = images.column("_unchanged")
    if unchanged.null_count == len(unchanged):
        return list(columns)
    rows, omitted = pc.list_parent_indices(unchanged).to_numpy(), unchanged.flatten().to_numpy()
    complete = [_fill_from_previous_row(values, rows[omitted == index]) for index, values in enumerate(columns)]
    fields = list(images.schema.field("row").type)
    place = rescued_index(fields)
    if place is not None:
        texts = {}
        for index in np.unique(omitted):
            of_column = text_of(columns[place], fields[index].name)
            texts[fields[index].name] = _taken_from_previous_row(of_column, rows[omitted == index])
        complete[place] = with_texts(columns[place], texts)
    return complete


def _taken_from_previous_row(texts: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Return the texts of previous rows in some rows, and null in the others."""
    source, absent = np.zeros(len(texts), np.int64), np.ones(len(texts), np.bool_)
    source[rows], absent[rows] = rows - 1, False
    return texts.take(pa.array(source, mask=absent))


def _fill_from_previous_row(values: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    if not len(rows):
        return values
    source = np.arange(len(values))
    source[rows] -= 1
    return values.take(pa.array(source))


def _reject_partial_rows(kind: npt.NDArray[np.int8], table: TableName) -> None:
    if (kind == Image.TRUNCATE).any():
        message = f"{table} was truncated: rows=updates requires every removed row, which a TRUNCATE does not provide"
        raise DefiniteError(message, "Use rows=changes, which returns a TRUNCATE as one change.")
    updated = kind == Image.UPDATED
    unpaired = updated & np.concatenate([[True], kind[:-1] != Image.BEFORE])[: len(kind)]
    if unpaired.any() or np.isin(kind, (Image.BEFORE_KEY, Image.DELETED_KEY)).any():
        message = f"changes of {table} do not contain the whole old row, which rows=updates requires"
        name = f"{_quoted(table.schema)}.{_quoted(table.name)}"
        hint = (
            f"For a Postgres table, run upstream: ALTER TABLE {name} REPLICA IDENTITY FULL; then restart the query "
            "from a later position with a new checkpoint. Or use rows=changes."
        )
        raise DefiniteError(message, hint)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_DIGITS = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS = np.arange(28, -4, -4, dtype=np.int64)


def lsn_text(lsn: pa.Array) -> pa.Array:
    """Format LSNs as text; rows of a transaction share an LSN, so each distinct LSN is formatted once."""
    encoded = lsn.dictionary_encode()
    return pc.take(_formatted(encoded.dictionary.to_numpy()), encoded.indices)


def _formatted(lsns: np.ndarray) -> pa.StringArray:
    """Write both halves in hexadecimal without leading zeros, separated by a slash."""
    high, high_kept = _hexadecimal(lsns >> 32)
    low, low_kept = _hexadecimal(lsns & 0xFFFFFFFF)
    slash = np.full((len(lsns), 1), ord("/"), np.uint8)
    kept = np.concatenate([high_kept, np.ones((len(lsns), 1), np.bool_), low_kept], axis=1)
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    text = np.concatenate([high, slash, low], axis=1)[kept]
    return pa.StringArray.from_buffers(len(lsns), pa.py_buffer(offsets), pa.py_buffer(text))


def _hexadecimal(halves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eight digits per number, and a mask of those to keep: from the first non-zero digit, at least the last."""
    digits = (halves[:, None] >> _SHIFTS) & 0xF
    kept = np.logical_or.accumulate(digits != 0, axis=1)
    kept[:, -1] = True
    return _DIGITS[digits], kept
