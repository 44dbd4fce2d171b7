"""A table at T, as a query: the base table at L and the net effect of (L, T].

::

    base@L ──▶ minus the keys in net (anti join) ──┐
                                                   ├─ union ──▶ the table at T
    net ──▶ rows that are there ── left-out values ┘
                                        ▲
    base@L ──▶ the few rows they are in ┘

Every key of the table is in exactly one half: touched in (L, T], then `net` says what it is, else `base` does. The
union is a plain projection, so filters and column choice go down into the Delta scan.

`net` stands in the plan twice (three times where values were left out): persist it when reading it is dear. It is
broadcast when known to be small; an unknown or large one is left to the planner.

A left-out value whose base row is not there is an error, never a null (`absent_rows_told` puts it in words).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.model import TableSchema
from penstock.tables.columns import column, own, toastable
from penstock.tables.contents import Contents
from penstock.tables.fold import overlay_bag
from penstock.tables.missing_rows import absent_row

__all__ = ["filled", "overlay"]

_BROADCAST_ROWS = 500_000
_NOTHING = Contents()


def overlay(
    base: DataFrame, net: DataFrame, schema: TableSchema, contents: Contents = _NOTHING, *, damaged: bool = False
) -> DataFrame:
    """Return the table that `base` becomes through `net`, which is `fold` of images with these `contents`.

    Of a table that is `damaged`, values whose row is not there are null: for those who look for what is wrong with it.
    """
    if contents.truncated is not None:
        base = base.limit(0)
    if not schema.key:
        return overlay_bag(base, net, schema)
    columns = [column(name) for name in schema.columns.names]
    present = net.filter(~F.col("_gone"))
    if contents.unchanged:
        present = filled(base, present, schema, contents, damaged=damaged)
    if contents.truncated is not None:
        return present.select(*columns)
    return _kept(base, net, schema, contents).select(*columns).union(present.select(*columns))


def filled(
    base: DataFrame, net: DataFrame, schema: TableSchema, contents: Contents = _NOTHING, *, damaged: bool = False
) -> DataFrame:
    """Return `net` with all values that it lists in ``_unchanged`` taken from `base`."""
    places = dict(toastable(schema))
    if not places:
        return net
    listed = F.size("_unchanged") > 0
    sought = {own(f"sought_{i}"): F.when(listed, _source_key(name)) for i, name in enumerate(schema.key)}
    wanted = net.withColumns(sought)
    values = _values(base, wanted.filter(listed), schema, contents)
    found = wanted.join(_hinted(values, contents), _matches(schema), "left")
    absent = F.lit(None) if damaged else absent_row(schema)
    new = {name: _value_or(absent, index, name) for index, name in places.items()}
    return found.select(
        *(column(c) for c in ("_gone", "_from")),
        F.lit(None).cast("array<int>").alias("_unchanged"),
        *(new.get(name, column(name)).alias(name) for name in schema.columns.names),
    )


def _kept(base: DataFrame, net: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    if contents.inserts_only:
        return base
    touched = net.select(*(column(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)))
    return base.join(_hinted(touched, contents), _equal(schema, "key"), "left_anti")


def _values(base: DataFrame, wanted: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    """Return the base rows that are sought: their key and the columns that can be left out."""
    keys = wanted.select(*(F.col(own(f"sought_{i}")).alias(own(f"key_{i}")) for i, _ in enumerate(schema.key)))
    rows = base.join(_hinted(keys, contents), _equal(schema, "key"), "left_semi")
    return rows.select(
        *(column(name).alias(own(f"found_{i}")) for i, name in enumerate(schema.key)),
        *(column(name).alias(own(f"base_{index}")) for index, name in toastable(schema)),
    )


def _equal(schema: TableSchema, prefix: str) -> Column:
    equal = F.lit(True)
    for i, name in enumerate(schema.key):
        equal &= column(name) == F.col(own(f"{prefix}_{i}"))
    return equal


def _matches(schema: TableSchema) -> Column:
    matches = F.lit(True)
    for i, _ in enumerate(schema.key):
        matches &= F.col(own(f"sought_{i}")) == F.col(own(f"found_{i}"))
    return matches


def _source_key(name: str) -> Column:
    return F.when(F.col("_from").isNotNull(), F.col("_from").getField(name)).otherwise(column(name))


def _value_or(absent: Column, index: int, name: str) -> Column:
    found = F.col(own("found_0")).isNotNull()
    value = F.when(found, F.col(own(f"base_{index}"))).otherwise(absent)
    return F.when(F.array_contains("_unchanged", index), value).otherwise(column(name))


def _hinted(rows: DataFrame, contents: Contents) -> DataFrame:
    small = contents.rows is not None and contents.rows <= _BROADCAST_ROWS
    return F.broadcast(rows) if small else rows
