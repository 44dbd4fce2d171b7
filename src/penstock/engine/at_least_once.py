"""The delivery of Kafka sinks with the option ``delivery = 'at least once'``: Spark writes the messages.

Rows of a table are read by tasks: the delivery copies none (see `penstock.sinks.kafka.spark_output`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.catalog.sinks import SinkRecord
from penstock.catalog.store import Catalog
from penstock.engine.sink_tables import CatalogTables
from penstock.engine.sinks import sink_of, sink_reader, spark_of
from penstock.kafka_client.spark_options import spark_connection_options
from penstock.model import TableName, TableSchema
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord
from penstock.sinks.delivery import Delivery, ImageNeeds
from penstock.sinks.kafka.output import SinkSource
from penstock.sinks.kafka.spark_output import SparkKafkaOutput
from penstock.sinks.kafka.spark_writer import SparkWriter
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.words import SinkEnvelope
from penstock.spark.input_partitions import Piece
from penstock.tables.interface import TableStore

__all__ = ["at_least_once_delivery", "image_needs"]


def image_needs(sink: KafkaSink) -> ImageNeeds:
    """Return what the messages of a sink need of images."""
    return ImageNeeds(
        whole_rows=sink.envelope is not SinkEnvelope.DEBEZIUM or sink.where is not None,
        deletes_for_truncate=sink.envelope is SinkEnvelope.UPSERT,
    )


def at_least_once_delivery(
    home: Path, catalog: Catalog, record: SinkRecord, source: SinkSource, store: TableStore | None
) -> tuple[Delivery, SparkKafkaOutput]:
    """Return the delivery of a source to a sink, and its output."""
    sink = sink_of(record)
    assert isinstance(sink, KafkaSink)
    session = spark_of(store, f"sink {sink.name} writes with Spark (delivery = 'at least once')")
    calls = CallRecord(home, sink.name, source.name, what="write")
    tables = _PieceTables(home, catalog, source.name, sink.table)
    writer = SparkWriter(
        lambda: session,
        calls,
        partial(spark_connection_options, sink.broker, sink, calls.path.with_suffix(".properties")),
        sink.client_settings(),
        name=sink.name,
        started=source.name in record.started,
    )
    output = SparkKafkaOutput(sink, record.id, source, writer, calls, tables.copied)
    log = catalog.log(source.name)
    reader, needs = sink_reader(sink.name), image_needs(sink)
    return Delivery(reader, log, tables, output, snapshot=sink.snapshot, needs=needs), output


class _PieceTables(CatalogTables):
    """The tables of a sink whose rows are read by Spark, in pieces."""

    _copied: tuple[TableSchema, Sequence[Piece]] | None = None

    def rows(self, table: TableName, at: Lsn, version: int, base: Lsn) -> tuple[TableSchema, Iterator[pa.RecordBatch]]:
        """Return the columns of a table at a position, and no rows; raise an error if the base does not exist."""
        self._copied = self.pieces(table, at, version, base)
        return self._copied[0], iter(())

    def copied(self) -> tuple[TableSchema, Sequence[Piece]]:
        """Return the table that is copied."""
        assert self._copied is not None
        return self._copied
