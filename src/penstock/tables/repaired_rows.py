"""Rows that are known to be right at a position, put into the net effect that takes a table there.

::

    net of (L, P] ──▶ without the keys in question ──┐
    right rows at P, of these keys ──────────────────┼─▶ net of (L, P] and of the mending: one merge, one commit at P
    the keys that have no right row ──▶ gone ────────┘
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.model import TableSchema
from penstock.tables.columns import column, own
from penstock.tables.contents import Contents
from penstock.tables.overlay import overlay
from penstock.tables.tail import Tail

__all__ = ["laid_over", "of_keys", "only", "put_right", "unresolved", "without"]


def laid_over(rows: DataFrame, tail: Tail | None, schema: TableSchema) -> DataFrame:
    """Return what rows that were read somewhere in a range are at its end.

    Other than base rows, they may show changes of the range already: also what it inserts. The net effect must be one
    on what was read alone: values that other rows left out would be looked for in vain.
    """
    if tail is None:
        return rows
    return overlay(rows, tail.net, schema, replace(tail.contents, inserts_only=False))


def put_right(tail: Tail | None, right: DataFrame, keys: DataFrame, schema: TableSchema) -> Tail:
    """Return the net effect that also makes `right` of all rows that have these keys: those without one go."""
    present = right.withColumn("_gone", F.lit(False))
    absent = of_keys(keys, right, schema, "left_anti").withColumn("_gone", F.lit(True))
    mended = present.unionByName(absent, allowMissingColumns=True)
    if tail is None:
        return Tail(mended, Contents(unchanged=False, moved=False))
    others = of_keys(tail.net, keys, schema, "left_anti")
    contents = replace(tail.contents, rows=None, inserts_only=False)
    return Tail(others.unionByName(mended, allowMissingColumns=True), contents)


def without(tail: Tail | None, keys: DataFrame, schema: TableSchema) -> Tail | None:
    """Return the net effect on all rows but those that have these keys."""
    return None if tail is None else replace(tail, net=of_keys(tail.net, keys, schema, "left_anti"))


def only(tail: Tail | None, keys: DataFrame, schema: TableSchema) -> Tail | None:
    """Return the net effect on rows that have these keys."""
    return None if tail is None else replace(tail, net=of_keys(tail.net, keys, schema))


def unresolved(tail: Tail | None, schema: TableSchema, sources: DataFrame | None = None) -> list[dict[str, Any]]:
    """Return the keys of rows that changed their key in the range, and have values that it does not tell.

    Laid over a base table at its start, these values are those of the row at the old key. What was read later at that
    key may be another row. With `sources`, only rows whose old key is one of those count.
    """
    if tail is None or not (tail.contents.unchanged and tail.contents.moved):
        return []
    wanted = tail.net.filter(~F.col("_gone") & F.col("_from").isNotNull() & (F.size("_unchanged") > 0))
    if sources is not None:
        listed = sources.select(*(column(name).alias(own(f"source_{i}")) for i, name in enumerate(schema.key)))
        same = F.lit(True)
        for i, name in enumerate(schema.key):
            same &= F.col("_from").getField(name) == F.col(own(f"source_{i}"))
        wanted = wanted.join(listed, same, "left_semi")
    return list(wanted.select(*map(column, schema.key)).toArrow().to_pylist())


def of_keys(rows: DataFrame, keys: DataFrame, schema: TableSchema, how: str = "left_semi") -> DataFrame:
    """Return the rows that have one of these keys; or, with ``left_anti``, those that have none of them."""
    listed = keys.select(*(column(name).alias(own(f"asked_{i}")) for i, name in enumerate(schema.key)))
    same = F.lit(True)
    for i, name in enumerate(schema.key):
        same &= column(name) == F.col(own(f"asked_{i}"))
    return rows.join(listed, same, how)
