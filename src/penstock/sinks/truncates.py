"""TRUNCATE as the deletes of all rows, for envelopes that have a message for each deleted row.

::

    rows at the start of the range ─┐
    changes before the TRUNCATE ────┴─▶ the rows that it removed ─▶ a DELETED image each, in its place
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from penstock.errors import DefiniteError
from penstock.model import Image, TableSchema
from penstock.tables.arrow.distinct_rows import Distinct

__all__ = ["truncates_as_deletes"]


def truncates_as_deletes(
    images: pa.RecordBatch, schema: TableSchema, rows: Callable[[], Iterable[pa.RecordBatch]]
) -> pa.RecordBatch:
    """Return images of a range with deletes in place of each TRUNCATE; `rows` are those where the range begins.

    The images are complete (`penstock.tables.arrow.complete`). A table without a key raises `DefiniteError`.
    """
    places = np.flatnonzero(images.column("_image").to_numpy() == Image.TRUNCATE)
    if not len(places):
        return images
    if not schema.key:
        message = f"{schema.table} was truncated, and its rows cannot be told apart without a key"
        raise DefiniteError(message, "Drop the sink, delete its topics, and create the sink again.")
    parts, first = [], 0
    for number, place in enumerate(places):
        before = images.slice(first, place - first)
        parts += [before, *_deletes(images, int(place), before, schema, rows() if number == 0 else ())]
        first = int(place) + 1
    return pa.concat_batches([*parts, images.slice(first)])


def _deletes(
    images: pa.RecordBatch, place: int, before: pa.RecordBatch, schema: TableSchema, rows: Iterable[pa.RecordBatch]
) -> list[pa.RecordBatch]:
    """Return the rows that existed before a TRUNCATE, as images of its transaction."""
    changed = pa.RecordBatch.from_struct_array(before.column("row"))
    touched, numbers = Distinct.of([changed.column(name) for name in schema.key], keys=True)
    last = np.zeros(len(touched), np.int64)
    last[numbers] = np.arange(len(numbers))  # for duplicates, numpy keeps the last
    exists = last[before.column("_image").to_numpy()[last] >= Image.UPDATED]
    found = [changed.take(pa.array(exists))]
    for batch in rows:
        untouched = touched.find([batch.column(name) for name in schema.key]) < 0
        found.append(batch.select(schema.columns.names).filter(pa.array(untouched)))
    return [_as_deletes(images, place, batch) for batch in found if len(batch)]


def _as_deletes(images: pa.RecordBatch, place: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    same = images.take(pa.array(np.full(len(rows), place)))
    kinds = pa.array(np.full(len(rows), int(Image.DELETED), np.int8))
    fields = list(images.schema.field("row").type)
    changed = {"_image": kinds, "row": pa.StructArray.from_arrays(rows.columns, fields=fields)}
    arrays = [changed.get(name, same.column(name)) for name in images.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=images.schema)
