"""The messages of a sink before they are encoded, as columns: what an envelope makes of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Flags", "SinkMessages", "changed_keys", "image_kinds", "image_ordinals", "some_columns"]

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SinkMessages:
    """Messages in the order of their changes."""

    positions: npt.NDArray[np.int64]
    """The position of the transaction of each message."""
    ordinals: npt.NDArray[np.int64]
    """The number of the change in its transaction; 0 for a row of the snapshot."""
    values: pa.Array
    """Null for a tombstone."""
    keys: pa.StructArray | None = None
    """None for messages without keys."""

    def __len__(self) -> int:
        return len(self.positions)


def image_kinds(images: pa.RecordBatch) -> npt.NDArray[np.int8]:
    """Return the kind of each image, see `penstock.model.Image`."""
    kinds: npt.NDArray[np.int8] = images.column("_image").to_numpy()
    return kinds


def image_ordinals(images: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the ordinal of each image; 0 for a row of the snapshot, which belongs to no transaction."""
    ordinals: npt.NDArray[np.int64] = pc.fill_null(images.column("_ordinal"), 0).to_numpy()
    return ordinals


def some_columns(rows: pa.StructArray, names: Sequence[str]) -> pa.StructArray:
    """Return the columns with these names, without the nulls of whole rows."""
    fields = [rows.type.field(name) for name in names]
    return pa.StructArray.from_arrays([rows.field(name) for name in names], fields=fields)


def changed_keys(rows: pa.StructArray, key: Sequence[str], old: npt.NDArray[np.int64]) -> Flags:
    """Return which of the rows with the numbers `old` have another key than the row after them."""
    differs = np.zeros(len(old), np.bool_)
    for name in key:
        column = rows.field(name)
        before, after = column.take(pa.array(old)), column.take(pa.array(old + 1))
        differs |= pc.fill_null(pc.not_equal(before, after), True).to_numpy(zero_copy_only=False)
    return differs
