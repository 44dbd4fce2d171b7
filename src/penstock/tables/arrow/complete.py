"""Complete images in Arrow: every row with all its values, also those that the log omits (unchanged TOAST).

An omitted value is found as in `fold`: at the previous version of the row in the range, or in the table at the position
where the range begins. Only the rows that are needed are looked up there, and usually none is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.changelog.rescued_texts import text_of, with_texts
from penstock.changelog.user_rows import whole_rows
from penstock.model import RESCUED, Image, TableSchema, rescued_index
from penstock.tables.arrow.distinct_rows import Distinct, Numbers
from penstock.tables.arrow.fold import Flags, earlier_images, missing_base_row, newest_images, omitted_values

__all__ = ["RowLookup", "complete_images"]

RowLookup = Callable[[pa.Table], pa.Table]
"""Returns the rows of the table, at the position where the range begins, that have one of these keys."""


def complete_images(images: pa.RecordBatch, schema: TableSchema, look_up: RowLookup) -> pa.RecordBatch:
    """Return the images of a range, in log order, with omitted values filled in and none in ``_unchanged``.

    Raise `TableError` if a value is in no row. The images of a keyless table have whole old rows, and need no lookup.
    """
    omitted = omitted_values(images)
    if not omitted:
        return images
    columns = _completed(images, schema, look_up) if schema.key else whole_rows(images, schema.table)
    rows = pa.StructArray.from_arrays(columns, fields=list(images.schema.field("row").type))
    unchanged = pa.nulls(len(images), images.schema.field("_unchanged").type)
    arrays = [{"row": rows, "_unchanged": unchanged}.get(name, images.column(name)) for name in images.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=images.schema)


def _completed(images: pa.RecordBatch, schema: TableSchema, look_up: RowLookup) -> list[pa.Array]:
    columns = dict(zip(schema.columns.names, images.column("row").flatten(), strict=True))
    kinds = images.column("_image").to_numpy()
    keys = [columns[name] for name in schema.key]
    _, numbers = Distinct.of(keys, keys=True)
    earlier = earlier_images(kinds, numbers)
    found, missing = {}, {}
    omitted = omitted_values(images)
    for index, lacks in omitted.items():
        newest, _ = newest_images(earlier, lacks | (kinds == Image.BEFORE_KEY), numbers)
        at = np.where(lacks, newest, np.arange(len(newest)))
        in_base = lacks & (lacks | (kinds == Image.BEFORE_KEY))[at]
        found[index], missing[index] = at, in_base
    needed = np.unique(np.concatenate([found[index][missing[index]] for index in found]))
    rows, place = _looked_up(images, schema, [key.take(pa.array(needed)) for key in keys], look_up, needed)
    arrays = list(columns.values())
    rescued, texts = rescued_index(schema.columns), {}
    for index, at in found.items():
        if rescued is not None:
            name = schema.columns.names[index]
            texts[name] = _texts(
                name, columns[RESCUED], rows.column(rescued), at, missing[index], omitted[index], place
            )
        both = pa.concat_arrays([arrays[index], rows.column(index)]) if len(needed) else arrays[index]
        taken = at.copy()
        taken[missing[index]] = len(images) + place[at[missing[index]]]
        arrays[index] = both.take(pa.array(taken))
    if rescued is not None:
        arrays[rescued] = with_texts(arrays[rescued], texts)
    return arrays


def _texts(
    name: str, images: pa.Array, rows: pa.Array, at: Numbers, in_base: Flags, lacks: Flags, place: Numbers
) -> pa.Array:
    """Return the text of a column for the images that lack it, from an earlier image or a base row."""
    both = pa.concat_arrays([text_of(images, name), text_of(rows, name)])
    taken = np.where(in_base, len(images) + place[at], at)
    return both.take(pa.array(taken, mask=~lacks))


def _looked_up(
    images: pa.RecordBatch, schema: TableSchema, keys: list[pa.Array], look_up: RowLookup, needed: np.ndarray
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return base rows, and for each image in `needed` the number of its row."""
    place = np.full(len(images), -1)
    if not len(needed):
        return pa.RecordBatch.from_pylist([], schema.columns), place
    wanted, numbers = Distinct.of(keys, keys=True)
    rows = look_up(pa.table(keys, names=list(schema.key))).select(schema.columns.names).cast(schema.columns)
    batch = rows.combine_chunks().to_batches()[0] if len(rows) else pa.RecordBatch.from_pylist([], schema.columns)
    of_key = np.full(len(wanted), -1)
    there = wanted.find([batch.column(name) for name in schema.key])
    of_key[there[there >= 0]] = np.flatnonzero(there >= 0)
    place[needed] = of_key[numbers]
    if (place[needed] < 0).any():
        raise missing_base_row(schema.table, images.column("_lsn")[int(needed[place[needed] < 0][0])].as_py())
    return batch, place
