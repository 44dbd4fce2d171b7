"""Option ``where``: the changes of those rows of a table for which a condition is true.

For the sink, other rows do not exist. So a change becomes what it is for the rows that pass:

| old row | new row | change |
|---|---|---|
| – | passes | INSERT, a row of the snapshot: unchanged |
| passes | passes | UPDATE: unchanged |
| passes | does not pass | DELETE of the old row |
| does not pass | passes | INSERT of the new row |
| unknown | passes | UPDATE: unchanged; the row may be new to consumers |
| unknown | does not pass | DELETE of the key; consumers may not have the row |
| passes, or unknown | – | DELETE: unchanged |

All others are left out. The old row is known if the replica identity is FULL; or if the condition depends on key
columns only, because the key of the old row is always known: without an old image it is that of the new row.

Images must be complete (`penstock.sinks.delivery.ImageNeeds.whole_rows`): a value that the log omits would count as
null. A TRUNCATE stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.model import Image, TableSchema
from penstock.sinks.condition import Condition
from penstock.sinks.messages import Flags, image_kinds

__all__ = ["RowFilter", "changes_of_passing_rows"]

_BEFORE = (Image.BEFORE, Image.BEFORE_KEY)
_DELETED = (Image.DELETED, Image.DELETED_KEY)
_KNOWN = (Image.BEFORE, Image.DELETED)
"""Old rows that are whole, so that it is known whether they passed."""
_KNOWN_BY_KEY = (*_BEFORE, *_DELETED)


class RowFilter:
    """Reduces the changes of one version of one table to those of the rows that pass."""

    def __init__(self, where: str, schema: TableSchema) -> None:
        """Parse the condition; raise `UsageError` if it is invalid for this table."""
        self._condition, self._key = Condition(where, schema), schema.key
        self._by_key = self._condition.columns <= set(schema.key)

    def images(self, images: pa.RecordBatch) -> pa.RecordBatch:
        """Return the images of whole changes of the rows that pass."""
        passes = self._condition.holds(images.column("row"))
        return changes_of_passing_rows(images, passes, self._key, by_key=self._by_key)


def changes_of_passing_rows(
    images: pa.RecordBatch, passes: Flags, key: Sequence[str], *, by_key: bool = False
) -> pa.RecordBatch:
    """Reduce whole changes to those of the rows that pass; `by_key` says whether that depends on their key only."""
    kinds = image_kinds(images)
    is_old, is_updated = np.isin(kinds, _BEFORE), kinds == Image.UPDATED
    existed = passes | ~np.isin(kinds, _KNOWN_BY_KEY if by_key else _KNOWN)  # of old rows: consumers may have it
    alone = is_updated & ~_previous(is_old)
    is_removed = alone & ~passes & (not by_key)
    is_kept = np.where(is_old | np.isin(kinds, _DELETED), existed, passes | is_removed) | (kinds == Image.TRUNCATE)
    found = kinds.copy()
    found[is_updated & ~alone & passes & ~_previous(existed)] = Image.INSERTED
    left = is_old & ~_next(passes)
    found[left & (kinds == Image.BEFORE)] = Image.DELETED
    found[(left & (kinds == Image.BEFORE_KEY)) | is_removed] = Image.DELETED_KEY
    changed = _keys_only(images, is_removed, key) if is_removed.any() else images
    return _with_kinds(changed, found).filter(pa.array(is_kept))


def _keys_only(images: pa.RecordBatch, which: Flags, key: Sequence[str]) -> pa.RecordBatch:
    """Return images with null in all columns of these rows except those of the key."""
    row = images.column("row")
    fields = list(row.type)
    columns = [
        values if field.name in key else _nulled(values, which)
        for field, values in zip(fields, row.flatten(), strict=True)
    ]
    missing = row.is_null() if row.null_count else None
    rows = pa.StructArray.from_arrays(columns, fields=fields, mask=missing)
    return images.set_column(images.schema.get_field_index("row"), images.schema.field("row"), rows)


def _nulled(values: pa.Array, which: Flags) -> pa.Array:
    return values.take(pa.array(np.arange(len(values)), mask=which))


def _previous(flags: Flags) -> Flags:
    """Return the flag of the image before each image; false for the first."""
    return np.concatenate([[False], flags[:-1]])[: len(flags)]


def _next(flags: Flags) -> Flags:
    """Return the flag of the image after each image; false for the last."""
    return np.concatenate([flags[1:], [False]])[: len(flags)]


def _with_kinds(images: pa.RecordBatch, kinds: np.ndarray) -> pa.RecordBatch:
    place = images.schema.get_field_index("_image")
    return images.set_column(place, images.schema.field(place), pa.array(kinds))
