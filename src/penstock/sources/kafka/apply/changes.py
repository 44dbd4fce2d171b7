"""The changes that decoded messages of a topic make to its table: INCLUDE columns, then the envelope.

The DEBEZIUM envelope keeps state between ranges: it gets the state after the previous messages as text, its *memory*,
and returns the state for the messages that follow. The memory of a table that has read nothing is None.

The changes of few messages are computed once and materialized too: images in Arrow, in order, to be folded without
Spark, and the DataFrames of `Enveloped` as local relations.

Detection of ENVELOPE DEBEZIUM changes that contradict the rows of a table; live views and apply share this check.

Without the check, a view would show contradictory rows for some seconds before apply reports the error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.envelopes import (
    DebeziumState,
    Deduplicated,
    Enveloped,
    Shape,
    append,
    contradictions,
    debezium,
    debezium_upsert,
    upsert,
    with_included,
)
from penstock.model import TableSchema, image_schema
from penstock.sources.kafka.apply.quarantine import Fault
from penstock.sources.kafka.restart import restart_hint
from penstock.sources.kafka.sql_options import EnvelopeKind
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable
from penstock.spark.images import spark_schema
from penstock.tables.bounds import within_keys
from penstock.tables.columns import column

__all__ = ["Changes", "changes_of", "first_contradiction", "materialize", "memory_after", "missing_changes_hint"]


_ORDER = [("_lsn", "ascending"), ("_ordinal", "ascending"), ("_image", "ascending")]


@dataclass(frozen=True)
class Changes:
    """The changes that the messages of a range make to a table."""

    found: Enveloped
    few: pa.Table | None
    """The images in order, if they are materialized."""


def changes_of(messages: DataFrame, table: TopicTable, memory: str | None, rows: DataFrame) -> Changes:
    """Return the changes of messages that follow the messages that produced this `memory` and these `rows`."""
    found = _enveloped(messages, table, memory, rows)
    return materialize(found, table.table_schema()) if messages.isLocal() else Changes(found, None)


def materialize(found: Enveloped, schema: TableSchema) -> Changes:
    """Compute the changes of few messages once, and keep them in memory."""
    computed = found.results.toArrow()
    images = computed.filter(pc.is_null(computed.column("problem"))).sort_by(_ORDER)
    kept = found.results.sparkSession.createDataFrame(computed, found.results.schema)
    columns = image_schema(schema.columns)
    return Changes(replace(found, results=kept), images.select(columns.names).cast(columns))


def _enveloped(messages: DataFrame, table: TopicTable, memory: str | None, rows: DataFrame) -> Enveloped:
    whole, shape = with_included(messages, table.include, records=table.records), table.shape
    match table.envelope:
        case EnvelopeKind.NONE:
            return append(whole, shape)
        case EnvelopeKind.UPSERT:
            return upsert(whole, shape)
        case EnvelopeKind.DEBEZIUM_UPSERT:
            return debezium_upsert(whole, shape)
    return debezium(whole, shape, _state(memory), rows)


def memory_after(changes: Changes) -> str | None:
    """Return the memory after these changes; runs a job if the envelope has one."""
    return changes.found.state.to_json() if isinstance(changes.found, Deduplicated) else None


def _state(memory: str | None) -> DebeziumState:
    return DebeziumState() if memory is None else DebeziumState.from_json(memory)


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
    breaches = contradictions(images, there, own).orderBy("_lsn", "partition", "offset").limit(1).collect()
    return Fault(breaches[0].partition, breaches[0].offset, breaches[0].problem) if breaches else None


def missing_changes_hint(log: TopicLog) -> str:
    """Return the hint for changes that contradict the rows of their table."""
    restart = restart_hint(log.source, log.what)
    return f"Changes are missing or duplicated. {restart} A source with ENVELOPE DEBEZIUM UPSERT accepts such changes."


def _keys(changes: Changes, rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the keys of all rows that the changes touch, possibly with duplicates."""
    if changes.few is None:
        touched = (F.col("row").getField(name).alias(name) for name in schema.key)
        return changes.found.images.select(*touched).distinct()
    keys = pa.table({name: pc.struct_field(changes.few.column("row"), name) for name in schema.key})
    return rows.sparkSession.createDataFrame(keys, spark_schema(keys.schema))
