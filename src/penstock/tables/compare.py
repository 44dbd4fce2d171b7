"""Compare two tables: do they contain the same rows, and if not, which keys differ?

::

    both sides ─▶ hashed, summed per bucket ─▶ all sums agree: equal
                                            └▶ rows of the differing buckets ─▶

    upstream ──▶ (row, 1, 0) ─┐
                              ├─ union ──▶ group by row: count on either side ──▶ counts differ: group by key
    live ──────▶ (row, 0, 1) ─┘        (the only shuffle of rows)                 (few rows)

Rows are compared as a multiset and bit by bit: duplicates, nulls and -0.0 versus 0.0 all count. Within the differing
buckets, whole rows are grouped, not their hashes; ``exact=True`` does so for all rows, without relying on hashes. Only
the first differing keys leave Spark.

**Buckets** find the parts of two tables that differ without shuffling a row::

    upstream ─▶ (bucket, +1, two hashes of the row) ─┐
                                                     ├─▶ summed per bucket, where the rows are ─▶ not zero: differs
    live ─────▶ (bucket, -1, two hashes of the row) ─┘

A bucket is a hash of the key (of the row, for a keyless table), so the old and the new version of a changed row are in
the same bucket. Sums are computed on both sides of the shuffle: each task sends a few thousand numbers, regardless of
the number of rows.

**Probability of a miss.** A difference is found unless the sums of two 64-bit hashes with different seeds agree by
chance over the differing rows: one in 2^128. Rows constructed to collide require the exact comparison. Sums are exact:
hashes are added in halves of 32 bits, which do not overflow below 2^31 rows per bucket, so copies of a row cannot
cancel out.

**Hash input.** The row is hashed in its `exact` form. In Spark a null leaves the hash unchanged, and so does an empty
array: ``(null, 'a')`` and ``('a', null)`` would be equal. Therefore each value is preceded by whether it is null, each
array by its length, and each array item is hashed separately.

`changed_keys` returns the keys of all rows that differ, for repair.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from penstock.changelog.json_rows import json_rows
from penstock.errors import UsageError
from penstock.model import TableSchema
from penstock.tables.columns import column, exact, own
from penstock.tables.columns import exact as exactly

__all__ = [
    "BUCKETS",
    "Buckets",
    "Difference",
    "Differences",
    "How",
    "changed_keys",
    "differences",
    "differing_buckets",
    "in_buckets",
]

_HERE, _THERE, _KEY = own("upstream"), own("live"), own("key")


class How(enum.StrEnum):
    """How the rows of a key differ."""

    MISSING = "missing"
    """They are upstream only, or more often upstream."""
    UNEXPECTED = "unexpected"
    """They are in the live table only, or more often there."""
    CHANGED = "changed"
    """They are on both sides, with different values."""


@dataclass(frozen=True)
class Difference:
    """A key at which the tables differ; in a keyless table, a row."""

    key: dict[str, Any]
    """Floats are given as text."""
    how: How
    json: str = field(default="", compare=False)
    """The key as a JSON object."""


@dataclass(frozen=True)
class Differences:
    """The result of a comparison; `count` is the number of keys (distinct rows in a keyless table) that differ."""

    count: int
    first: list[Difference]
    """The first differences, up to the limit of the caller."""
    rows_compared: int
    """The number of rows upstream."""
    missing: int = 0
    """The number of keys that are upstream only."""
    unexpected: int = 0
    """The number of keys that are in the live table only."""

    @property
    def changed(self) -> int:
        """The number of keys that are on both sides, with different values."""
        return self.count - self.missing - self.unexpected

    @property
    def keys(self) -> list[dict[str, Any]]:
        """The first keys that differ."""
        return [difference.key for difference in self.first]


def differences(
    upstream: DataFrame, live: DataFrame, key: Sequence[str], limit: int = 20, *, exact: bool = False
) -> Differences:
    """Compare two DataFrames with the same columns, row by row; `exact` does not rely on hashes."""
    _same_columns(upstream, live)
    here, there = _exact_rows(upstream), _exact_rows(live)
    if exact:
        return _exactly(here, there, key, limit)
    found = differing_buckets(here, there, key)
    if not found.differing:
        return Differences(0, [], found.rows)
    here, there = (in_buckets(side, key, found.differing) for side in (here, there))
    return _exactly(here, there, key, limit, found)


def _exactly(
    upstream: DataFrame, live: DataFrame, key: Sequence[str], limit: int, found: Buckets | None = None
) -> Differences:
    """Compare all rows; if only some buckets are given, `found` holds the number of all rows."""
    by_key = _differing_keys(_counted(upstream, live), list(key) or upstream.columns).persist()
    try:
        total = by_key.agg(
            F.sum("rows"),
            F.count(_KEY),
            F.count_if(F.col(_KEY).isNotNull() & (F.col(_THERE) == 0)),
            F.count_if(F.col(_KEY).isNotNull() & (F.col(_HERE) == 0)),
        ).collect()[0]
        first = _first(by_key, limit) if total[1] else []
    finally:
        by_key.unpersist()
    return Differences(total[1], first, found.rows if found else total[0] or 0, total[2], total[3])


def _same_columns(upstream: DataFrame, live: DataFrame) -> None:
    here, there = ([(f.name, f.dataType.simpleString()) for f in df.schema] for df in (upstream, live))
    if here != there:
        unequal = sorted({name for name, _ in set(here) ^ set(there)}) or ["order of columns"]
        message = f"the two tables have different columns: {', '.join(unequal)}"
        raise UsageError(message, "Compare tables with the same columns, types and order.")


def _exact_rows(rows: DataFrame) -> DataFrame:
    return rows.select(*(exactly(column(f.name), f.dataType).alias(f.name) for f in rows.schema))


def _counted(upstream: DataFrame, live: DataFrame) -> DataFrame:
    """Return each distinct row once, with its count on either side."""
    sides = upstream.select("*", F.lit(1).alias(_HERE), F.lit(0).alias(_THERE)).union(
        live.select("*", F.lit(0).alias(_HERE), F.lit(1).alias(_THERE))
    )
    return sides.groupBy(*map(column, upstream.columns)).agg(F.sum(_HERE).alias(_HERE), F.sum(_THERE).alias(_THERE))


def _differing_keys(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """Group unequal rows by key, and all equal rows under the key null, so that they are counted too."""
    differs = F.col(_HERE) != F.col(_THERE)
    identity: Column = F.when(differs, F.struct(*map(column, key)))
    surplus = F.greatest(F.col(_HERE) - F.col(_THERE), F.lit(0)), F.greatest(F.col(_THERE) - F.col(_HERE), F.lit(0))
    return rows.groupBy(identity.alias(_KEY)).agg(
        F.sum(_HERE).alias("rows"), F.sum(surplus[0]).alias(_HERE), F.sum(surplus[1]).alias(_THERE)
    )


def _first(by_key: DataFrame, limit: int) -> list[Difference]:
    how = F.when(F.col(_THERE) == 0, How.MISSING.value).when(F.col(_HERE) == 0, How.UNEXPECTED.value)
    labelled = by_key.filter(F.col(_KEY).isNotNull()).select(_KEY, how.otherwise(How.CHANGED.value).alias(_HERE))
    found = labelled.orderBy(_KEY).limit(limit).toArrow().combine_chunks()
    keys: pa.StructArray = found.column(0).chunk(0)
    rows = zip(keys.to_pylist(), found.column(1).to_pylist(), json_rows(keys).to_pylist(), strict=True)
    return [Difference(key, How(how), text) for key, how, text in rows]


BUCKETS = 4096
_KEY_SEED, *_ROW_SEEDS = range(3)
_BUCKET, _SIGN = own("bucket"), own("sign")
_HASHES = [own(f"hash_{seed}") for seed in _ROW_SEEDS]
_HALF = 32


@dataclass(frozen=True)
class Buckets:
    """The buckets in which two tables differ; none if they are equal."""

    differing: list[int]
    rows: int
    """The number of rows on the first side."""


def differing_buckets(upstream: DataFrame, live: DataFrame, key: Sequence[str]) -> Buckets:
    """Compare two tables, in their exact form and with the same columns, in one pass over each."""
    sides = _hashed(upstream, key, 1).union(_hashed(live, key, -1))
    halves = [half for name in _HASHES for half in _halves(F.col(name))]
    sums = [F.sum(F.col(_SIGN)), *(F.sum(F.col(_SIGN) * half) for half in halves)]
    by_bucket = sides.groupBy(_BUCKET).agg(
        F.count_if(F.col(_SIGN) > 0).alias("rows"), *(each.alias(f"sum_{at}") for at, each in enumerate(sums))
    )
    differs = F.lit(False)
    for at in range(len(sums)):
        differs |= F.col(f"sum_{at}") != 0
    found = by_bucket.agg(F.sum("rows"), F.collect_list(F.when(differs, F.col(_BUCKET)))).collect()[0]
    return Buckets(sorted(found[1]), found[0] or 0)


def in_buckets(rows: DataFrame, key: Sequence[str], buckets: Sequence[int]) -> DataFrame:
    """Return the rows of a table, in its exact form, that are in the given buckets."""
    return rows if len(buckets) == BUCKETS else rows.filter(_bucket(rows, key).isin(list(buckets)))


def _hashed(rows: DataFrame, key: Sequence[str], sign: int) -> DataFrame:
    hashes = [_hash(rows, rows.columns, seed).alias(name) for seed, name in zip(_ROW_SEEDS, _HASHES, strict=True)]
    return rows.select(_bucket(rows, key).alias(_BUCKET), F.lit(sign).alias(_SIGN), *hashes)


def _bucket(rows: DataFrame, key: Sequence[str]) -> Column:
    return F.pmod(_hash(rows, key or rows.columns, _KEY_SEED), F.lit(BUCKETS)).cast("int")


def _hash(rows: DataFrame, names: Sequence[str], seed: int) -> Column:
    """Return a hash of some columns, seeded by a constant in front of them."""
    fields = (field for field in rows.schema if field.name in names)
    parts = [part for field in fields for part in _parts(column(field.name), field.dataType, seed)]
    return F.xxhash64(F.lit(seed), *parts)


def _parts(value: Column, kind: DataType, seed: int) -> list[Column]:
    """Return the hash inputs of a value; no two values have the same."""
    if isinstance(kind, StructType):
        fields = (_parts(value.getField(field.name), field.dataType, seed) for field in kind)
        return [value.isNull(), *(part for parts in fields for part in parts)]
    if isinstance(kind, ArrayType):
        items = F.transform(value, lambda item: F.xxhash64(F.lit(seed), *_parts(item, kind.elementType, seed)))
        return [value.isNull(), F.size(value), items]
    return [value.isNull(), value]


def _halves(hashed: Column) -> tuple[Column, Column]:
    return hashed.bitwiseAND(F.lit((1 << _HALF) - 1)), F.shiftright(hashed, _HALF)


def changed_keys(right: DataFrame, live: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the distinct keys whose row is in only one of the tables, or differs in any column."""
    here, there = (rows.select(*_keys(schema), *_values(rows)) for rows in (right, live))
    differing = here.exceptAll(there).unionAll(there.exceptAll(here))
    return differing.select(*(column(own(f"key_{i}")).alias(name) for i, name in enumerate(schema.key))).distinct()


def _keys(schema: TableSchema) -> list[Column]:
    return [column(name).alias(own(f"key_{i}")) for i, name in enumerate(schema.key)]


def _values(rows: DataFrame) -> list[Column]:
    return [exact(column(field.name), field.dataType).alias(field.name) for field in rows.schema]
