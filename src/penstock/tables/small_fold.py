"""The net effect of a small range, folded in Arrow: what a live view needs within milliseconds.

The tail of a live table is short, and `fold` in Spark costs jobs for it, once for every time that the table stands in a
query. Here the last image per key is found by one grouping over row numbers (the log gives images in their order),
and Spark gets the result as a local relation.

Only ranges in which every image holds its whole row are folded here: no left-out values, a key, and neither a nested
column nor a floating-point one in it (0.0 and -0.0 are one key to Postgres and to Spark, but not to Arrow). `fold` does
all others. Both are held to the same reference model in the tests.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model import RESERVED, Image, TableSchema
from penstock.tables.contents import Contents

__all__ = ["can_fold_small", "fold_small"]


def can_fold_small(schema: TableSchema, contents: Contents) -> bool:
    """Whether `fold_small` is exact for such a range."""
    keys = [schema.columns.field(name).type for name in schema.key]
    if not keys or contents.unchanged or RESERVED & {name.lower() for name in schema.columns.names}:
        return False
    return not any(pa.types.is_floating(kind) or pa.types.is_nested(kind) for kind in keys)


def fold_small(images: pa.Table, schema: TableSchema, contents: Contents) -> pa.Table:
    """Return one row per key that `images`, in order, touch: ``_gone`` and the table's columns."""
    images = images.slice(_after_truncate(images)) if contents.truncated is not None else images
    rows = pa.Table.from_struct_array(images.column("row").combine_chunks()) if len(images) else None
    if rows is None:
        return _net_schema(schema).empty_table()
    gone = pc.less(images.column("_image"), pa.scalar(int(Image.UPDATED), pa.int8()))
    net = rows.add_column(0, "_gone", gone)
    if contents.inserts_only:
        return net.cast(_net_schema(schema))
    return net.take(_last_of_each_key(rows, schema)).cast(_net_schema(schema))


def _last_of_each_key(rows: pa.Table, schema: TableSchema) -> pa.ChunkedArray:
    numbered = pa.table(
        {f"key_{i}": rows.column(name) for i, name in enumerate(schema.key)} | {"row": pa.array(np.arange(len(rows)))}
    )
    grouped = numbered.group_by([f"key_{i}" for i, _ in enumerate(schema.key)], use_threads=False)
    return grouped.aggregate([("row", "max")]).column("row_max")


def _after_truncate(images: pa.Table) -> int:
    """Return the number of the first image after the last TRUNCATE."""
    truncates = pc.equal(images.column("_image"), pa.scalar(int(Image.TRUNCATE), pa.int8()))
    return int(pc.max(pc.indices_nonzero(truncates)).as_py()) + 1


def _net_schema(schema: TableSchema) -> pa.Schema:
    return pa.schema([pa.field("_gone", pa.bool_(), nullable=False), *schema.columns])
