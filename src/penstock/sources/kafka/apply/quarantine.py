"""The quarantine of a topic: a Delta table of rejected messages, beside the table that they were meant for.

::

    rejected (after, upto] ─▶ those not quarantined yet ─▶ appended, marked with `upto` ─▶ the table is merged

The quarantine is written before the table, and its commits carry the position as Delta's ``txn`` version, as those of
tables do. So a message is in the quarantine exactly once, and before the table continues without it, even after a
crash in between.

`fault_error` reports a message that stops a table: of all faults, the one that became visible first.
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
from penstock.sources.kafka.apply.changes import Changes
from penstock.sources.kafka.ticks import tick_of
from penstock.sources.kafka.topic_log import TopicLog
from penstock.sources.kafka.topic_start import restart_hint
from penstock.sources.kafka.topic_table import TopicTable
from penstock.tables.base_state import last_txn_version
from penstock.tables.file_commit import snapshot_of

__all__ = [
    "Fault",
    "Quarantine",
    "fault_error",
    "first_faults",
    "quarantine_hint",
    "quarantine_limit_hint",
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


def quarantined_rows(raw: DataFrame, rejected: DataFrame, quarantined_at: Column) -> DataFrame:
    """Return the messages of `raw` that are among the `rejected`, as rows of a quarantine."""
    wanted = rejected.select("partition", "offset", F.col("problem").alias("reason"))
    rows = raw.join(F.broadcast(wanted), ["partition", "offset"]).withColumn("quarantined_at", quarantined_at)
    return rows.select(*_COLUMNS.names)


class Quarantine:
    """The rejected messages of a topic."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._spark = spark
        self.path = str(path)

    def exists(self) -> bool:
        """Return whether a message was ever quarantined."""
        return DeltaTable.isDeltaTable(self._spark, self.path)

    def rows(self) -> DataFrame:
        """Return the quarantined messages: their place in Kafka, key and value as bytes, and the reason."""
        if self.exists():
            return self._spark.read.format("delta").load(self.path)
        return self._spark.createDataFrame(_COLUMNS.empty_table())

    def count(self) -> int:
        """Return the number of quarantined messages."""
        return self.rows().count()

    def reached(self, incarnation: str) -> Lsn:
        """Return the position up to which messages of a table, in this incarnation, were quarantined."""
        return self.now(incarnation)[1]

    def now(self, incarnation: str) -> tuple[DataFrame, Lsn]:
        """Return the quarantined messages, and the position that they reach for a table, of one version."""
        if not self.exists():
            return self.rows(), Lsn.ZERO
        snapshot = snapshot_of(self._spark, self.path)
        rows = self._spark.read.format("delta").option("versionAsOf", snapshot.version()).load(self.path)
        return rows, Lsn(last_txn_version(snapshot, incarnation))

    def add(self, raw: DataFrame, rejected: DataFrame, incarnation: str, upto: Lsn) -> None:
        """Quarantine the messages of `raw` that are among the `rejected`: all of a range that ends at `upto`."""
        writer = quarantined_rows(raw, rejected, F.current_timestamp()).write.format("delta").mode("append")
        writer = writer.option("txnAppId", incarnation).option("txnVersion", int(upto))
        writer.save(self.path)


class Fault(NamedTuple):
    """A message that stops a table."""

    partition: int
    offset: int
    problem: str


def first_faults(changes: Changes) -> list[Fault]:
    """Return the first rejected message of each partition."""
    if changes.few is not None and changes.found.rejected.isEmpty():  # a local relation: costs nothing
        return []
    rejected = changes.found.rejected.groupBy("partition")
    first = rejected.agg(F.min("offset").alias("offset"), F.min_by("problem", "offset").alias("problem")).collect()
    return [Fault(row["partition"], row["offset"], row["problem"]) for row in first]


def fault_error(
    log: TopicLog, table: TopicTable, after: Lsn, upto: Lsn, faults: Sequence[Fault], hint: str
) -> TableError:
    """Return the error of a table that stops in (after, upto], at the first of some faults there."""
    places = (
        np.array([fault.partition for fault in faults], np.int32),
        np.array([fault.offset for fault in faults], np.int64),
    )
    ticks = tick_of(log.bounds(table, after, upto), *places).to_numpy()
    which = min(range(len(faults)), key=lambda each: (ticks[each], faults[each].partition))
    first = faults[which]
    place = f"offset {first.offset} of partition {first.partition} of topic {table.topic.name}"
    return TableError(str(table.name), Lsn(int(ticks[which])), f"the message at {place}: {first.problem}", hint)


def quarantine_limit_hint(log: TopicLog, local: str) -> str:
    """Return the hint for a table whose quarantine limit is reached; `local` is its local name."""
    return (
        f"The quarantine limit is reached: SELECT * FROM {log.source}.{local}_quarantine. To continue, raise it: "
        f"ALTER SOURCES {log.source} SET (quarantine limit = …)."
    )


def quarantine_hint(log: TopicLog) -> str:
    """Return the hint for a message that stops a table."""
    return (
        f"To quarantine such messages and continue: ALTER SOURCES {log.source} SET (on error = 'quarantine'). "
        f"{restart_hint(log.source, log.what)}"
    )
