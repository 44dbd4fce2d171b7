"""Do two tables hold the same rows, and if not, at which keys?

::

    upstream ──▶ (row, 1, 0) ─┐
                              ├─ union ──▶ group by row: how often here, how often there ──▶ unequal: group by key
    live ──────▶ (row, 0, 1) ─┘        (the one shuffle of the data)                        (few rows)

Rows are compared as a bag and bit by bit: a row that is there twice, a null, -0.0 for 0.0 all count. Whole rows are
what is grouped, not a hash of them, so equal means equal. Only the first differing keys leave Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from penstock.errors import UsageError
from penstock.tables.columns import column, exact, own

__all__ = ["Differences", "differences"]

_HERE, _THERE, _KEY = own("upstream"), own("live"), own("key")


@dataclass(frozen=True)
class Differences:
    """What differs; `count` is the number of keys (of distinct rows, for a table without a key)."""

    count: int
    keys: list[dict[str, Any]]
    """The first of them, as many as asked for."""
    rows_compared: int
    """Rows upstream."""
    missing: int = 0
    """Keys that are upstream only."""
    unexpected: int = 0
    """Keys that are live only."""

    @property
    def changed(self) -> int:
        """Keys that are in both, with other values."""
        return self.count - self.missing - self.unexpected


def differences(upstream: DataFrame, live: DataFrame, key: Sequence[str], limit: int = 20) -> Differences:
    """Compare two DataFrames with the same columns, row by row."""
    _same_columns(upstream, live)
    by_key = _differing_keys(_counted(upstream, live), list(key) or upstream.columns).persist()
    try:
        total = by_key.agg(
            F.sum("rows"),
            F.count(_KEY),
            F.count_if(F.col(_KEY).isNotNull() & (F.col(_THERE) == 0)),
            F.count_if(F.col(_KEY).isNotNull() & (F.col(_HERE) == 0)),
        ).collect()[0]
        keys = _first(by_key, limit) if total[1] else []
    finally:
        by_key.unpersist()
    return Differences(total[1], keys, total[0] or 0, total[2], total[3])


def _same_columns(upstream: DataFrame, live: DataFrame) -> None:
    here, there = ([(f.name, f.dataType.simpleString()) for f in df.schema] for df in (upstream, live))
    if here != there:
        unequal = sorted({name for name, _ in set(here) ^ set(there)}) or ["their order"]
        message = f"the two tables do not have the same columns: {', '.join(unequal)}"
        raise UsageError(message, "compare them with the same columns, types and order")


def _counted(upstream: DataFrame, live: DataFrame) -> DataFrame:
    """Return each distinct row, once, with how often it is on either side."""
    sides = upstream.select("*", F.lit(1).alias(_HERE), F.lit(0).alias(_THERE)).union(
        live.select("*", F.lit(0).alias(_HERE), F.lit(1).alias(_THERE))
    )
    groups = [exact(column(f.name), f.dataType).alias(f.name) for f in upstream.schema]
    return sides.groupBy(*groups).agg(F.sum(_HERE).alias(_HERE), F.sum(_THERE).alias(_THERE))


def _differing_keys(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Group unequal rows by key, and all equal rows under the key null, so that they are counted too."""
    differs = F.col(_HERE) != F.col(_THERE)
    identity: Column = F.when(differs, F.struct(*map(column, key)))
    surplus = F.greatest(F.col(_HERE) - F.col(_THERE), F.lit(0)), F.greatest(F.col(_THERE) - F.col(_HERE), F.lit(0))
    return rows.groupBy(identity.alias(_KEY)).agg(
        F.sum(_HERE).alias("rows"), F.sum(surplus[0]).alias(_HERE), F.sum(surplus[1]).alias(_THERE)
    )


def _first(by_key: DataFrame, limit: int) -> list[dict[str, Any]]:
    found = by_key.filter(F.col(_KEY).isNotNull()).select(_KEY).orderBy(_KEY).limit(limit).collect()
    return [row[0].asDict(recursive=True) for row in found]
