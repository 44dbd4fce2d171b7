"""Detection of ENVELOPE DEBEZIUM changes that contradict the rows of a table; live views and apply share this check.

Without the check, a view would show contradictory rows for some seconds before apply reports the error.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.envelopes import Deduplicated, Shape, contradictions
from penstock.model import TableSchema
from penstock.sources.kafka.apply.changes import Changes
from penstock.sources.kafka.faults import Fault
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_start import restart_hint
from penstock.sources.kafka.topic_table import TopicTable
from penstock.spark.images import spark_schema
from penstock.tables.bounds import within_keys
from penstock.tables.columns import column

__all__ = ["first_contradiction", "missing_changes_hint"]


def first_contradiction(changes: Changes, rows: DataFrame, schema: TableSchema, topic: TopicTable) -> Fault | None:
    """Return the first change that contradicts `rows`, the rows before all of the changes; runs a job."""
    if not isinstance(changes.found, Deduplicated) or (changes.few is not None and not changes.few.num_rows):
        return None
    added = {column.name for column in topic.include}
    own = Shape(type(topic.shape.columns)([f for f in topic.shape.columns if f.name not in added]), topic.shape.key)
    keys = _keys(changes, rows, schema)
    near = rows.alias("target").filter(within_keys(keys, schema, "target"))
    same = [column(name, "target").eqNullSafe(column(name, "sought")) for name in schema.key]
    there = near.join(keys.alias("sought"), same, "left_semi")
    images = changes.found.images.withColumn("row", own.value_row(F.col("row")))
    found = contradictions(images, there, own, topic.gained, changes.truncates)
    breaches = found.orderBy("_lsn", "partition", "offset").limit(1).collect()
    return Fault(breaches[0].partition, breaches[0].offset, breaches[0].problem) if breaches else None


def missing_changes_hint(log: TopicLog) -> str:
    """Return the hint for changes that contradict the rows of their table."""
    restart = restart_hint(log.source, log.what)
    return f"Changes are missing or duplicated. {restart} A source with ENVELOPE DEBEZIUM UPSERT accepts such changes."


def _keys(changes: Changes, rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the keys of all rows that the changes touch, possibly with duplicates."""
    if changes.few is None:
        touched = (F.col("row").getField(name).alias(name) for name in schema.key)
        return changes.found.images.filter(F.col("row").isNotNull()).select(*touched).distinct()
    images = changes.few.filter(changes.few.column("row").is_valid())
    keys = pa.table({name: pc.struct_field(images.column("row"), name) for name in schema.key})
    return rows.sparkSession.createDataFrame(keys, spark_schema(keys.schema))
