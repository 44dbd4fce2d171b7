"""Messages that could not be taken in, put aside: a Delta table beside the one that they were meant for.

::

    refused (after, upto] ─▶ those beyond what is there already ─▶ appended, marked with `upto` ─▶ the table is merged

It is written before the table, and its commits carry the position as a mark, as those of tables do. So a message is in
it once, and is in it before the table goes on without it, whatever breaks off in between.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from penstock.positions import Lsn
from penstock.tables.base_state import marked
from penstock.tables.file_commit import snapshot_of

__all__ = ["Quarantine"]

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
        return Lsn(marked(snapshot_of(self._spark, self.path), incarnation)) if self.exists() else Lsn.ZERO

    def add(self, raw: DataFrame, refused: DataFrame, incarnation: str, upto: Lsn) -> None:
        """Put the messages of `raw` aside that are among the `refused`: all of a range that leads to `upto`."""
        asked = refused.select("partition", "offset", F.col("problem").alias("reason"))
        rows = raw.join(F.broadcast(asked), ["partition", "offset"]).withColumn("quarantined_at", F.current_timestamp())
        writer = rows.select(*_COLUMNS.names).write.format("delta").mode("append")
        writer = writer.option("txnAppId", incarnation).option("txnVersion", int(upto))
        writer.save(self.path)
