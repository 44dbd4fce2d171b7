"""The images of one key, in order: the expressions that `fold` and `moves` share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from penstock.model import Image, TableSchema
from penstock.tables.columns import own
from penstock.tables.contents import Contents

__all__ = ["after_truncate", "flat", "is_image", "known_values", "last_image", "when_order"]


def is_image(*kinds: Image) -> Column:
    """Whether the image is one of `kinds`."""
    return F.col("_image").isin(*(int(kind) for kind in kinds))


def when_order(condition: Column | None = None) -> Column:
    """Return the place of an image in history; null, which `max_by` passes over, where `condition` does not hold."""
    order = F.struct("_lsn", "_ordinal", "_image")
    return order if condition is None else F.when(condition, order)


def after_truncate(images: DataFrame, contents: Contents) -> DataFrame:
    """Drop TRUNCATE images and all that came before the last one."""
    if contents.truncated is None:
        return images.filter(~is_image(Image.TRUNCATE))
    lsn, ordinal = contents.truncated
    later = (F.col("_lsn") > lsn) | ((F.col("_lsn") == lsn) & (F.col("_ordinal") > ordinal))
    return images.filter(later & ~is_image(Image.TRUNCATE))


def last_image() -> Column:
    """Aggregate: the last image of the group."""
    return F.max_by(F.struct("_image", "_unchanged", "row"), when_order()).alias(own("last"))


def known_values(columns: Iterable[tuple[int, str]]) -> Iterator[Column]:
    """Aggregate, per column: its newest value that was sent, in a struct (null: none was)."""
    whole = is_image(Image.BEFORE, Image.UPDATED, Image.INSERTED)
    for index, name in columns:
        sent = whole & ~F.array_contains(F.coalesce("_unchanged", F.array().cast("array<int>")), index)
        value = F.struct(F.col("row").getField(name).alias("value"))
        yield F.max_by(value, when_order(sent)).alias(own(f"value_{index}"))


def flat(
    folded: DataFrame, schema: TableSchema, values: Mapping[int, Column] | None = None, source: Column | None = None
) -> DataFrame:
    """Return ``_gone``, ``_unchanged``, ``_from`` and the columns from a last image, values and a source per key."""
    values = values or {}
    last = F.col(own("last"))
    row = last.getField("row")
    gone = last.getField("_image") < int(Image.UPDATED)
    listed = F.when(~gone, last.getField("_unchanged"))
    missing = _missing(listed, values)
    if source is None:
        source = F.lit(None).cast(_key_type(folded, schema))
    columns = []
    for index, name in enumerate(schema.columns.names):
        value = row.getField(name)
        if index in values:
            value = F.when(F.array_contains(listed, index), values[index].getField("value")).otherwise(value)
        columns.append((value if name in schema.key else F.when(~gone, value)).alias(name))
    return folded.select(
        gone.alias("_gone"),
        missing.alias("_unchanged"),
        F.when(F.size(missing) > 0, source).alias("_from"),
        *columns,
    )


def _missing(listed: Column, values: Mapping[int, Column]) -> Column:
    """Keep the indices whose value is still not known; null for none."""
    if not values:
        return F.lit(None).cast("array<int>")
    unknown = F.array_compact(F.array(*(F.when(value.isNull(), F.lit(index)) for index, value in values.items())))
    missing = F.array_intersect(listed, unknown)
    return F.when(F.size(missing) > 0, missing)


def _key_type(folded: DataFrame, schema: TableSchema) -> StructType:
    row: Any = folded.schema[own("last")].dataType["row"].dataType  # type: ignore[index]
    return StructType([row[name] for name in schema.key])
