"""Overlay: a table at T as a query over the base table at L and the net change of (L, T].

::

    base@L ──▶ minus the keys in net (anti join) ──┐
                                                   ├─ union ──▶ the table at T
    net ──▶ present rows ──────── omitted values ──┘
                                        ▲
    base@L ──▶ the few rows they are in ┘

Every key of the table is in exactly one half: a key touched in (L, T] is in `net`, any other is in `base`. The
union is a plain projection, so Spark pushes filters and column pruning down into the Delta scan.

`net` occurs in the plan twice (three times if values were omitted): persist it if it is expensive to read. It is
broadcast if it is known to be small; otherwise the planner decides.

An omitted value whose base row is missing is an error, never a null (`missing_row_errors` converts it).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.model import FROM, GONE, RESCUED, UNCHANGED, TableSchema
from penstock.tables.columns import column, own, quoted, rescuable, text_of, toastable, with_texts
from penstock.tables.contents import Contents
from penstock.tables.fold import overlay_keyless
from penstock.tables.missing_rows import raise_missing_row

__all__ = ["filled", "overlay"]

_BROADCAST_ROWS = 500_000
_NOTHING = Contents()


def overlay(
    base: DataFrame, net: DataFrame, schema: TableSchema, contents: Contents = _NOTHING, *, damaged: bool = False
) -> DataFrame:
    """Return `base` with `net` applied, which is the `fold` of images with these `contents`.

    If the table is `damaged`, values whose base row is missing are null, so that verify and repair can read it.
    """
    if contents.truncated is not None:
        base = base.limit(0)
    if not schema.key:
        return overlay_keyless(base, net, schema)
    columns = [quoted(name) for name in schema.columns.names]
    present = net.filter(~F.col(GONE))
    if contents.unchanged:
        present = filled(base, present, schema, contents, damaged=damaged)
    if contents.truncated is not None:
        return present.select(*columns)
    return _kept(base, net, schema, contents).select(*columns).union(present.select(*columns))


def filled(
    base: DataFrame, net: DataFrame, schema: TableSchema, contents: Contents = _NOTHING, *, damaged: bool = False
) -> DataFrame:
    """Return `net` with all values listed in `UNCHANGED` taken from `base`."""
    places = dict(toastable(schema))
    if not places:
        return net
    listed = F.size(UNCHANGED) > 0
    sought = {own(f"sought_{i}"): F.when(listed, _source_key(name)) for i, name in enumerate(schema.key)}
    wanted = net.withColumns(sought)
    values = _values(base, wanted.filter(listed), schema, contents)
    found = wanted.join(_hinted(values, contents), _matches(schema), "left")
    absent = F.lit(None) if damaged else raise_missing_row(schema)
    new = {name: _value_or(absent, index, name) for index, name in places.items()}
    omitted = rescuable(schema)
    if omitted:
        base_texts = F.col(own("base_texts"))
        texts = [(name, F.when(F.array_contains(UNCHANGED, i), text_of(base_texts, name))) for i, name in omitted]
        new[RESCUED] = with_texts(column(RESCUED), texts)
    return found.select(
        *(column(c) for c in (GONE, FROM)),
        F.lit(None).cast("array<int>").alias(UNCHANGED),
        *(new.get(name, column(name)).alias(name) for name in schema.columns.names),
    )


def _kept(base: DataFrame, net: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    if contents.inserts_only:
        return base
    touched = net.select(*(column(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)))
    return base.join(_hinted(touched, contents), _equal(schema, "key"), "left_anti")


def _values(base: DataFrame, wanted: DataFrame, schema: TableSchema, contents: Contents) -> DataFrame:
    """Return the base rows that supply omitted values: their key and the columns that can be omitted."""
    keys = wanted.select(*(F.col(own(f"sought_{i}")).alias(own(f"key_{i}")) for i, _ in enumerate(schema.key)))
    rows = base.join(_hinted(keys, contents), _equal(schema, "key"), "left_semi")
    return rows.select(
        *(column(name).alias(own(f"found_{i}")) for i, name in enumerate(schema.key)),
        *(column(name).alias(own(f"base_{index}")) for index, name in toastable(schema)),
        *([column(RESCUED).alias(own("base_texts"))] if rescuable(schema) else []),
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
    return F.when(F.col(FROM).isNotNull(), F.col(FROM).getField(name)).otherwise(column(name))


def _value_or(absent: Column, index: int, name: str) -> Column:
    found = F.col(own("found_0")).isNotNull()
    value = F.when(found, F.col(own(f"base_{index}"))).otherwise(absent)
    return F.when(F.array_contains(UNCHANGED, index), value).otherwise(column(name))


def _hinted(rows: DataFrame, contents: Contents) -> DataFrame:
    small = contents.rows is not None and contents.rows <= _BROADCAST_ROWS
    return F.broadcast(rows) if small else rows
