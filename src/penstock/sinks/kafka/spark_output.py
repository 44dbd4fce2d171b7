"""The output of a Kafka sink with ``delivery = 'at least once'``.

::

    rows of a table        pieces of it at the position P ─▶ Spark tasks: read, where, columns, encode ┐
    a window of changes    where, columns, encode ─▶ by key, in order ─────────────────────────────────┴▶ Spark's writer

Both use the encoder of `penstock.sinks.kafka.output`, so the messages are those of a sink with ``'exactly once'``. A
window is small: encoding it here takes less time than to pass it to Python workers. The rows of a table are encoded in
the task that reads them, and only messages leave it.

Schemas are registered here, before the tasks start: they get the ids.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import TransientError
from penstock.fields import with_fields
from penstock.formats.schema_registry import SchemaReference
from penstock.kafka_client.secrets import Secret
from penstock.kafka_client.spark_options import write_private
from penstock.model import TableName, TableSchema, image_schema
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord
from penstock.sinks.delivery import TableImages
from penstock.sinks.encoding import SchemaRegistration
from penstock.sinks.kafka.output import KafkaOutput, SinkSource, TableEncoder
from penstock.sinks.kafka.spark_writer import SparkWriter, encoded_batch
from penstock.sinks.kafka.spec import KafkaSink
from penstock.sinks.kafka.transaction_writer import TopicMessages
from penstock.sinks.position import SinkPosition
from penstock.spark.input_partitions import Piece
from penstock.spark.worker_errors import pack_errors, silence_broken_pipes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CopiedTable", "MessagesSource", "SparkKafkaOutput"]

silence_broken_pipes()

CopiedTable = Callable[[], tuple[TableSchema, Sequence[Piece]]]
"""Returns the table whose rows are to be written, in pieces."""


class SparkKafkaOutput(KafkaOutput):
    """The only writer of a sink, from `open` to its first error."""

    def __init__(
        self,
        sink: KafkaSink,
        identity: str,
        source: SinkSource,
        writer: SparkWriter,
        record: CallRecord,
        copied: CopiedTable,
    ) -> None:
        super().__init__(sink, identity, source, writer=writer)
        self._spark_writer, self._copied = writer, copied
        self._hash_key = record.path.with_suffix(".redact").absolute()
        self._schemas = None if self._registry is None else _Schemas(self._registry)
        self._registry = self._schemas

    def begun(self) -> Lsn | None:
        """Return the end of the range that was not completed."""
        return self._spark_writer.begun()

    def write(self, tables: Iterable[TableImages], position: bytes, seconds: float) -> int:
        """Write the rows of a table that joins, or the messages of changes; then record the position."""
        reached, before = SinkPosition.from_bytes(position), self._spark_writer.position
        copying = None if before is None else before.copying
        if copying is None or copying.table not in reached.tables:
            return super().write(tables, position, seconds)
        return self._write_rows(reached)

    def _write_rows(self, reached: SinkPosition) -> int:
        """Write the rows of the table that joins; they are not counted."""
        schema, pieces = self._copied()
        if not pieces:
            return super().write((), reached.to_bytes(), 0.0)
        table = self._table(schema)
        empty = pa.RecordBatch.from_pylist([], image_schema(schema.columns))
        table.encode(table.messages(empty))  # registers the schemas
        tasks = _Tasks(
            self._task_sink(),
            replace(self._source, local_name=_Named(self._source.local_name(schema.table))),
            schema,
            None if self._schemas is None else replace(self._schemas, registry=None),
            pieces,
        )
        try:
            self._spark_writer.write_rows(table.topic, tasks.frame, reached)
        finally:
            self._hash_key.unlink(missing_ok=True)
        return 0

    def _task_sink(self) -> KafkaSink:
        """Return the sink for tasks: the key of hashes is in a private file, because they may lack the environment."""
        if self._sink.redact_key is None:
            return self._sink
        write_private(self._hash_key, f"{self._sink.redact_key.resolved()}\n")
        return with_fields(self._sink, redact_key=Secret(f"file:{self._hash_key}"))


@dataclass(frozen=True)
class _Schemas:
    """The ids of schemas. A task has those that were registered before."""

    registry: SchemaRegistration | None
    ids: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def register(self, subject: str, kind: str, text: str, references: Sequence[SchemaReference] = ()) -> int:
        """Return the id of a schema."""
        place = (subject, kind, text)
        if self.registry is not None and place not in self.ids:
            self.ids[place] = self.registry.register(subject, kind, text, references)
        if place not in self.ids:
            message = f"a task needs another schema of subject {subject} than was registered"
            raise TransientError(message, "Penstock writes the rows again.")
        return self.ids[place]


@dataclass(frozen=True)
class _Named:
    """Returns the local name of the only table."""

    local: str

    def __call__(self, _table: TableName) -> str:
        return self.local


@dataclass(frozen=True)
class _Tasks:
    """The rows of a table as messages, a task for each piece."""

    sink: KafkaSink
    source: SinkSource
    schema: TableSchema
    registry: SchemaRegistration | None
    pieces: Sequence[Piece]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the messages."""
        spark.dataSource.register(MessagesSource)
        request = base64.b64encode(pickle.dumps(self)).decode("ascii")
        source = spark.read.format(MessagesSource.name()).schema("key binary, value binary")
        return source.option("request", request).load()

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a piece, in portions."""
        with pack_errors():
            table = TableEncoder(self.sink, self.source, self.schema, self.registry)
            for images in piece.images():
                keys, values = table.encode(table.messages(table.passing(images)))
                yield from map(encoded_batch, TopicMessages(table.topic, values, keys).portions())


class MessagesSource(DataSource):
    """An internal data source: the rows of a table as encoded messages."""

    @classmethod
    def name(cls) -> str:
        """Return the name under which the source is registered."""
        return "penstock-messages"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the requested rows."""
        return _MessagesReader(pickle.loads(base64.b64decode(self.options["request"])))  # noqa: S301 - created by `_Tasks`


class _MessagesReader(DataSourceReader):
    def __init__(self, tasks: _Tasks) -> None:
        self._tasks, self._pieces = replace(tasks, pieces=()), tasks.pieces

    def partitions(self) -> Sequence[InputPartition]:
        return list(self._pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return self._tasks.batches(partition)
