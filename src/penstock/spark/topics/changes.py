"""What decoded messages of a topic say of its table: what INCLUDE adds, and its envelope.

One of the envelopes remembers something between ranges (DEBEZIUM): what came of the messages before is given to it as a
text, its *memory*, and it gives one for the messages that follow. The memory of a table that has read nothing is None.

What few messages say is computed once and is then at hand, too: images in Arrow, in their order, to be folded without
Spark; and the frames of `Enveloped` as local relations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

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
from penstock.model import TableSchema, image_schema
from penstock.sources.kafka.sql_options import EnvelopeKind
from penstock.sources.kafka.topic_table import TopicTable

__all__ = ["Changes", "at_hand", "changes_of", "memory_after"]

_ORDER = [("_lsn", "ascending"), ("_ordinal", "ascending"), ("_image", "ascending")]


@dataclass(frozen=True)
class Changes:
    """What the messages of a range say of a table."""

    found: Enveloped
    few: pa.Table | None
    """The images in their order, where they are at hand."""


def changes_of(messages: DataFrame, table: TopicTable, memory: str | None, rows: DataFrame) -> Changes:
    """Return the changes of messages that follow those of which there is this `memory`, and that made these `rows`."""
    found = _enveloped(messages, table, memory, rows)
    return at_hand(found, table.table_schema()) if messages.isLocal() else Changes(found, None)


def at_hand(found: Enveloped, schema: TableSchema) -> Changes:
    """Compute what messages say, once; they are few."""
    told = found.told.toArrow()
    images = told.filter(pc.is_null(told.column("problem"))).sort_by(_ORDER)
    kept = found.told.sparkSession.createDataFrame(told, found.told.schema)
    columns = image_schema(schema.columns)
    return Changes(replace(found, told=kept), images.select(columns.names).cast(columns))


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
    """Return the memory after these changes; runs a job where the envelope has one."""
    return changes.found.state.to_json() if isinstance(changes.found, Deduplicated) else None


def _state(memory: str | None) -> DebeziumState:
    return DebeziumState() if memory is None else DebeziumState.from_json(memory)
