"""Reads topics by options that come as JSON on standard input, and tells all that Spark shows of it: a program.

It is a process of its own for its own JVM: with the Kafka reader, the UI, an event log, and logs on standard error.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.session import session
from penstock.testing.waiting import PATIENCE


def started(folder: Path) -> SparkSession:
    """Start Spark as one would who wants to see everything."""
    (folder / "events").mkdir()
    config = {
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
    }
    return session("kafka", master="local[2]", config=config)


def printed(frame: DataFrame) -> str:
    """Return what `explain` prints."""
    with redirect_stdout(StringIO()) as said:
        frame.explain(extended=True)
    return said.getvalue()


def batch(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """Read a topic to its end; return the values, or the error, and the plans."""
    frame = spark.read.format("kafka").options(**options).load().selectExpr("CAST(value AS STRING) AS value", "offset")
    plans: list[str] = []
    try:
        plans.append(printed(frame))
        return {"values": sorted(row.value for row in frame.collect()), "plans": plans}
    except (PySparkException, Py4JJavaError) as error:
        return {"error": str(error), "plans": plans}


def stream(spark: SparkSession, options: dict[str, str], folder: Path) -> dict[str, Any]:
    """Read a topic as a stream to its end; return plan and progress."""
    source = spark.readStream.format("kafka").options(**options).load()
    plans = [printed(source)]
    writer = source.selectExpr("CAST(value AS STRING) AS value").writeStream.format("memory").queryName("streamed")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        return {"error": str(error), "plans": plans}
    plans += [query._jsq.explainInternal(True), json.dumps([progress.json for progress in query.recentProgress])]
    return {"values": sorted(row.value for row in spark.table("streamed").collect()), "plans": plans}


def ui(spark: SparkSession) -> list[str]:
    """Return what the UI shows of queries, streams and settings."""
    url = spark.sparkContext.uiWebUrl
    assert url is not None
    app = spark.sparkContext.applicationId
    rest = f"{url}/api/v1/applications/{app}"
    executions = json.loads(fetched(f"{rest}/sql?details=true&planDescription=true&length=1000"))
    pages = [f"{url}/SQL/execution/?id={execution['id']}" for execution in executions]
    pages += [f"{url}/{page}/" for page in ("SQL", "jobs", "stages", "environment", "StreamingQuery")]
    return [json.dumps(executions), fetched(f"{rest}/environment"), *map(fetched, pages)]


def fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def main(folder: Path, asked: dict[str, Any]) -> None:
    spark = started(folder)
    told: dict[str, Any] = {name: batch(spark, options) for name, options in asked["batches"].items()}
    for name, options in asked["plans"].items():
        told[name] = {"plans": [printed(spark.readStream.format("kafka").options(**options).load())]}
    told |= {name: stream(spark, options, folder) for name, options in asked["streams"].items()}
    told["ui"] = ui(spark)
    spark.stop()
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.load(sys.stdin))
