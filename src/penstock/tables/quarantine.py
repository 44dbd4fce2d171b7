"""Messages that could not be taken in, put aside: a Delta table beside the one that they were meant for.

::

    refused (after, upto] ─▶ those beyond what is there already ─▶ appended, marked with `upto` ─▶ the table is merged

It is written before the table, and its commits carry the position as a mark, as those of tables do. So a message is in
it once, and is in it before the table goes on without it, whatever breaks off in between.

Messages that a table cannot go on with: which became visible first, and what is said of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.errors import TableError
from penstock.positions import Lsn
from penstock.sources.kafka.restart import how_to_begin_anew
from penstock.sources.kafka.ticks import tick_of
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_table import TopicTable
from penstock.spark.topics.changes import Changes
from penstock.tables.base_state import marked
from penstock.tables.file_commit import snapshot_of

__all__ = [
    "Fault",
    "Quarantine",
    "ended_by",
    "first_faults",
    "how_to_go_on",
    "how_to_raise_the_limit",
    "quarantined_rows",
]

_COLUMNS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "reason": pa.string(),
        "quarantined_at": pa.timestamp("us", "UTC"),
    }
)


def quarantined_rows(raw: DataFrame, refused: DataFrame, quarantined_at: Column) -> DataFrame:
    """Return the messages of `raw` that are among the `refused`, as rows of a quarantine."""
    asked = refused.select("partition", "offset", F.col("problem").alias("reason"))
    rows = raw.join(F.broadcast(asked), ["partition", "offset"]).withColumn("quarantined_at", quarantined_at)
    return rows.select(*_COLUMNS.names)


class Quarantine:
    """The messages of a topic that were put aside."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self.path = str(path)

    def exists(self) -> bool:
        """Say whether a message was ever put aside."""
        return DeltaTable.isDeltaTable(self._spark, self.path)

    def rows(self) -> DataFrame:
        """Return the messages that are in it now: where they are in Kafka, key and value as bytes, and the reason."""
        if self.exists():
            return self._spark.read.format("delta").load(self.path)
        return self._spark.createDataFrame(_COLUMNS.empty_table())

    def count(self) -> int:
        """Return how many there are."""
        return self.rows().count()

    def reached(self, incarnation: str) -> Lsn:
        """Return the position up to which messages of a table, in this incarnation, were put aside."""
        return self.now(incarnation)[1]

    def now(self, incarnation: str) -> tuple[DataFrame, Lsn]:
        """Return both, of one version: the messages that are in it, and up to where it has those of a table."""
        if not self.exists():
            return self.rows(), Lsn.ZERO
        snapshot = snapshot_of(self._spark, self.path)
        rows = self._spark.read.format("delta").option("versionAsOf", snapshot.version()).load(self.path)
        return rows, Lsn(marked(snapshot, incarnation))

    def add(self, raw: DataFrame, refused: DataFrame, incarnation: str, upto: Lsn) -> None:
        """Put the messages of `raw` aside that are among the `refused`: all of a range that leads to `upto`."""
        writer = quarantined_rows(raw, refused, F.current_timestamp()).write.format("delta").mode("append")
        writer = writer.option("txnAppId", incarnation).option("txnVersion", int(upto))
        writer.save(self.path)


class Fault(NamedTuple):
    """A message that a table cannot go on with."""

    partition: int
    offset: int
    problem: str


def first_faults(changes: Changes) -> list[Fault]:
    """Return the first refused message of each partition."""
    if changes.few is not None and changes.found.refused.isEmpty():  # which costs nothing there
        return []
    refused = changes.found.refused.groupBy("partition")
    first = refused.agg(F.min("offset").alias("offset"), F.min_by("problem", "offset").alias("problem")).collect()
    return [Fault(row["partition"], row["offset"], row["problem"]) for row in first]


def ended_by(log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn, faults: Sequence[Fault], hint: str) -> TableError:
    """Return the error of a table that ends in (after, upto], at the first of some faults there."""
    places = (
        np.array([fault.partition for fault in faults], np.int32),
        np.array([fault.offset for fault in faults], np.int64),
    )
    ticks = tick_of(log.bounds(table, after, upto), *places).to_numpy()
    which = min(range(len(faults)), key=lambda each: (ticks[each], faults[each].partition))
    first = faults[which]
    place = f"offset {first.offset} of partition {first.partition} of topic {table.topic.name}"
    return TableError(str(table.name), Lsn(int(ticks[which])), f"the message at {place}: {first.problem}", hint)


def how_to_raise_the_limit(log: TopicLog, local: str) -> str:
    """Return the hint for a table that may quarantine no more messages; `local` is its name here."""
    return (
        f"The quarantine limit is reached: SELECT * FROM {log.source}.{local}_quarantine. To continue, raise it: "
        f"ALTER SOURCES {log.source} SET (quarantine limit = …)."
    )


def how_to_go_on(log: TopicLog) -> str:
    """Say what to do about a message at which a table ended."""
    return (
        f"To put such messages aside and go on: ALTER SOURCES {log.source} SET (on error = 'quarantine'). "
        f"{how_to_begin_anew(log.source, log.what)}"
    )
