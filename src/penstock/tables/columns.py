"""Spark expressions for upstream columns of any name and type.

Upstream names are data. They contain dots, spaces and backticks, so expressions never use a bare name, and columns that
Penstock adds beside upstream columns have a reserved prefix.

`widened` extends rows that were read before a table gained columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock.model import OWN_PREFIX, TableSchema, is_rescuable, is_rescued, missing_value, rescued_index
from penstock.spark.images import spark_schema

__all__ = [
    "column",
    "exact",
    "own",
    "quoted",
    "rescuable",
    "text_of",
    "toastable",
    "widened",
    "with_texts",
    "without_columns",
]


def quoted(name: str) -> str:
    """Quote `name` as one part of a Spark SQL name."""
    return "`" + name.replace("`", "``") + "`"


def without_columns(rows: DataFrame, names: Collection[str]) -> DataFrame:
    """Return rows without the columns named exactly so."""
    return rows.select(*(column(name) for name in rows.columns if name not in names)) if names else rows


def column(name: str, of: str = "") -> Column:
    """Return the column named exactly `name`, of the DataFrame with alias `of`."""
    return F.col(f"{of}.{quoted(name)}" if of else quoted(name))


def own(name: str) -> str:
    """Return the name of an internal column that is temporarily placed beside upstream columns."""
    return f"{OWN_PREFIX}{name}"


def toastable(schema: TableSchema) -> Iterator[tuple[int, str]]:
    """Yield index and name of the columns whose value an UPDATE may omit: not in the key, not of fixed width."""
    for index, field in enumerate(schema.columns):
        if field.name not in schema.key and not _fixed_width(field.type) and not is_rescued(field):
            yield index, field.name


def rescuable(schema: TableSchema) -> list[tuple[int, str]]:
    """Return index and name of the columns whose values may be both omitted and rescued; none without `RESCUED`."""
    if rescued_index(schema.columns) is None:
        return []
    return [(i, name) for i, name in toastable(schema) if is_rescuable(schema.columns.field(i).type)]


def with_texts(own_texts: Column, texts: Sequence[tuple[str, Column]]) -> Column:
    """Return the map `RESCUED` with the texts of columns that it does not contain; null adds nothing.

    The text of a column is taken from where its value is taken from: see `penstock.changelog.rescued_texts`.
    """
    if not texts:
        return own_texts
    entries = (
        F.when(text.isNotNull(), F.struct(F.lit(name).alias("key"), text.alias("value"))) for name, text in texts
    )
    added = F.array_compact(F.array(*entries))
    merged = F.map_concat(F.coalesce(own_texts, F.create_map().cast(_RESCUED_TYPE)), F.map_from_entries(added))
    return F.when(F.size(added) > 0, merged).otherwise(own_texts)


def text_of(texts: Column, name: str) -> Column:
    """Return the text of a column in the map `RESCUED`; null if there is none."""
    return F.try_element_at(texts, F.lit(name))


_RESCUED_TYPE = MapType(StringType(), StringType())


def exact(value: Column, kind: DataType) -> Column:
    """Return `value` in a form whose equality is identity, and by which Spark can group.

    Spark groups -0.0 with 0.0 and cannot group by maps. The text of a float is unique to it; a map becomes its sorted
    entries.
    """
    if isinstance(kind, MapType):
        entries = StructType([StructField("key", kind.keyType), StructField("value", kind.valueType)])
        return F.array_sort(exact(F.map_entries(value), ArrayType(entries)))
    if isinstance(kind, VariantType):
        return F.to_json(value)
    if isinstance(kind, ArrayType) and _holds(kind, MapType | VariantType):
        return F.transform(value, lambda item: exact(item, kind.elementType))
    if isinstance(kind, StructType) and _holds(kind, MapType | VariantType):
        fields = (exact(value.getField(field.name), field.dataType).alias(field.name) for field in kind)
        return F.when(value.isNotNull(), F.struct(*fields))
    return value.cast(_floats_as_text(kind)) if _holds(kind, FloatType | DoubleType) else value


def _fixed_width(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return False  # numeric is a varlena upstream
    return bool(pa.types.is_primitive(kind))


def _holds(kind: DataType, wanted: object) -> bool:
    if isinstance(kind, wanted):  # type: ignore[arg-type]
        return True
    if isinstance(kind, ArrayType):
        return _holds(kind.elementType, wanted)
    if isinstance(kind, MapType):
        return _holds(kind.keyType, wanted) or _holds(kind.valueType, wanted)
    return isinstance(kind, StructType) and any(_holds(field.dataType, wanted) for field in kind)


def _floats_as_text(kind: DataType) -> DataType:
    if isinstance(kind, FloatType | DoubleType):
        return StringType()
    if isinstance(kind, ArrayType):
        return ArrayType(_floats_as_text(kind.elementType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _floats_as_text(field.dataType)) for field in kind])
    return kind


def widened(spark: SparkSession, rows: DataFrame, added: Sequence[pa.Field]) -> DataFrame:
    """Return `rows` with columns that were added later, each with the one value that such rows have in it.

    The values are joined as a single row: this is exact for every type, and Spark turns it into a literal.
    """
    if not added:
        return rows
    schema = pa.schema([field.remove_metadata() for field in added])
    values = pa.Table.from_arrays([missing_value(field) for field in added], schema=schema)
    return rows.crossJoin(F.broadcast(spark.createDataFrame(values, spark_schema(schema))))
