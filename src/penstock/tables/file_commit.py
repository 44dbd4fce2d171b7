"""Access to Delta below the DataFrame API: reading a table's log, and committing files.

Delta's own writer does the same at the end of a Spark job: it starts a transaction, sets the metadata, adds files and
removes the previous ones. Actions are passed as JSON, in the format of the Delta log.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

__all__ = ["commit_files", "committed_at", "files_of", "remove_files", "rewrite_files", "snapshot_of"]


def snapshot_of(spark: SparkSession, path: str) -> Any:
    """Return Delta's newest snapshot of the table at `path`."""
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    return _log(spark, path).update(False, none, none)


def files_of(spark: SparkSession, path: str) -> DataFrame:
    """Return the files of the newest snapshot, with one column per field of Delta's add action."""
    return DataFrame(snapshot_of(spark, path).allFiles().toDF(), spark)


def committed_at(spark: SparkSession, path: str, version: int) -> float | None:
    """Return when a version was committed, in seconds since 1970; None if it is no longer in the log."""
    jvm: Any = spark._jvm
    file = jvm.org.apache.hadoop.fs.Path(f"{path}/_delta_log/{version:020}.json")
    system = file.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
    return float(system.getFileStatus(file).getModificationTime()) / 1000 if system.exists(file) else None


def rewrite_files(
    spark: SparkSession, path: str, paths: Sequence[str], parts: int, order: Sequence[Column], metadata: str
) -> None:
    """Rewrite files into `parts` new ones in the given order, in one commit that changes no row."""
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", metadata)
    log = _log(spark, path)
    transaction = log.startTransaction(none, none)
    old = [_action(jvm, text) for text in _added(spark, path, paths)]
    rows = DataFrame(log.createDataFrame(transaction.snapshot(), jvm.PythonUtils.toSeq(old), False, none), spark)
    if order:
        rows = rows.repartitionByRange(parts, *order).sortWithinPartitions(*order)
    nothing = jvm.PythonUtils.toSeq([])
    written = transaction.writeFiles((rows if order else rows.coalesce(parts))._jdf, none, True, nothing)
    new = [_action(jvm, _moved(written.apply(place).json())) for place in range(written.size())]
    removed = [file.removeWithTimestamp(round(time.time() * 1000), False) for file in old]
    optimize = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$Optimize")(nothing, nothing, True, none, False)
    transaction.commit(jvm.PythonUtils.toSeq([*new, *removed]), optimize)


def remove_files(spark: SparkSession, path: str, before: float) -> None:
    """Remove all files that have not been part of the table since `before`, in seconds since 1970.

    Delta subtracts the retention from a clock. It is given a fixed clock, so that delays cannot shift the cutoff.
    """
    jvm: Any = spark._jvm
    none, nothing = jvm.scala.Option.empty(), jvm.PythonUtils.toScalaMap({})
    delta = jvm.org.apache.spark.sql.delta
    table = delta.catalog.DeltaTableV2.apply(
        spark._jsparkSession, jvm.org.apache.hadoop.fs.Path(path), nothing, "VACUUM"
    )
    clock = jvm.org.apache.spark.util.ManualClock(round(before * 1000))
    now = jvm.scala.Option.apply(0.0)
    delta.commands.VacuumCommand.gc(spark._jsparkSession, table, False, now, none, none, nothing, clock)


def _added(spark: SparkSession, path: str, paths: Sequence[str]) -> list[str]:
    found = files_of(spark, path).filter(F.col("path").isin(list(paths)))
    return [row[0] for row in found.select(F.to_json(F.struct(F.struct("*").alias("add")))).collect()]


def _moved(action: str) -> str:
    """Mark an add action as a rewrite of existing rows."""
    described = json.loads(action)
    described["add"]["dataChange"] = False
    return json.dumps(described)


def _action(jvm: Any, text: str) -> Any:
    return jvm.org.apache.spark.sql.delta.actions.Action.fromJson(text)


def _log(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)


def commit_files(
    spark: SparkSession,
    path: str,
    schema: StructType,
    properties: Mapping[str, str],
    comment: str,
    files: Sequence[str],
    user_metadata: str,
) -> None:
    """Create or replace the table at `path` with these files (actions as JSON), with `user_metadata` in the commit."""
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", user_metadata)
    transaction = _log(spark, path).startTransaction(none, none)
    metadata = _action(jvm, _metadata(schema, properties, comment))
    if transaction.readVersion() < 0:
        transaction.updateMetadataForNewTable(metadata)
    else:
        transaction.updateMetadataForTableOverwrite(metadata)
    actions = [_action(jvm, file) for file in files]
    transaction.commit(jvm.PythonUtils.toSeq([*actions, *_removals(transaction)]), _operation(jvm))


def _metadata(schema: StructType, properties: Mapping[str, str], comment: str) -> str:
    described = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema.json(),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": round(time.time() * 1000),
        **({"description": comment} if comment else {}),
    }
    return json.dumps({"metaData": described})


def _removals(transaction: Any) -> list[Any]:
    """Return the remove actions for all files that the table has."""
    present = transaction.filterFiles()
    return [present.apply(place).remove() for place in range(present.size())]


def _operation(jvm: Any) -> Any:
    return getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
