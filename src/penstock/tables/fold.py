"""The net effect of a range of images, per key.

::

    images (L, T] ──▶ drop what a TRUNCATE wiped out ──▶ last image per key ──▶ _gone | _unchanged | _from | columns

Images are ordered by ``(_lsn, _ordinal, _image)``; the last one of a key says whether its row is there, and which. That
is one aggregation (`max_by`), and all there is to do as long as every image carries its whole row.

**Unchanged TOAST values.** An UPDATED image may leave out values; they are those of the row before it. Within one key,
that is the newest earlier image that has the value: after a DELETE the key comes back with an INSERTED image, which
has all of them, so nothing from before the DELETE is ever the newest. No such image in the range: the value is in the
base row, and the column stays listed in ``_unchanged``. One more `max_by` per column that can be left out, same pass.

**Changed keys.** Then the row before it stood at another key, and "the newest at this key" would be a value of some
other row. `penstock.tables.moves` follows rows instead of keys there. It is taken only where a range may hold both,
left-out values and changed keys; all other ranges do not pay for it. (Without left-out values a change of key is a
row gone here and a row present there: two keys, each with its last image.)

A table without a key is a bag of rows, see `penstock.tables.bags`.

Why `max_by` and not ``row_number() = 1``: both shuffle once, combine before that, and took the same time (10 thousand
and 1 million images); `max_by` gives the newest value of every column in the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import UsageError
from penstock.model import RESERVED, TableSchema
from penstock.tables.bags import fold_bag
from penstock.tables.columns import own, toastable
from penstock.tables.contents import Contents
from penstock.tables.moves import fold_moves
from penstock.tables.timeline import after_truncate, flat, known_values, last_image

__all__ = ["fold", "refuse_reserved"]

_NOTHING = Contents()


def fold(images: DataFrame, schema: TableSchema, contents: Contents = _NOTHING) -> DataFrame:
    """Return one row per key that `images` touch: ``_gone``, ``_unchanged``, ``_from`` and the table's columns.

    ``_unchanged`` lists the columns (by index) whose value is that of the base row with key ``_from``, or with the
    row's own key where ``_from`` is null: it never had another. Columns outside the key are null where ``_gone``. For a
    table without a key, one row per distinct row: ``_count`` (how many more or fewer of it) and its columns.

    Lazy, but for one case: where `contents` allow both left-out values and changed keys, jobs run here.
    """
    refuse_reserved(schema)
    images = after_truncate(images, contents)
    if not schema.key:
        return fold_bag(images, schema, contents)
    if contents.inserts_only:
        return flat(images.select(F.struct("_image", "_unchanged", "row").alias(own("last"))), schema)
    if contents.unchanged and contents.moved:
        return fold_moves(images, schema)
    return _fold_keys(images, schema, [*toastable(schema)] if contents.unchanged else [])


def _fold_keys(images: DataFrame, schema: TableSchema, left_out: Sequence[tuple[int, str]]) -> DataFrame:
    keys = [F.col("row").getField(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)]
    grouped = images.groupBy(*keys).agg(last_image(), *known_values(left_out))
    values: dict[int, Column] = {index: F.col(own(f"value_{index}")) for index, _ in left_out}
    return flat(grouped, schema, values)


def refuse_reserved(schema: TableSchema) -> None:
    """Raise a `UsageError` where a column has a name that stands beside the table's columns in a net effect."""
    taken = RESERVED & {name.lower() for name in schema.columns.names}
    if taken:
        message = f"table {schema.table} has a column {sorted(taken)[0]!r}, a name that Penstock uses itself"
        raise UsageError(message, "exclude that column from the source, or rename it upstream")
