"""Repair: correct rows at a position, merged into the net change that takes a table to that position.

::

    net of (L, P] ──▶ without the repaired keys ─────┐
    correct rows at P, of these keys ────────────────┼─▶ net of (L, P] and of the repair: one merge, one commit at P
    keys without a correct row ──▶ deleted ──────────┘
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.model import FROM, GONE, UNCHANGED, TableSchema
from penstock.tables.columns import column, own
from penstock.tables.contents import Contents
from penstock.tables.log_tail import Tail
from penstock.tables.overlay import overlay

__all__ = [
    "overlay_tail",
    "repair_tail",
    "rows_with_keys",
    "tail_of_keys",
    "tail_without_keys",
    "unresolved_moves",
]


def overlay_tail(rows: DataFrame, tail: Tail | None, schema: TableSchema) -> DataFrame:
    """Advance rows that were read at some point within a range to its end.

    Unlike base rows, they may already contain changes of the range, including inserts. The net change must be
    restricted to the rows that were read: omitted values of other rows would not be found.
    """
    if tail is None:
        return rows
    return overlay(rows, tail.net, schema, replace(tail.contents, inserts_only=False))


def repair_tail(tail: Tail | None, right: DataFrame, keys: DataFrame, schema: TableSchema) -> Tail:
    """Return a net change that also replaces all rows with these keys by `right`; keys without a row are deleted."""
    present = right.withColumn(GONE, F.lit(False))
    absent = rows_with_keys(keys, right, schema, "left_anti").withColumn(GONE, F.lit(True))
    repaired = present.unionByName(absent, allowMissingColumns=True)
    if tail is None:
        return Tail(repaired, Contents(unchanged=False, moved=False))
    others = rows_with_keys(tail.net, keys, schema, "left_anti")
    contents = replace(tail.contents, rows=None, inserts_only=False)
    return Tail(others.unionByName(repaired, allowMissingColumns=True), contents)


def tail_without_keys(tail: Tail | None, keys: DataFrame, schema: TableSchema) -> Tail | None:
    """Return the net change of all rows except those with these keys."""
    return None if tail is None else replace(tail, net=rows_with_keys(tail.net, keys, schema, "left_anti"))


def tail_of_keys(tail: Tail | None, keys: DataFrame, schema: TableSchema) -> Tail | None:
    """Return the net change of the rows with these keys."""
    return None if tail is None else replace(tail, net=rows_with_keys(tail.net, keys, schema))


def unresolved_moves(tail: Tail | None, schema: TableSchema, sources: DataFrame | None = None) -> list[dict[str, Any]]:
    """Return the keys of rows whose key changed in the range, and some of whose values the range does not contain.

    In an overlay on a base table at the start of the range, these values are those of the row at the old key. A later
    read at that key may return another row. With `sources`, only rows whose old key is among those count.
    """
    if tail is None or not (tail.contents.unchanged and tail.contents.moved):
        return []
    wanted = tail.net.filter(~F.col(GONE) & F.col(FROM).isNotNull() & (F.size(UNCHANGED) > 0))
    if sources is not None:
        listed = sources.select(*(column(name).alias(own(f"source_{i}")) for i, name in enumerate(schema.key)))
        same = F.lit(True)
        for i, name in enumerate(schema.key):
            same &= F.col(FROM).getField(name) == F.col(own(f"source_{i}"))
        wanted = wanted.join(listed, same, "left_semi")
    return list(wanted.select(*map(column, schema.key)).toArrow().to_pylist())


def rows_with_keys(rows: DataFrame, keys: DataFrame, schema: TableSchema, how: str = "left_semi") -> DataFrame:
    """Return the rows that have one of these keys; with ``left_anti``, those that have none of them."""
    listed = keys.select(*(column(name).alias(own(f"asked_{i}")) for i, name in enumerate(schema.key)))
    same = F.lit(True)
    for i, name in enumerate(schema.key):
        same &= column(name) == F.col(own(f"asked_{i}"))
    return rows.join(listed, same, how)
