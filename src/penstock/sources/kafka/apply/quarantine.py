"""The quarantine of a topic: a Delta table of rejected messages, beside the table that they were meant for.

::

    rejected (after, upto] ─▶ those not quarantined yet ─▶ appended, marked with `upto` ─▶ the table is merged

The quarantine is written before the table, and its commits carry the position as Delta's ``txn`` version, as those of
tables do. So a message is in the quarantine exactly once, and before the table continues without it, even after a
crash in between.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.positions import Lsn
from penstock.sources.kafka.apply.changes import Changes
from penstock.sources.kafka.faults import Fault
from penstock.tables.base_state import last_txn_version
from penstock.tables.file_commit import snapshot_of

__all__ = ["Quarantine", "first_faults", "quarantined_rows"]

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
        return _none(self._spark)

    def count(self) -> int:
        """Return the number of quarantined messages."""
        return self.rows().count()

    def reached(self, incarnation: str) -> Lsn:
        """Return the position up to which messages of a table, in this incarnation, were quarantined."""
        return self.now(incarnation)[1]

    def now(self, incarnation: str) -> tuple[DataFrame, Lsn]:
        """Return the quarantined messages, and the position that they reach for a table, of one version."""
        if not self.exists():
            return _none(self._spark), Lsn.ZERO
        snapshot = snapshot_of(self._spark, self.path)
        rows = self._spark.read.format("delta").option("versionAsOf", snapshot.version()).load(self.path)
        return rows, Lsn(last_txn_version(snapshot, incarnation))

    def add(self, raw: DataFrame, rejected: DataFrame, incarnation: str, upto: Lsn) -> None:
        """Quarantine the messages of `raw` that are among the `rejected`: all of a range that ends at `upto`."""
        writer = quarantined_rows(raw, rejected, F.current_timestamp()).write.format("delta").mode("append")
        writer = writer.option("txnAppId", incarnation).option("txnVersion", int(upto))
        writer.save(self.path)


def _none(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(_COLUMNS.empty_table())


def first_faults(changes: Changes) -> list[Fault]:
    """Return the first rejected message of each partition."""
    if changes.few is not None and changes.found.rejected.isEmpty():  # a local relation: costs nothing
        return []
    rejected = changes.found.rejected.groupBy("partition")
    first = rejected.agg(F.min("offset").alias("offset"), F.min_by("problem", "offset").alias("problem")).collect()
    return [Fault(row["partition"], row["offset"], row["problem"]) for row in first]
