"""The changes that decoded messages of a topic make to its table: INCLUDE columns, then the envelope.

The DEBEZIUM envelope keeps state between ranges: it gets the state after the previous messages as text, its *memory*,
and returns the state for the messages that follow. The memory of a table that has read nothing is None.

The changes of few messages are computed once and materialized too: images in Arrow, in order, to be folded without
Spark, and the DataFrames of `Enveloped` as local relations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from penstock.envelopes import (
    DebeziumState,
    Deduplicated,
    Enveloped,
    append,
    debezium,
    debezium_upsert,
    upsert,
    with_included,
)
from penstock.model import Image, TableSchema, image_schema
from penstock.sources.kafka.sql_options import EnvelopeKind
from penstock.sources.kafka.topic_table import TopicTable

__all__ = ["Changes", "changes_of", "materialize", "memory_after"]

_ORDER = [("_lsn", "ascending"), ("_ordinal", "ascending"), ("_image", "ascending")]


@dataclass(frozen=True)
class Changes:
    """The changes that the messages of a range make to a table."""

    found: Enveloped
    few: pa.Table | None
    """The images in order, if they are materialized."""
    may_truncate: bool = False
    """Whether there may be truncates."""

    @cached_property
    def truncates(self) -> list[tuple[int, int]]:
        """The places of truncates, in order: ``_lsn`` and ``_ordinal``. Runs a job, unless there are few messages."""
        if not self.may_truncate:
            return []
        if self.few is not None:
            found = self.few.filter(pc.equal(self.few.column("_image"), int(Image.TRUNCATE)))
            return list(zip(*(found.column(name).to_pylist() for name in ("_lsn", "_ordinal")), strict=True))
        images = self.found.images.filter(F.col("_image") == int(Image.TRUNCATE))
        return [(row[0], row[1]) for row in images.select("_lsn", "_ordinal").orderBy("_lsn", "_ordinal").collect()]


def changes_of(messages: DataFrame, table: TopicTable, memory: str | None, rows: DataFrame) -> Changes:
    """Return the changes of messages that follow the messages that produced this `memory` and these `rows`."""
    found = _enveloped(messages, table, memory, rows)
    changes = materialize(found, table.table_schema()) if messages.isLocal() else Changes(found, None)
    return replace(changes, may_truncate=table.records and "only_partition" in messages.columns)


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
