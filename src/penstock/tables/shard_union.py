"""The union of the live tables of several shards, with the shard of each row.

::

    live table of s1 ── penstock_shard = 's1' ─┐
    live table of s2 ── penstock_shard = 's2' ─┴─ union ──▶ the table, with the columns that any shard has

The union is a plain projection of constants and columns: Spark pushes filters and column pruning down into each half,
and a filter on `penstock_shard` excludes shards before any of their data is read. A column that a shard does not have
yet is null in its rows. Columns with the same name and different types would require a cast, which may change values:
they are an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from penstock.errors import DefiniteError
from penstock.model import SHARD
from penstock.tables.columns import column

__all__ = ["union_of_shards"]


def union_of_shards(name: str, shards: Mapping[str, DataFrame]) -> DataFrame:
    """Return the union of the tables of shards, given by shard; `name` is for errors."""
    types = _types(name, shards)
    return reduce(DataFrame.union, (_shard_rows(shard, rows, types) for shard, rows in shards.items()))


def _shard_rows(shard: str, rows: DataFrame, types: Mapping[str, DataType]) -> DataFrame:
    known = set(rows.columns)
    columns = [column(name) if name in known else F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
    return rows.select(F.lit(shard).alias(SHARD), *columns)


def _types(name: str, shards: Mapping[str, DataFrame]) -> dict[str, DataType]:
    """Return the columns that any shard has, in order of first occurrence."""
    types: dict[str, DataType] = {}
    first: dict[str, str] = {SHARD: ""}
    for shard, rows in shards.items():
        for field in rows.schema:
            known = next((other for other in first if other.lower() == field.name.lower()), None)
            if known is None:
                types[field.name], first[field.name] = field.dataType, shard
            elif known != field.name or types[known] != field.dataType:
                raise _mismatch(name, field.name, first[known], shard)
    return types


def _mismatch(name: str, field: str, one: str, other: str) -> DefiniteError:
    hint = "Make the column the same on all shards and retry the table, or query each shard by source name."
    if not one:
        return DefiniteError(f"column {field} of {name} on shard {other} has a name reserved by Penstock", hint)
    return DefiniteError(f"column {field} of {name} differs between shards {one} and {other}", hint)
