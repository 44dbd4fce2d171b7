"""The fast half of a comparison: which parts of two tables differ, found without moving a row.

::

    upstream ─▶ (bucket, +1, two hashes of the row) ─┐
                                                     ├─▶ summed per bucket, where the rows are ─▶ not zero: it differs
    live ─────▶ (bucket, -1, two hashes of the row) ─┘

A bucket is a hash of the key (of the row, where there is no key), so the old and the new form of a changed row are in
the same one. Sums are made on each side of the shuffle: some thousand numbers per task travel, however many rows there
are.

**How sure is it?** What differs is found unless the sums of two hashes of 64 bits, seeded differently, agree by chance
over the rows that differ: one in 2^128. Rows that somebody made up so as to collide are another matter; the exact
comparison is for those. Sums are whole: hashes are added in halves of 32 bits, which do not overflow below 2^31
rows in a bucket, so copies of a row cannot cancel out.

**What is hashed** is the row in its `exact` form. Spark's hash of a null leaves the hash as it was, and so does an
empty array: ``(null, 'a')`` and ``('a', null)`` would be the same. So each value is preceded by whether it is null,
each array by its length, and an item of an array is hashed on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from penstock.tables.columns import column, own

__all__ = ["BUCKETS", "Buckets", "differing_buckets", "in_buckets"]

BUCKETS = 4096
_KEY_SEED, *_ROW_SEEDS = range(3)
_BUCKET, _SIGN = own("bucket"), own("sign")
_HASHES = [own(f"hash_{seed}") for seed in _ROW_SEEDS]
_HALF = 32


@dataclass(frozen=True)
class Buckets:
    """Where two tables differ: nowhere, if there are no buckets."""

    differing: list[int]
    rows: int
    """On the first side."""


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
    """Return the rows of a table, in its exact form, that are in some of the buckets."""
    return rows if len(buckets) == BUCKETS else rows.filter(_bucket(rows, key).isin(list(buckets)))


def _hashed(rows: DataFrame, key: Sequence[str], sign: int) -> DataFrame:
    hashes = [_hash(rows, rows.columns, seed).alias(name) for seed, name in zip(_ROW_SEEDS, _HASHES, strict=True)]
    return rows.select(_bucket(rows, key).alias(_BUCKET), F.lit(sign).alias(_SIGN), *hashes)


def _bucket(rows: DataFrame, key: Sequence[str]) -> Column:
    return F.pmod(_hash(rows, key or rows.columns, _KEY_SEED), F.lit(BUCKETS)).cast("int")


def _hash(rows: DataFrame, names: Sequence[str], seed: int) -> Column:
    """Return a hash of some columns; a constant in front of them seeds it."""
    fields = (field for field in rows.schema if field.name in names)
    parts = [part for field in fields for part in _parts(column(field.name), field.dataType, seed)]
    return F.xxhash64(F.lit(seed), *parts)


def _parts(value: Column, kind: DataType, seed: int) -> list[Column]:
    """Return what is hashed of a value, one after the other: no two values have the same."""
    if isinstance(kind, StructType):
        fields = (_parts(value.getField(field.name), field.dataType, seed) for field in kind)
        return [value.isNull(), *(part for parts in fields for part in parts)]
    if isinstance(kind, ArrayType):
        items = F.transform(value, lambda item: F.xxhash64(F.lit(seed), *_parts(item, kind.elementType, seed)))
        return [value.isNull(), F.size(value), items]
    return [value.isNull(), value]


def _halves(hashed: Column) -> tuple[Column, Column]:
    return hashed.bitwiseAND(F.lit((1 << _HALF) - 1)), F.shiftright(hashed, _HALF)
