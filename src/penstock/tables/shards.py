"""A table of several shards: the rows of each, and from which shard they are.

::

    live table of s1 ── penstock_shard = 's1' ─┐
    live table of s2 ── penstock_shard = 's2' ─┴─ union ──▶ the table, with the columns that any of them has

The union is a plain projection of constants and columns: filters and column choice go down into each half, and one on
`penstock_shard` leaves out shards before anything of them is read. A column that a shard does not have yet is null in
its rows. Columns of one name and several types would have to be cast, which may change values: they are an error.
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
    """Return one table of the tables of shards, by what tells these apart; `name` is for errors."""
    types = _types(name, shards)
    return reduce(DataFrame.union, (_half(shard, rows, types) for shard, rows in shards.items()))


def _half(shard: str, rows: DataFrame, types: Mapping[str, DataType]) -> DataFrame:
    known = set(rows.columns)
    columns = [column(name) if name in known else F.lit(None).cast(kind).alias(name) for name, kind in types.items()]
    return rows.select(F.lit(shard).alias(SHARD), *columns)


def _types(name: str, shards: Mapping[str, DataFrame]) -> dict[str, DataType]:
    """Return the columns that any shard has, in the order in which they are first met."""
    types: dict[str, DataType] = {}
    first: dict[str, str] = {SHARD: ""}
    for shard, rows in shards.items():
        for field in rows.schema:
            known = next((other for other in first if other.lower() == field.name.lower()), None)
            if known is None:
                types[field.name], first[field.name] = field.dataType, shard
            elif known != field.name or types[known] != field.dataType:
                raise _unlike(name, field.name, first[known], shard)
    return types


def _unlike(name: str, field: str, one: str, other: str) -> DefiniteError:
    hint = "Make the shards alike upstream and retry the table, or read each under the name of its own source."
    if not one:
        return DefiniteError(f"{name} has a column {field} on shard {other}, which is the name of one of ours", hint)
    return DefiniteError(f"column {field} of {name} is not the same on the shards {one} and {other}", hint)
