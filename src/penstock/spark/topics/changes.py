"""What decoded messages of a topic say of its table: values as they are meant, what INCLUDE adds, and its envelope.

One of the envelopes remembers something between ranges (DEBEZIUM): what came of the messages before is given to it as a
text, its *memory*, and it gives one for the messages that follow. The memory of a table that has read nothing is None.
"""

from __future__ import annotations

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
    with_meant,
)
from penstock.sources.kafka.sql_options import EnvelopeKind
from penstock.sources.kafka.topic_table import TopicTable

__all__ = ["changes_of", "memory_after"]


def changes_of(messages: DataFrame, table: TopicTable, memory: str | None, rows: DataFrame) -> Enveloped:
    """Return the changes of messages that follow those of which there is this `memory`, and that made these `rows`."""
    meant = with_meant(messages, "value", table.value_format.meanings)
    if table.key_format is not None:
        meant = with_meant(meant, "key", table.key_format.meanings)
    whole, shape = with_included(meant, table.include, records=table.records), table.shape
    match table.envelope:
        case EnvelopeKind.NONE:
            return append(whole, shape)
        case EnvelopeKind.UPSERT:
            return upsert(whole, shape)
        case EnvelopeKind.DEBEZIUM_UPSERT:
            return debezium_upsert(whole, shape)
    return debezium(whole, shape, _state(memory), rows)


def memory_after(changes: Enveloped) -> str | None:
    """Return the memory after these changes; runs a job where the envelope has one."""
    return changes.state.to_json() if isinstance(changes, Deduplicated) else None


def _state(memory: str | None) -> DebeziumState:
    return DebeziumState() if memory is None else DebeziumState.from_json(memory)
