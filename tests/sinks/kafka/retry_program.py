"""A program that writes messages with Spark, in a session that retries tasks: the first attempt of one task fails.

It runs in a separate process with its own JVM and an event log. Options are given as JSON on standard input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import TransientError
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord
from penstock.sinks.kafka.spark_writer import SparkWriter
from penstock.sinks.kafka.transaction_writer import TopicMessages
from penstock.sinks.position import SinkPosition
from penstock.spark.session import session

PIECES = 3


class FlakySource(DataSource):
    """A message of each task; the first attempt of one of them fails."""

    @classmethod
    def name(cls) -> str:
        return "flaky"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FlakyReader()


class FlakyReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(PIECES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if partition.value == 1 and context.attemptNumber() == 0:
            message = "the first attempt"
            raise RuntimeError(message)
        text = pa.array([b"row%d" % partition.value], pa.binary())
        yield pa.RecordBatch.from_arrays([text, text], names=["key", "value"])


def flaky(spark: SparkSession) -> DataFrame:
    spark.dataSource.register(FlakySource)
    return spark.read.format("flaky").schema("key binary, value binary").load()


def messages(topic: str, value: bytes) -> list[TopicMessages]:
    return [TopicMessages(topic, pa.array([value], pa.large_binary()), pa.array([b"key"], pa.large_binary()))]


def main() -> None:
    """Write messages, then rows whose task is retried, then messages again."""
    given = json.load(sys.stdin)
    folder, topic = Path(given["folder"]), given["topic"]
    (folder / "events").mkdir()
    log = {"spark.eventLog.dir": (folder / "events").as_uri(), "spark.eventLog.compress": "false"}
    spark = session("retries", master="local[1,4]", config={"spark.eventLog.enabled": "true", **log})
    record = CallRecord(folder, "out", "shop")
    writer = SparkWriter(lambda: spark, record, lambda: given["options"], given["settings"], name="out", started=False)
    writer.open(1.0)
    writer.write((), SinkPosition(Lsn(1)).to_bytes(), 1.0)
    writer.write(messages(topic, b"first"), SinkPosition(Lsn(2)).to_bytes(), 1.0)
    writer.write_rows(topic, flaky, SinkPosition(Lsn(2)))
    error = ""
    try:
        writer.write(messages(topic, b"second"), SinkPosition(Lsn(3)).to_bytes(), 1.0)
    except TransientError as caught:
        error = caught.message
    spark.stop()
    print(json.dumps({"error": error, "position": str(writer.position and writer.position.position)}))


if __name__ == "__main__":
    main()
