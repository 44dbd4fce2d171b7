"""Write messages of a sink with Spark's Kafka writer: at least once, in parallel tasks.

::

    encoded messages, numbered ─▶ DataFrame ─▶ repartition by key ─▶ sort by number ─▶ Spark's Kafka writer
    before: the end of the range, in the home                             after: the position, in the home

There is no transaction: after a failure, the same range is written again (`penstock.sinks.call_record`).
Consumers may then get messages twice, but miss none.

**Order.** All messages of a key are in one task, in order, and jobs follow each other, so the last message of a key is
its last change. That requires that no earlier attempt writes beside or after a later one:

- The range of a job that failed is written again only after the time in which a producer gives up a message. A file
  beside the record says when the interruption was noticed.
- If Spark retried a task, its first attempt may be in another process, with messages that it has not sent yet. So the
  range is written again, in the same way. Rows of a table, each with another key, are not: the next job waits.
- Speculative execution is rejected: it would write the same messages twice at the same time.

**Secrets and values.** Messages are encoded before Spark gets them, so redacted values are never in its plans, shuffle
files or logs. Options refer to a private file for secrets.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from penstock.errors import DefiniteError, PenstockError, TransientError
from penstock.positions import Lsn
from penstock.sinks.call_record import CallRecord, RecordedCall
from penstock.sinks.kafka.transaction_writer import TopicMessages
from penstock.sinks.position import SinkPosition
from penstock.spark.jvm_loss import is_spark_lost, spark_lost_error
from penstock.spark.worker_errors import unpack_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkWriter", "encoded_batch", "has_retried_tasks"]

_LOG = logging.getLogger("penstock.kafka")
_GIVE_UP_SECONDS = 30
"""The time in which a producer gives up a message."""
_JOB_BYTES = 32 << 20
_FEW_MESSAGES = 2000
"""So many messages are written by one task, without a shuffle."""
_LARGEST_MESSAGE = 64 << 20
_PRODUCER = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.delivery.timeout.ms": str(_GIVE_UP_SECONDS * 1000),
    "kafka.request.timeout.ms": str(_GIVE_UP_SECONDS * 500),
    "kafka.max.block.ms": str(_GIVE_UP_SECONDS * 1000),
    "kafka.compression.type": "lz4",
    "kafka.max.request.size": str(_LARGEST_MESSAGE),
    "kafka.buffer.memory": str(_LARGEST_MESSAGE),
}
_KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.[\w.]*?\.(\w+Exception)(?:: ([^\n]*))?")
_HINTS = {
    "RecordTooLargeException": "Increase max.message.bytes of the topic, or exclude large columns from the sink.",
    "TopicAuthorizationException": "Grant the user WRITE and DESCRIBE on the topic.",
    "ClusterAuthorizationException": "Grant the user IDEMPOTENT_WRITE on the cluster.",
    "SaslAuthenticationException": "Check the login of the sink.",
    "SslAuthenticationException": "Check the certificates of the sink, and the broker addresses.",
}
"""Errors that a retry does not fix, and their hints."""
_SECONDS = 10.0


class SparkWriter:
    """The only writer of a sink, from `open` to its first error."""

    def __init__(
        self,
        session: Callable[[], SparkSession],
        record: CallRecord,
        options: Callable[[], Mapping[str, str]],
        settings: Mapping[str, str],
        *,
        name: str,
        started: bool,
    ) -> None:
        """Create a writer.

        `options` returns the options that connect Spark, `settings` those of librdkafka; `started` says whether a
        record must exist.
        """
        self._session, self._record, self._options = session, record, options
        self._settings: dict[str, Any] = {**settings, "logger": _LOG}
        self._name, self._started = name, started
        self._admin: AdminClient | None = None

    def open(self, seconds: float) -> bytes | None:
        """Lock and read the record; return the position."""
        self._record.open()
        found = self._record.last
        if found is None:
            if self._started:
                message = f"the position of sink {self._name} is missing from {self._record.folder}"
                raise DefiniteError(
                    message, "Restore it; or drop the sink and create it again: its topics get all rows again."
                )
            return None
        if found.end is not None and not self._interruption.exists():
            self._interruption.touch()
        return found.position.to_bytes()

    @property
    def position(self) -> SinkPosition | None:
        """The last position."""
        return None if self._record.last is None else self._record.last.position

    def begun(self) -> Lsn | None:
        """Return the end of the range of changes that was not completed."""
        last = self._record.last
        return None if last is None or last.end is None or last.end <= last.position.position else last.end

    def write(self, messages: Iterable[TopicMessages], position: bytes, seconds: float) -> int:
        """Write messages, in one or more jobs, and record the position."""
        reached, written = SinkPosition.from_bytes(position), 0
        for part in _parts(messages):
            if not written:
                self._begin(reached)
            if self._save(self._ordered(part), {each.topic for each in part}):
                message = f"Spark retried tasks that write messages of sink {self._name}, which may change their order"
                raise TransientError(message, "Penstock writes the same range again. See Spark's log for the cause.")
            written += sum(map(len, part))
        self._complete(reached, has_written=bool(written))
        return written

    def write_rows(self, topic: str, rows: Callable[[SparkSession], DataFrame], reached: SinkPosition) -> None:
        """Write the rows of a table that Spark reads and encodes itself, in any order, and record the position."""
        self._begin(reached)
        with self._errors_translated():
            frame = rows(self._session())
        if self._save(frame.withColumn("topic", F.lit(topic)), {topic}):
            self._interruption.touch()  # changes of these rows wait
        self._complete(reached, has_written=True)

    def close(self) -> None:
        """Release the record."""
        self._record.close()

    # -- the record --------------------------------------------------------------------------------------------------

    @property
    def _interruption(self) -> Path:
        """The file whose time is that of an interruption."""
        return self._record.path.with_suffix(".interrupted")

    def _begin(self, reached: SinkPosition) -> None:
        """Record the range; raise `TransientError` while messages of an interrupted job may still arrive."""
        if self._interruption.exists():
            left = _GIVE_UP_SECONDS - abs(time.time() - self._interruption.stat().st_mtime)
            if left > 0:
                message = f"sink {self._name} waits until no message of its interrupted write can arrive any more"
                raise TransientError(message, f"It continues in {left:.0f} s.")
            self._interruption.unlink()
        before = self._record.last
        assert before is not None
        end = max(reached.position, before.end or reached.position)  # a range to be repeated may follow this table
        self._record.write(replace(before, end=end))

    def _complete(self, reached: SinkPosition, *, has_written: bool) -> None:
        before, at = self._record.last, reached.position
        if before is None:
            self._record.write(RecordedCall(reached, None))
            return
        is_left = before.end is not None and at < before.end  # another table joins, before the range is repeated
        self._record.write(RecordedCall(reached, at if has_written else before.called, before.end if is_left else None))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _ordered(self, part: list[TopicMessages]) -> DataFrame:
        """Return messages so that those of a key are in one task, in order."""
        table = pa.concat_tables([pa.Table.from_batches([encoded_batch(each)]) for each in part])
        topics = pa.concat_arrays([pa.repeat(pa.scalar(each.topic), len(each)) for each in part])
        table = table.append_column("topic", topics).append_column("number", pa.array(np.arange(len(table))))
        with self._errors_translated():
            spark = self._session()
            frame = spark.createDataFrame(table)
            if len(table) <= _FEW_MESSAGES:
                frame = frame.coalesce(1)
            else:
                frame = frame.repartition(spark.sparkContext.defaultParallelism, "topic", "key")
            return frame.sortWithinPartitions("number").drop("number")

    def _save(self, frame: DataFrame, topics: Iterable[str]) -> bool:
        """Write messages; return whether Spark retried a task."""
        self._require_topics(topics)
        with self._errors_translated():
            context = frame.sparkSession.sparkContext
            if context.getConf().get("spark.speculation", "false") == "true":
                message = f"sink {self._name} requires a session without speculative execution, which changes the order"
                raise DefiniteError(message, "Set spark.speculation to false, or use delivery = 'exactly once'.")
            group = f"penstock-sink-{self._name}-{uuid.uuid4().hex}"
            context.setJobGroup(group, f"penstock: messages of sink {self._name}")
            frame.write.format("kafka").options(**{**self._options(), **_PRODUCER}).save()
            return has_retried_tasks(context, group)

    def _require_topics(self, topics: Iterable[str]) -> None:
        """Raise an error for a topic that does not exist: the producer would wait for it, or create it."""
        try:
            self._admin = self._admin or AdminClient(self._settings)
            found = self._admin.list_topics(timeout=_SECONDS).topics
        except KafkaException as error:
            message = f"sink {self._name} could not list the topics: {error.args[0].str()}"
            raise TransientError(message, "Check that the brokers are running and reachable from this host.") from None
        for topic in sorted(topics):
            if topic not in found:
                message = f"sink {self._name} could not write to Kafka: topic {topic} does not exist"
                raise DefiniteError(
                    message,
                    "The topic was deleted. Create it; if messages are lost, drop the sink and create it again.",
                )

    @contextmanager
    def _errors_translated(self) -> Iterator[None]:
        """Translate errors of Spark. Their texts may contain values of rows, apart from those of Kafka's client."""
        try:
            with unpack_errors():
                yield
        except (PySparkException, Py4JError, OSError, EOFError) as error:
            if is_spark_lost(error):
                raise spark_lost_error() from error
            raise self._translated(error) from None

    def _translated(self, error: Exception) -> PenstockError:
        text = str(error)
        if "Failed to find data source: kafka" in text:
            message = f"sink {self._name} requires Spark's Kafka connector, which this session does not have"
            return DefiniteError(message, "Add the package spark-sql-kafka to the session, or start `penstock run`.")
        found = _KAFKA_ERROR.search(text)
        if found is None:
            message = f"sink {self._name} could not write to Kafka: a job failed with {type(error).__name__}"
            return TransientError(message, "See Spark's log. Penstock writes the same range again.")
        message = f"sink {self._name} could not write to Kafka: {found[2] or found[1]}"
        if found[1] in _HINTS:
            return DefiniteError(message, _HINTS[found[1]])
        return TransientError(message, "Check that the brokers are running and reachable from all executors.")


def encoded_batch(messages: TopicMessages) -> pa.RecordBatch:
    """Return messages as columns that Spark can read; for one portion of messages."""
    keys = pa.nulls(len(messages), pa.binary()) if messages.keys is None else messages.keys.cast(pa.binary())
    return pa.RecordBatch.from_arrays([keys, messages.values.cast(pa.binary())], names=["key", "value"])


def has_retried_tasks(context: SparkContext, group: str) -> bool:
    """Return whether Spark retried tasks or stages in the completed jobs of a group."""
    context._jsc.sc().listenerBus().waitUntilEmpty()  # the status follows the jobs
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return any(stage.numFailedTasks or stage.currentAttemptId for stage in stages if stage is not None)


def _parts(messages: Iterable[TopicMessages]) -> Iterator[list[TopicMessages]]:
    """Yield messages in order, as much as one job writes."""
    part: list[TopicMessages] = []
    size = 0
    for portion in chain.from_iterable(each.portions() for each in messages):
        part.append(portion)
        size += portion.values.nbytes + (0 if portion.keys is None else portion.keys.nbytes)
        if size >= _JOB_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
