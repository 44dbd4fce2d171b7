"""One Delta commit that makes a table of files which are there already.

Delta's own writer would do the same at the end of a Spark job: start a transaction, set the metadata, add files,
remove those that the table had. Its actions are handed over as the JSON in which they stand in the log.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

__all__ = ["commit_files"]


def commit_files(
    spark: SparkSession,
    path: str,
    schema: StructType,
    properties: Mapping[str, str],
    comment: str,
    files: Sequence[str],
    told: str,
) -> None:
    """Make the table at `path` of these files (actions as JSON), in place of what it was; `told` is user metadata."""
    jvm: Any = spark._jvm
    none = jvm.scala.Option.empty()
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
    spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", told)
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path)
    transaction = log.startTransaction(none, none)
    metadata = jvm.org.apache.spark.sql.delta.actions.Action.fromJson(_metadata(schema, properties, comment))
    if transaction.readVersion() < 0:
        transaction.updateMetadataForNewTable(metadata)
    else:
        transaction.updateMetadataForTableOverwrite(metadata)
    actions = [jvm.org.apache.spark.sql.delta.actions.Action.fromJson(file) for file in files]
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
    """Delta's actions that take away what the table held so far."""
    present = transaction.filterFiles()
    return [present.apply(place).remove() for place in range(present.size())]


def _operation(jvm: Any) -> Any:
    return getattr(getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
