"""The changes of a table that is built from messages, as images in Arrow: read from Kafka without Spark.

::

    ticks of a range ─▶ offset ranges ─▶ TopicConsumer ─▶ decoded ─▶ in order ─▶ envelope ─▶ images
                                                                                   └─ rejected: an error, or left out

`TopicLog` reads ranges for `penstock tail`, ``format("penstock")`` and sinks with this. Apply and live views compute
the same images in Spark (`penstock.sources.kafka.apply`).

Reading a range again returns the same images, as long as Kafka retains its messages: a missing one is an error, as is a
topic that was deleted and recreated, whose messages at these offsets are others. Images are ordered by tick, partition
and offset, so those of one key are in the order in which they were written. Memory is bounded: messages of several
ticks are sorted, at most `GROUP_MESSAGES` at a time; a tick with more is read partition by partition, in parts, in
which they are in order already.

A rejected message is left out if the source quarantines messages. Otherwise the table has no changes from its tick on:
the images before it are returned, and then its error is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.envelopes.arrow_images import (
    ArrowImages,
    MessageBatch,
    append_images,
    debezium_upsert_images,
    upsert_images,
)
from penstock.errors import DefiniteError
from penstock.formats import Registry, RegistryAddress, ResolvedFormat, decode_batch
from penstock.positions import Lsn
from penstock.sources.kafka.faults import Fault, fault_error, quarantine_hint
from penstock.sources.kafka.sql_options import EnvelopeKind, KafkaSqlOptions
from penstock.sources.kafka.ticks import (
    GROUP_MESSAGES,
    OffsetRange,
    bounds_ranges,
    single_partition_ticks,
    tick_groups,
    tick_of,
)
from penstock.sources.kafka.topic_admin import TopicAdmin
from penstock.sources.kafka.topic_consumer import TopicConsumer
from penstock.sources.kafka.topic_identity import recreated
from penstock.sources.kafka.topic_start import restart_hint
from penstock.sources.kafka.topic_table import TopicTable
from penstock.sources.kafka.with_options import KafkaWithOptions, OnError

__all__ = ["TopicImages", "decoded_messages", "has_headers", "registry_of"]

_KEY, _VALUE = "its key cannot be decoded: ", "its value cannot be decoded: "
_ENVELOPES = {
    EnvelopeKind.NONE: append_images,
    EnvelopeKind.UPSERT: upsert_images,
    EnvelopeKind.DEBEZIUM_UPSERT: debezium_upsert_images,
}


class TopicImages:
    """Reads the images of one table; it keeps its consumer until `close`."""

    def __init__(
        self, what: KafkaSqlOptions, how: KafkaWithOptions, source: str, table: TopicTable, schemas: Path
    ) -> None:
        self._what, self._how, self._source = what, how, source
        self._table, self._schema, self._schemas = table, table.table_schema(), schemas
        self._consumer: TopicConsumer | None = None
        self._admin: TopicAdmin | None = None

    def read(self, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the images of the ticks of `bounds` (see `tick_bounds`), in order; raise `TableError` at a fault."""
        for first, last, _ in tick_groups(bounds):
            ticks = bounds.column("tick")
            group = bounds.filter(pc.and_(pc.greater_equal(ticks, first), pc.less_equal(ticks, last)))
            for ranges in _parts(bounds_ranges(self._table.topic.name, group), sort=first < last):
                yield from self._images(group, ranges)

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        if self._admin is not None:
            self._admin.__exit__(None, None, None)
            self._admin = None

    def _images(self, bounds: pa.Table, ranges: list[OffsetRange]) -> Iterator[pa.RecordBatch]:
        found = self._messages(ranges)
        if not len(found):
            return
        ticks = tick_of(bounds, found.column("partition").to_numpy(), found.column("offset").to_numpy())
        order = np.lexsort((found.column("offset").to_numpy(), found.column("partition").to_numpy(), ticks.to_numpy()))
        single = single_partition_ticks(bounds)
        alone = pc.less_equal(ticks, -1 if single is None else int(single))
        order = pa.array(order)
        messages = decoded_messages(found.take(order), self._table, self._schemas, ticks.take(order), alone.take(order))
        result = _ENVELOPES[self._table.envelope](messages, self._schema, self._table.include)
        if not len(result.rejected) or self._how.on_error is OnError.QUARANTINE:
            yield result.images
        else:
            yield from self._until_fault(result, bounds)

    def _until_fault(self, result: ArrowImages, bounds: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the images before the tick of the first rejected message, and raise its error."""
        first = Fault(**result.rejected.slice(0, 1).to_pylist()[0])
        error = fault_error(self._table, bounds, [first], quarantine_hint(self._source, self._what))
        yield result.images.filter(pc.less(result.images.column("_lsn"), int(Lsn(error.lsn))))
        raise error

    def _messages(self, ranges: list[OffsetRange]) -> pa.Table:
        if self._consumer is None:
            topic = self._table.topic.name
            self._consumer = TopicConsumer(self._what, self._how, self._source, topic, partition_eof=True)
        found = self._consumer.read(ranges, headers=has_headers(self._table))
        if self._admin is None:
            self._admin = TopicAdmin(self._what, self._how, self._source)
        if message := recreated(self._admin, self._table.topic):
            raise DefiniteError(message, restart_hint(self._source, self._what))
        return found


def _parts(ranges: list[OffsetRange], *, sort: bool) -> Iterator[list[OffsetRange]]:
    """Divide ranges of one tick into parts that are in order; ranges of several ticks are one part, to be sorted."""
    if sort:
        yield ranges
        return
    for topic, partition, first, last in ranges:
        for begin in range(first, last, GROUP_MESSAGES):
            yield [OffsetRange(topic, partition, begin, min(last, begin + GROUP_MESSAGES))]


# -- decoding ----------------------------------------------------------------------------------------------------------


def decoded_messages(
    found: pa.Table, table: TopicTable, schemas: Path, ticks: pa.Array, alone: pa.BooleanArray
) -> MessageBatch:
    """Return messages with keys and values as rows; undecodable messages have a ``problem``.

    `found` has the columns that Kafka has; `schemas` is the folder of cached registry schemas; `alone` tells whether
    the topic had one partition at the tick of a message.
    """
    key, key_problem = _decoded(found.column("key"), table.key_format, schemas)
    value, value_problem = _decoded(found.column("value"), table.value_format, schemas)
    assert value is not None, "values have a format"
    return MessageBatch(
        key=key,
        value=value,
        tombstone=_array(pc.is_null(found.column("value"))),
        tick=ticks,
        partition=_array(found.column("partition")),
        offset=_array(found.column("offset")),
        timestamp=_array(found.column("timestamp").cast(pa.timestamp("us", "UTC"))),
        problem=pc.coalesce(_prefixed(_KEY, key_problem), _prefixed(_VALUE, value_problem)),
        headers=_array(found.column("headers")) if has_headers(table) else None,
        only_partition=alone,
    )


def has_headers(table: TopicTable) -> bool:
    """Return whether the table has a column of message headers."""
    return any(column.what == "headers" for column in table.include)


def registry_of(resolved: ResolvedFormat, schemas: Path) -> Registry | None:
    """Return the client of the registry of a format; None if it has none."""
    address = getattr(resolved.format, "registry", None)
    return None if address is None else _client(address, schemas)


@lru_cache(maxsize=64)
def _client(address: RegistryAddress, schemas: Path) -> Registry:
    """Return one client for all batches, which caches the registry's responses."""
    return Registry(address, schemas)


def _decoded(
    messages: pa.ChunkedArray, resolved: ResolvedFormat | None, schemas: Path
) -> tuple[pa.StructArray | None, pa.Array]:
    if resolved is None:
        return None, pa.nulls(len(messages), pa.string())
    return decode_batch(messages, resolved, registry_of(resolved, schemas))


def _prefixed(text: str, problems: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar(text), problems, "")


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
