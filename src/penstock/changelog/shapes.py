"""The shape in which users read changes: one row each, before and after, made from images, column by column."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.changelog.lsn_text import lsn_text
from penstock.model import Image

__all__ = ["changes", "changes_schema"]

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
