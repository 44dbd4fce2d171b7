"""Tables without a key: bags of rows.

Upstream they have replica identity FULL (or take INSERTs only), so every image carries its whole row, and a change is
one row less, one row more. The order of changes does not matter, only how often each row came and went: that also
makes it the right way to see a table whose key is checked at commit only (DEFERRABLE), where two rows may share a key
for a moment in the middle of a transaction.

::

    images ──▶ +1 for a new row, -1 for an old one ──▶ sum per distinct row ──▶ _count | columns

Rows are the same when every value is the same, bit by bit (`exact`): a row with -0.0 is not the row with 0.0.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from penstock.model import Image, TableSchema
from penstock.tables.absent import absent_row
from penstock.tables.columns import column, exact, own, quoted, toastable
from penstock.tables.contents import Contents
from penstock.tables.timeline import is_image

__all__ = ["fold_bag", "overlay_bag", "replaced_rows", "same_row"]

_COUNT = "_count"


def fold_bag(images: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    """Return the distinct rows whose number changes: ``_count`` (more or fewer) and the columns."""
    if contents.unchanged:
        images = _filled(images, schema)
    sign = F.when(is_image(Image.INSERTED, Image.UPDATED), 1).otherwise(-1).alias(_COUNT)
    rows = images.select(sign, *(F.col("row").getField(name).alias(name) for name in schema.columns.names))
    if contents.inserts_only:
        return rows
    return _counted(rows, schema).filter(F.col(_COUNT) != 0)


def overlay_bag(base: DataFrame, net: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the rows of `base` and `net` together."""
    fewer = net.filter(F.col(_COUNT) < 0).alias("net")
    kept = base.alias("base").join(fewer, same_row(base, schema, "base", "net"), "left_anti")
    return kept.select(*_columns(schema)).union(_copies(replaced_rows(base, net, schema), schema))


def replaced_rows(base: DataFrame, net: DataFrame, schema: TableSchema) -> DataFrame:
    """Return each row that becomes more, or fewer but not none, with the number that takes the place of all in `base`.

    Rows that become more keep their copies in `base`; rows that become fewer lose all copies there first.
    """
    fewer = net.filter(F.col(_COUNT) < 0)
    same = same_row(base, schema, "base", "net")
    there = base.alias("base").join(fewer.alias("net"), same, "left_semi").select(F.lit(1).alias(_COUNT), "*")
    remaining = _counted(there.unionByName(fewer), schema)
    count = F.when(F.col(_COUNT) < 0, absent_row(schema)).otherwise(F.col(_COUNT))
    remaining = remaining.withColumn(_COUNT, count)
    return net.filter(F.col(_COUNT) > 0).unionByName(remaining).filter(F.col(_COUNT) > 0)


def same_row(base: DataFrame, schema: TableSchema, left: str, right: str) -> Column:
    """Whether the rows of two aliases are the same."""
    same = F.lit(True)
    for name in schema.columns.names:
        kind = base.schema[name].dataType
        same &= exact(column(name, left), kind).eqNullSafe(exact(column(name, right), kind))
    return same


def _copies(rows: DataFrame, schema: TableSchema) -> DataFrame:
    repeated = rows.withColumn(own("copy"), F.explode(F.array_repeat(F.lit(0), F.col(_COUNT).cast("int"))))
    return repeated.select(*_columns(schema))


def _counted(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Sum up the counts of each distinct row."""
    identity = [exact(column(f.name), f.dataType).alias(own(f"group_{i}")) for i, f in enumerate(rows.schema.fields)]
    names = schema.columns.names
    groups = [group for group, field in zip(identity, rows.schema.fields, strict=True) if field.name != _COUNT]
    counted = rows.groupBy(*groups).agg(
        F.sum(_COUNT).alias(_COUNT), F.first(F.struct(*_columns(schema))).alias(own("row"))
    )
    return counted.select(_COUNT, *(F.col(own("row")).getField(name).alias(name) for name in names))


def _filled(images: DataFrame, schema: TableSchema) -> DataFrame:
    """Put left-out values in from the old row of the same change."""
    change = Window.partitionBy("_lsn", "_ordinal")
    old = F.max_by("row", F.when(is_image(Image.BEFORE), F.col("_image"))).over(change)
    images = images.withColumn(own("old"), old)
    row = F.col("row")
    listed = F.coalesce("_unchanged", F.array().cast("array<int>"))
    for index, name in toastable(schema):
        value = F.when(F.col(own("old")).isNull(), absent_row(schema)).otherwise(F.col(own("old")).getField(name))
        row = row.withField(quoted(name), F.when(F.array_contains(listed, index), value).otherwise(row.getField(name)))
    return images.withColumn("row", F.when(F.size("_unchanged") > 0, row).otherwise(F.col("row")))


def _columns(schema: TableSchema) -> list[Column]:
    return [column(name) for name in schema.columns.names]
