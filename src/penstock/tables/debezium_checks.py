"""Changes of ENVELOPE DEBEZIUM that do not follow from the rows of a table: the same check for views and for apply.

A view that did not look would show rows that contradict each other, some seconds before apply says so.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.envelopes import Deduplicated, Shape, broken
from penstock.model import TableSchema
from penstock.sources.kafka.restart import how_to_begin_anew
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable
from penstock.spark.ranges import spark_schema
from penstock.spark.topics.changes import Changes
from penstock.tables.bounds import within_keys
from penstock.tables.columns import column
from penstock.tables.quarantine import Fault

__all__ = ["first_breach", "missing_changes"]


def first_breach(changes: Changes, rows: DataFrame, schema: TableSchema, made: TopicTable) -> Fault | None:
    """Return the first change that does not follow from `rows`, as they are before all of these; runs a job."""
    if not isinstance(changes.found, Deduplicated) or (changes.few is not None and not changes.few.num_rows):
        return None
    added = {column.name for column in made.include}
    own = Shape(type(made.shape.columns)([f for f in made.shape.columns if f.name not in added]), made.shape.key)
    keys = _keys(changes, rows, schema)
    near = rows.alias("target").filter(within_keys(keys, schema, "target"))
    same = [column(name, "target").eqNullSafe(column(name, "sought")) for name in schema.key]
    there = near.join(keys.alias("sought"), same, "left_semi")
    images = changes.found.images.withColumn("row", own.whole(F.col("row")))
    breaches = broken(images, there, own).orderBy("_lsn", "partition", "offset").limit(1).collect()
    return Fault(breaches[0].partition, breaches[0].offset, breaches[0].problem) if breaches else None


def missing_changes(log: TopicLog) -> str:
    """Say what to do about one."""
    anew = how_to_begin_anew(log.source, log.what)
    return f"Changes are missing, or came twice. {anew} One with ENVELOPE DEBEZIUM UPSERT takes them as they come."


def _keys(changes: Changes, rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the keys of all rows that are touched, some perhaps more than once."""
    if changes.few is None:
        touched = (F.col("row").getField(name).alias(name) for name in schema.key)
        return changes.found.images.select(*touched).distinct()
    keys = pa.table({name: pc.struct_field(changes.few.column("row"), name) for name in schema.key})
    return rows.sparkSession.createDataFrame(keys, spark_schema(keys.schema))
